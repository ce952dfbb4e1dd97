"""Shared parts of the oracle's tests: seeds, x64 switch, layer inputs."""

import zlib

import jax.numpy as jnp
import numpy as np

from hpmoe.reference import numerics
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

x64 = numerics.use_x64


def generator(name: str) -> np.random.Generator:
  """Returns the random generator of the test `name`."""
  return np.random.default_rng(zlib.crc32(name.encode()))


def random_ids(
  config: config_lib.MoEConfig,
  rng: np.random.Generator,
  skew: float = 0.0,
  unused: float = 0.0,
) -> np.ndarray:
  """Returns `[R, T, K]` int32 ids; a high skew prefers the first experts.

  A slot is unused with probability `unused`, and a whole token with half of it.
  """
  shape = (config.num_ranks, config.num_tokens, config.num_experts)
  liking = rng.random(shape) - skew * np.arange(config.num_experts)
  ids = np.argsort(-liking, axis=-1)[..., : config.top_k].astype(np.int32)
  if unused:
    ids[rng.random(ids.shape) < unused] = tensors.UNUSED
    ids[rng.random(ids.shape[:2]) < unused / 2] = tensors.UNUSED
  return ids


def random_inputs(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  rng: np.random.Generator,
  skew: float = 0.0,
  integer: bool = False,
  unused: float = 0.0,
) -> dict[str, at.Array]:
  """Returns the tensors of `tensors.inputs`: normal or small integers."""
  inputs = {}
  for name in tensors.inputs(config):
    spec = tensors.SPECS[name]
    dims = spec.dims(**config.dims())
    dtype = policy.storage if spec.kind == 'storage' else 'float32'
    values = rng.integers(-3, 4, dims) if integer else rng.normal(size=dims)
    # Cast by numpy: XLA would compile a cast of each shape.
    inputs[name] = jnp.asarray(values.astype(dtype))
  inputs['topk_ids'] = jnp.asarray(random_ids(config, rng, skew, unused))
  return inputs
