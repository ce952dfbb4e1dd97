"""The experts' weights of a dumped layer, where the dump has none."""

import re

import jax.numpy as jnp
import numpy as np

from hpmoe.models import parameters
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.parity_tests.case import read_case

Weights = weights_lib.Weights
# As the models here stack them, whatever the files do.
LAYOUTS = {'w_gate_up': 'E D 2F', 'w_down': 'E F D'}
ROLES = tuple(LAYOUTS)
_LAYER = re.compile(r'(?:.*\.)?layers\.(\d+)\..+')


def open_model(folder: str) -> Weights:
  """Returns the weights of a folder; reads only headers.

  Raises:
    ValueError: it holds no weights of a model here.
  """
  try:
    return convert.read(folder)
  except ValueError as error:
    raise ValueError(f'dump_model: {error}') from error


def read_role(
  weights: Weights, path: str, role: str, like: np.ndarray
) -> np.ndarray:
  """Returns the bits of a layer's experts, rounded to the run's dtype.

  Args:
    weights: of the model.
    path: the module's name in the run.
    role: one of `ROLES`.
    like: bits of what the layer read.

  Raises:
    ValueError: the model has no experts in that layer.
  """
  match = _LAYER.fullmatch(path)
  layer = int(match[1]) if match else -1
  name = f'{parameters.experts_prefix(weights.config, layer)}{role}'
  if name not in weights.specs:
    raise ValueError(
      f'dump_model: expected experts in the layer of {path}, got none'
    )
  is_narrow = like.dtype == read_case.BFLOAT16
  dtype = jnp.dtype('bfloat16') if is_narrow else like.dtype
  return read_case.bits_of(weights.read(name).astype(dtype))
