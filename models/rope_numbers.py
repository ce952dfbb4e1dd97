"""Numbers of rotary position embedding, plain and YaRN: no framework's."""

import math

import numpy as np

from hpmoe.models import config as config_lib


def frequencies(config: config_lib.ModelConfig) -> np.ndarray:
  """Returns `[X/2]` float64, radians that a pair turns from token to token.

  YaRN keeps the frequencies that turn more than `beta_fast` times in the
  context of training, divides those that turn less than `beta_slow` times by
  `factor`, and goes from one to the other in a straight line between: arXiv
  2309.00071, section 3.2, with the rounding of the published code.
  """
  width = config.rope_dim
  plain = config.rope_theta ** -(np.arange(0, width, 2) / width)
  scaling = config.rope_scaling
  if scaling is None:
    return plain
  low = _pair_turning(config, scaling.beta_fast)
  high = _pair_turning(config, scaling.beta_slow)
  if scaling.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, width - 1)
  span = high - low or 0.001
  divided = np.clip((np.arange(width // 2) - low) / span, 0, 1)
  return plain / scaling.factor * divided + plain * (1 - divided)


def amplitude(scaling: config_lib.RopeScaling | None) -> float:
  """Returns the factor on cosines and sines: YaRN's temperature.

  With `mscale` and `mscale_all_dim` it is a ratio, as in the published code of
  DeepSeek-V3; 1 where they are equal, and the temperature is then applied to
  the softmax alone (`softmax_factor`).
  """
  if scaling is None:
    return 1.0
  if scaling.attention_factor is not None:
    return scaling.attention_factor
  if scaling.mscale and scaling.mscale_all_dim:
    ratio = _temperature(scaling.factor, scaling.mscale)
    return ratio / _temperature(scaling.factor, scaling.mscale_all_dim)
  return _temperature(scaling.factor, 1.0)


def softmax_factor(scaling: config_lib.RopeScaling | None) -> float:
  """Returns the factor on the scores of multi-head latent attention."""
  if scaling is None or not scaling.mscale_all_dim:
    return 1.0
  return _temperature(scaling.factor, scaling.mscale_all_dim) ** 2


def _temperature(factor: float, mscale: float) -> float:
  return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _pair_turning(config: config_lib.ModelConfig, rotations_: float) -> float:
  """Returns the pair that turns so often in the context of training."""
  assert config.rope_scaling is not None
  context = config.rope_scaling.original_max_position_embeddings
  wavelengths = math.log(context / (rotations_ * 2 * math.pi))
  return config.rope_dim * wavelengths / (2 * math.log(config.rope_theta))
