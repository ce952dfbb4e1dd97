"""Tensors between processes, and from whatever a user's kernel returns.

The process of a user's candidate imports this, what it imports and
`reference.contract` of the project, and nothing else of it.
"""

from collections.abc import Mapping
import json
import pathlib

import ml_dtypes
import numpy as np

from hpmoe.parity_tests.case import read_case


def as_array(value: object) -> np.ndarray:
  """Returns a tensor of numpy, JAX, torch or another framework as numpy's.

  Raises:
    Exception: whatever the framework raises.
    TypeError: it is no array of numbers.
  """
  return read_case.as_numpy(read_case.bits_of(value))


def spoilt(before: Mapping[str, np.ndarray], after: Mapping) -> str:
  """Returns what is wrong with inputs that a call was given, or ''."""
  for name, array in before.items():
    if array.tobytes() != after[name].tobytes():
      return (
        f'{name}: expected an input as it was before the call, got other '
        'values: it was written to; work on a copy'
      )
  return ''


def save(folder: pathlib.Path, values: Mapping[str, np.ndarray]) -> None:
  """Writes tensors as .npy, what numpy lacks as its bits, dtypes beside."""
  folder.mkdir()
  dtypes = {}
  for name, value in values.items():
    dtypes[name] = str(value.dtype)
    if value.dtype.kind == 'V':  # bfloat16, or float8
      value = np.ascontiguousarray(value).view(f'u{value.itemsize}')
    np.save(folder / f'{name}.npy', value, allow_pickle=False)
  # Last: where it is, all the others are whole.
  (folder / 'dtypes.json').write_text(json.dumps(dtypes))


def load(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads what `save` wrote."""
  dtypes = json.loads((folder / 'dtypes.json').read_text())
  values = {}
  for name, dtype in dtypes.items():
    word = np.load(folder / f'{name}.npy', allow_pickle=False)
    values[name] = word.view(getattr(ml_dtypes, dtype, dtype))
  return values
