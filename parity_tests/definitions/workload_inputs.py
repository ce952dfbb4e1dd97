"""The inputs of a workload: drawn, read or given as numbers.

`random` inputs are drawn as FlashInfer-Bench draws them: normal numbers, those
of 8 bits cut off at 2 either way.  The values are not its: torch's generator
differs from numpy's.  It draws no scalars; `_choose_scalar` says what they are.
"""

from collections.abc import Mapping
import pathlib
import statistics
from typing import Any

import ml_dtypes
import numpy as np

from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.definitions import definition as definition_lib
from hpmoe.reference.contract import stable_random

Inputs = dict[str, Any]
_CUT_OFF = 2.0
# A routed scaling factor.
_FACTOR = 2.5
_DRAWN_AT_ONCE = 1 << 20


def make_inputs(
  definition: definition_lib.Definition,
  workload: definition_lib.Workload,
  seed: int = 0,
) -> Inputs:
  """Returns every input by name: arrays, and numbers for scalars.

  Raises:
    ValueError: a file, a shape or a dtype is not as the definition says.
  """
  inputs: Inputs = {}
  for spec in definition.inputs:
    row = workload.inputs.get(spec.name, {'type': 'random'})
    shape = definition.shape(spec, workload)
    if row['type'] == 'scalar':
      inputs[spec.name] = row['value']
    elif row['type'] == 'safetensors':
      inputs[spec.name] = _read(spec, shape, row, workload.root)
    elif row['type'] == 'random':
      inputs[spec.name] = (
        _choose_scalar(definition, spec)
        if shape is None
        else _draw(spec, shape, seed)
      )
    else:
      raise ValueError(
        f'workload {workload.uuid}: expected type random, scalar or '
        f'safetensors of {spec.name}, got {row["type"]!r}'
      )
  return inputs


def numpy_dtype(name: str) -> np.dtype:
  """Returns numpy's dtype of a definition's."""
  return np.dtype(getattr(ml_dtypes, name, name))


def change_tokens(
  token_inputs: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns inputs of the same shapes with other tokens: half of them moved.

  The first elements stay, so that who knows data by a few of them is misled.
  """
  other_inputs = dict(token_inputs)
  for name, array in token_inputs.items():
    if array.size > 1:
      flat = array.reshape(-1).copy()
      half = flat.size // 2
      flat[half:] = np.roll(flat[half:], 1)
      # A tensor whose second half is one value changes its sign.
      if np.array_equal(flat, array.reshape(-1)):
        flat[half:] = -flat[half:]
      other_inputs[name] = flat.reshape(array.shape)
  return other_inputs


def _choose_scalar(
  definition: definition_lib.Definition, spec: definition_lib.TensorSpec
) -> int | float:
  """Returns a number with which a kernel that ignores it is wrong.

  An integer is the first expert of a rank: that of the second rank, if there is
  one.  Others are factors.
  """
  if not spec.dtype.startswith(('int', 'uint', 'bool')):
    return _FACTOR
  experts = definition.axes.get('num_experts') or 0
  local = definition.axes.get('num_local_experts') or experts
  return local if 2 * local <= experts else 0


def _draw(
  spec: definition_lib.TensorSpec, shape: tuple[int, ...], seed: int
) -> Any:
  if spec.dtype.startswith(('int', 'uint', 'bool')):
    raise ValueError(
      f'workload: expected {spec.name} as safetensors, got random: random '
      'integers are not expert ids'
    )
  rng = np.random.default_rng(stable_random.seed_of(spec.name, seed))
  if spec.dtype.startswith('float8'):
    return _draw_codes(rng, shape, numpy_dtype(spec.dtype))
  return rng.standard_normal(shape, np.float32).astype(numpy_dtype(spec.dtype))


def _draw_codes(
  rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
  """Returns normal numbers of 8 bits, cut off, by a table of quantiles.

  Sixteen random bits choose one: a layer has billions of codes.
  """
  shares = (np.arange(1 << 16) + 0.5) / (1 << 16)
  normal = statistics.NormalDist()
  quantiles = np.array([normal.inv_cdf(share) for share in shares])
  table = np.clip(quantiles, -_CUT_OFF, _CUT_OFF).astype(dtype).view(np.uint8)
  codes = np.empty(int(np.prod(shape)), np.uint8)
  for start in range(0, codes.size, _DRAWN_AT_ONCE):
    part = codes[start : start + _DRAWN_AT_ONCE]
    part[...] = table[rng.integers(1 << 16, size=part.size, dtype=np.uint16)]
  return codes.view(dtype).reshape(shape)


def _read(
  spec: definition_lib.TensorSpec,
  shape: tuple[int, ...] | None,
  row: Mapping[str, Any],
  root: pathlib.Path,
) -> np.ndarray:
  path = root / row['path']
  try:
    tensors = read_case.read(str(path))[0]
  except (OSError, ValueError) as error:
    raise ValueError(
      f'workload: expected a safetensors file of {spec.name}, got {path}'
    ) from error
  if row['tensor_key'] not in tensors:
    raise ValueError(
      f'{path}: expected tensor {row["tensor_key"]!r}, got '
      f'{sorted(tensors)[:6]}'
    )
  array = read_case.as_numpy(tensors[row['tensor_key']])
  if array.shape != shape or str(array.dtype) != spec.dtype:
    raise ValueError(
      f'{path}: {row["tensor_key"]}: expected {spec.dtype} {list(shape or ())},'
      f' got {array.dtype} {list(array.shape)}'
    )
  return array
