"""Dumps of runs, as msprobe lays them out, that the decoder's steps compute."""

from collections.abc import Mapping
import json
import pathlib
from typing import Any

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.models.checkpoint import convert
from hpmoe.parity_tests.compare import run_steps

Tensors = dict[tuple[str, str], np.ndarray]
_DTYPE = 'float32'
TOKENS = (np.arange(24).reshape(2, 12) * 7 % 48).astype(np.int64)


def compute_run(
  config: config_lib.ModelConfig,
  params: Mapping[str, np.ndarray],
  tokens: np.ndarray = TOKENS,
  dtype: str = _DTYPE,
) -> Tensors:
  """Returns inputs and outputs of each module in a run in a dtype."""
  run = run_steps.make_run(config, {}, dtype)
  count = tokens.shape[1]
  numpy_dtype = run_steps.find_dtype(dtype)
  visible = run.nn.find_positions(config, 0, count, count, numpy_dtype, None)
  results: Tensors = {}
  tensors: Tensors = {}
  for step in run_steps.list_steps(config):
    names = run_steps.list_parameters(step, list(params))
    run = run_steps.make_run(
      config,
      {n: run_steps.to_array(params[n], dtype) for n in names},
      dtype,
    )
    arrays = [
      tokens if read.source is None else results[read.source]
      for read in step.reads
    ]
    for read, array in zip(step.reads, arrays, strict=True):
      tensors[read.slot] = array
    wide = [run_steps.to_array(array, dtype) for array in arrays]
    computed = step.compute(run, visible, wide)
    for slot, array in zip(step.results, map(np.array, computed), strict=True):
      tensors[slot] = results[slot] = array
  return tensors


def list_weights(params: Mapping[str, np.ndarray]) -> Tensors:
  """Returns parameters as modules of transformers 5 hold them."""
  tensors: Tensors = {}
  for name, array in params.items():
    path, _, last = name.rpartition('.')
    if parameters.is_of_experts(name):
      last = dict(w_gate_up='gate_up_proj', w_down='down_proj')[last]
      array = array.swapaxes(-1, -2)
    if not parameters.is_router_bias(name):
      tensors[path, f'parameters.{last}'] = array
  return tensors


def name_call(path: str, call: int = 0) -> str:
  """Returns the name of a module's call in a dump."""
  module = 'FooExperts' if path.endswith('.experts') else 'Layer'
  return f'Module.{path}.{module}.forward.{call}'


def write_dump(folder: pathlib.Path, tensors: Tensors) -> str:
  """Writes tensors as msprobe does; returns the folder."""
  data = folder / 'step0' / 'rank0' / 'dump_tensor_data'
  data.mkdir(parents=True)
  calls: dict[str, dict[str, Any]] = {}
  for (path, rest), array in tensors.items():
    name = name_call(path)
    np.save(data / f'{name}.{rest}.npy', array)
    rows = calls.setdefault(name, dict(input_args=[]))['input_args']
    rows.append(dict(data_name=f'{name}.{rest}.npy'))
  table = dict(task='tensor', level='L0', data=calls)
  (data.parent / 'dump.json').write_text(json.dumps(table))
  return str(folder)


def dump_folder(folder: pathlib.Path, model: pathlib.Path) -> str:
  """Writes the dump of a run of a folder's weights; returns its folder."""
  weights = convert.read(model)
  params = weights.load()
  run = compute_run(weights.config, params)
  return write_dump(folder, list_weights(params) | run)
