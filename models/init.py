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

  Norms are 1, biases 0; the rest is near normal with the deviation
  `config.initializer_range`.  Bits depend on the seed and on a parameter's
  name and shape alone (`stable_random`).

  Args:
    config: sizes and options.
    seed: any integer.
    dtype: of the weights; None for `config.dtype`.
  """
  shapes = parameters.parameter_shapes(config, dtype)
  return {
    name: _first(name, shape.shape, config.initializer_range, seed).astype(
      jnp.dtype(shape.dtype)
    )
    for name, shape in shapes.items()
  }


def _first(
  name: str, shape: tuple[int, ...], deviation: float, seed: int
) -> np.ndarray:
  if name.endswith('norm.weight'):
    return np.ones(shape)
  if name.endswith(('bias', '.b_gate_up', '.b_down')):
    return np.zeros(shape)
  values = stable_random.normal(stable_random.seed_of(seed, name), shape)
  return deviation * values
