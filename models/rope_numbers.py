"""Numbers of rotary position embedding, plain and stretched: no framework's."""

import math
from typing import Any

import numpy as np

from hpmoe.models import config as config_lib


def frequencies(
  config: config_lib.ModelConfig, length: Any = 1, xp: Any = np
) -> Any:
  """Returns `[X/2]`, radians that a pair turns from token to token.

  In float64 of numpy, unless they depend on the length of a text.

  Args:
    config: sizes and options.
    length: tokens of the longest text up to now, a float of `xp`.
    xp: `numpy` or `jax.numpy`.
  """
  plain = config.rope_theta ** -_exponents(config)
  scaling = config.rope_scaling
  if scaling is None:
    return plain
  if scaling.kind == 'proportional':
    share = scaling.partial_rotary_factor
    pairs = len(plain) if share is None else int(share * config.rope_dim // 2)
    is_turning = np.arange(len(plain)) < pairs
    return np.where(is_turning, plain / scaling.factor, 0.0)
  if scaling.kind == 'linear':
    return plain / scaling.factor
  if scaling.kind == 'llama3':
    return _llama3(scaling, plain)
  if scaling.kind == 'dynamic':
    return _stretched(config, plain, length, xp)
  if scaling.kind == 'longrope':
    is_long = length > scaling.original_max_position_embeddings
    short = plain / np.asarray(scaling.short_factor)
    return xp.where(is_long, plain / np.asarray(scaling.long_factor), short)
  return _yarn(config, scaling, plain)


def window_frequencies(config: config_lib.ModelConfig) -> np.ndarray | None:
  """Returns `[X/2]` of layers with a window; None for those of the others."""
  if not config.window_rope_theta:
    return None
  width = config.head_dim
  return config.window_rope_theta ** -(np.arange(0, width, 2) / width)


def _exponents(config: config_lib.ModelConfig) -> np.ndarray:
  return np.arange(0, config.rope_dim, 2) / config.rope_dim


def _yarn(
  config: config_lib.ModelConfig,
  scaling: config_lib.RopeScaling,
  plain: np.ndarray,
) -> np.ndarray:
  """Returns frequencies by YaRN: arXiv 2309.00071, section 3.2.

  It keeps the frequencies that turn more than `beta_fast` times in the context
  of training, divides those that turn less than `beta_slow` times by `factor`,
  and goes from one to the other in a straight line between, with the rounding
  of the published code.
  """
  width = config.rope_dim
  low = _pair_turning(config, scaling.beta_fast)
  high = _pair_turning(config, scaling.beta_slow)
  if scaling.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, width - 1)
  span = high - low or 0.001
  divided = np.clip((np.arange(width // 2) - low) / span, 0, 1)
  return plain / scaling.factor * divided + plain * (1 - divided)


def _llama3(scaling: config_lib.RopeScaling, plain: np.ndarray) -> np.ndarray:
  """Returns frequencies as of Llama 3.1: kept, divided, or between."""
  low, high = scaling.low_freq_factor, scaling.high_freq_factor
  assert low is not None and high is not None
  turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
  shares = np.clip((turns - low) / (high - low), 0, 1)
  return plain * shares + plain / scaling.factor * (1 - shares)


def _stretched(
  config: config_lib.ModelConfig, plain: np.ndarray, length: Any, xp: Any
) -> Any:
  """Returns frequencies whose base grows with a text: "dynamic NTK".

  Within `max_position_embeddings` they are the plain ones.
  """
  scaling = config.rope_scaling
  assert scaling is not None
  context, width = config.max_position_embeddings, config.rope_dim
  if scaling.alpha is not None:
    return plain * scaling.alpha ** (
      -_exponents(config) * (width / (width - 2))
    )
  excess = xp.maximum(length, context) / context - 1
  growth = 1 + scaling.factor * excess
  return plain * growth ** (-_exponents(config) * (width / (width - 2)))


def amplitude(scaling: config_lib.RopeScaling | None) -> float:
  """Returns the factor on cosines and sines: a temperature.

  With `mscale` and `mscale_all_dim` it is a ratio, as in the published code of
  DeepSeek-V3; 1 where they are equal, and the temperature is then applied to
  the softmax alone (`softmax_factor`).
  """
  if scaling is None or scaling.kind not in ('yarn', 'longrope'):
    return 1.0
  if scaling.attention_factor is not None:
    return scaling.attention_factor
  if scaling.kind == 'longrope':
    context = scaling.original_max_position_embeddings
    return math.sqrt(1 + math.log(scaling.factor) / math.log(context))
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
