"""Runs of a small model, as dumps of several forms."""

from collections.abc import Mapping
import pathlib

import numpy as np

from hpmoe.models.checkpoint import convert
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.compare import run_testing
from hpmoe.parity_tests.compare.weights import weight_testing

Tensors = run_testing.Tensors
LAYER = 'model.layers.1'
TOKENS = np.random.default_rng(4).integers(0, 48, (4, 24)).astype(np.int64)


def write_model(
  folder: pathlib.Path, family: str = 'qwen3_moe'
) -> pathlib.Path:
  """Writes a model of two layers with eight experts; returns its folder."""
  return weight_testing.write_folder(folder, family)


def compute_run(
  model: pathlib.Path, dtype: str = 'float32', change=lambda params: None
) -> Tensors:
  """Returns a run's tensors and weights, after `change` of the weights."""
  weights = convert.read(model)
  params = weights.load()
  change(params)
  run = run_testing.compute_run(weights.config, params, TOKENS, dtype)
  own_dtype = run['model.norm', 'output.0'].dtype
  slabs = run_testing.list_weights(params)
  return {slot: array.astype(own_dtype) for slot, array in slabs.items()} | run


def write_file(path: pathlib.Path, tensors: Tensors, calls=(24,)) -> str:
  """Writes a run as one .safetensors file; returns its folder.

  Args:
    path: of the file.
    tensors: of the run.
    calls: tokens of each call that the run is cut into.
  """
  arrays: dict[str, np.ndarray] = {}
  ends = np.cumsum(calls)
  for (module, rest), array in tensors.items():
    is_weight = rest.startswith('parameters.')
    for call, end in enumerate(ends if not is_weight else ends[:1]):
      part = array
      if not is_weight:
        part = _cut_tokens(array, end - calls[call], end)
      arrays[f'{run_testing.name_call(module, call)}.{rest}'] = part
  path.parent.mkdir(parents=True, exist_ok=True)
  read_case.save(path, {n: np.array(a) for n, a in arrays.items()}, {})
  return str(path.parent)


def _cut_tokens(array: np.ndarray, begin: int, end: int) -> np.ndarray:
  """Returns some tokens of each sequence, in the shape that a module has."""
  batch, length = TOKENS.shape
  if array.shape[0] == batch * length:
    rows = array.reshape(batch, length, *array.shape[1:])[:, begin:end]
    return rows.reshape(-1, *array.shape[1:])
  return array[:, begin:end]


def read_weight(tensors: Mapping, role: str) -> np.ndarray:
  """Returns the weights of experts of the second layer, `[E, in, out]`."""
  name = dict(w_gate_up='gate_up_proj', w_down='down_proj')[role]
  return tensors[f'{LAYER}.mlp.experts', f'parameters.{name}'].swapaxes(1, 2)
