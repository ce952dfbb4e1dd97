"""Tensors between processes, and from whatever a user's kernel returns.

The process of a user's candidate imports this, what it imports and
`reference.contract` of the project, and nothing else of it.
"""

from collections.abc import Mapping
import pathlib

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


def save(path: pathlib.Path, values: Mapping[str, np.ndarray]) -> None:
  """Writes tensors to a file, whole or not at all.

  Raises:
    ValueError: one has a dtype that no file has.
  """
  read_case.save(str(path), values, {})


def load(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads what `save` wrote."""
  held = read_case.read(str(path))[0]
  return {name: read_case.as_numpy(array) for name, array in held.items()}
