"""First values of a decoder's parameters, the same for every framework."""

import jax.numpy as jnp
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.reference.contract import stable_random


def init(
  config: config_lib.ModelConfig, seed: int = 0, dtype: str | None = None
) -> dict[str, np.ndarray]:
  """Returns the parameters of `parameters.parameter_shapes` by name.

  Norms only normalise, biases are 0; the rest is near normal with the deviation
  `config.initializer_range`.  Bits depend on the seed and on a parameter's
  name and shape alone (`stable_random`).

  Args:
    config: sizes and options.
    seed: any integer.
    dtype: of the weights; None for `config.dtype`.
  """
  shapes = parameters.parameter_shapes(config, dtype)
  return {
    name: _first(config, name, shape.shape, seed).astype(jnp.dtype(shape.dtype))
    for name, shape in shapes.items()
  }


def _first(
  config: config_lib.ModelConfig, name: str, shape: tuple[int, ...], seed: int
) -> np.ndarray:
  drawn_from = stable_random.seed_of(seed, name)
  neutral = parameters.find_neutral(config, name)
  if neutral or name.endswith('norm.weight'):
    return np.full(shape, neutral)
  if name.endswith('.dt_bias'):
    return np.ones(shape)
  if name.endswith('.A_log'):  # of decays drawn evenly, as in transformers
    return np.log((1 + stable_random.integers(drawn_from, shape, 1600)) / 100)
  if name.endswith(('bias', '.b_gate_up', '.b_down')):
    return np.zeros(shape)
  return config.initializer_range * stable_random.normal(drawn_from, shape)
