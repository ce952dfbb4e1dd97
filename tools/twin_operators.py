"""Operators of public repositories on the twin, each beside NumPy.

twin_operators.toml has a row for each: nothing of the repositories is kept
here.  The tiling is what the operator's own host function computes.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import math
import pathlib
import string
import tomllib
import zlib

import numpy as np

from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.backend_ascend.twin.intrinsics import run_kernel

_TABLE = pathlib.Path(__file__).resolve().parent / 'twin_operators.toml'
_ERF = np.vectorize(math.erf, otypes=[float])


def _sigmoid(x: np.ndarray) -> np.ndarray:
  return 1 / (1 + np.exp(-x))


@dataclasses.dataclass(frozen=True)
class Row:
  """One operator.

  Attributes:
    repository: owner and name.
    path: its folder in the repository.
    inputs: dtype, shape and distribution of each; in brackets: a list of one.
    outputs: dtype and shape of each; empty: one like the first input.
    attributes: by name.
    formula: of the first output, in NumPy, of inputs a, b, c.
    rtol, atol: how far an element may be off.
  """

  repository: str
  path: str
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]
  attributes: Mapping[str, object]
  formula: str
  rtol: float
  atol: float

  @property
  def name(self) -> str:
    return f'{self.repository}/{self.path}'


def read() -> tuple[list[Row], dict[str, str]]:
  """Returns the operators, and each repository's commit."""
  table = tomllib.loads(_TABLE.read_text())
  commits = table.pop('commits')
  rows = [
    Row(
      repository,
      path,
      tuple(row['in']),
      tuple(row.get('out', ())),
      row.get('attributes', {}),
      row['y'],
      row.get('rtol', 1e-5),
      row.get('atol', 1e-5),
    )
    for repository, operators in table.items()
    for path, row in operators.items()
  ]
  return rows, commits


def _shape(words: Sequence[str]) -> tuple[int, ...]:
  return tuple(int(n) for n in words[1].split('x'))


def _draw(text: str, rng: np.random.Generator) -> np.ndarray:
  """Returns an input: `float32 7x304 in 0 9`, or normal without `in`."""
  words = text.strip('[]').split()
  shape = _shape(words)
  if len(words) == 2:
    return rng.standard_normal(shape).astype(words[0])
  low, high = map(float, words[3:5])
  if np.dtype(words[0]).kind == 'f':
    return rng.uniform(low, high, shape).astype(words[0])
  return rng.integers(int(low), int(high), shape).astype(words[0])


def _empty(text: str) -> object:
  words = text.strip('[]').split()
  empty = run_kernel.Empty(_shape(words), np.dtype(words[0]))
  return [empty] if text.startswith('[') else empty


def arguments(row: Row) -> tuple[list, list[np.ndarray], list]:
  """Returns a row's inputs, their arrays, and its outputs."""
  rng = np.random.default_rng(zlib.crc32(row.name.encode()))
  arrays = [_draw(text, rng) for text in row.inputs if text != '-']
  rest = iter(arrays)
  inputs = [
    None if text == '-' else [next(rest)] if text[0] == '[' else next(rest)
    for text in row.inputs
  ]
  outputs = [_empty(text) for text in row.outputs or row.inputs[:1]]
  return inputs, arrays, outputs


def expect(row: Row, arrays: Sequence[np.ndarray]) -> np.ndarray:
  """Returns what NumPy computes of a row's formula, floats in float64."""
  names = {
    letter: a.astype(np.float64) if a.dtype.kind == 'f' else a
    for letter, a in zip(string.ascii_lowercase, arrays)
  }
  functions = {'np': np, 'erf': _ERF, 's': _sigmoid}
  return np.asarray(eval(row.formula, functions | names))


def compare(row: Row, actual: np.ndarray, expected: np.ndarray) -> str:
  """Returns 'right', or how many elements differ, and by how much."""
  exact = actual.dtype.kind != 'f'
  limit = 0.0 if exact else row.atol + row.rtol * np.abs(expected)
  if actual.dtype == np.float16:
    limit = 2e-3 + 2e-3 * np.abs(expected)
  difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
  wrong = int((~(difference <= limit)).sum())
  if not wrong:
    return 'right'
  return f'wrong: {wrong} of {actual.size}, by up to {np.nanmax(difference):g}'


def _without_folders(text: str, root: pathlib.Path) -> str:
  """Returns a message without this machine's folders."""
  for folder in (root, build_kernel.make_cache_folder()):
    text = text.replace(f'{folder}/', '')
  return text


def verdict(
  row: Row, root: pathlib.Path, include: str, host: Sequence[str], **options
) -> str:
  """Returns 'right', or the first problem of a launch of a row's operator.

  Args:
    row: the operator.
    root: a checkout of its repository.
    include: headers of Ascend C.
    host: checkouts of metadef and opbase.
    **options: mode and seed of the launch.
  """
  inputs, arrays, outputs = arguments(row)
  try:
    op = run_kernel.Operator(root / row.path, include, host=tuple(host))
    results = op(*inputs, *outputs, attributes=row.attributes, **options)
  except run_kernel.FindingsError as report:
    return _without_folders(report.findings[0], root)
  except ValueError as error:
    text = _without_folders(' '.join(str(error).split()), root)
    return f'refused: {text[:300]}'
  actual = results[len(arrays)]
  return compare(row, actual, expect(row, arrays))


def select(names: Sequence[str]) -> Iterator[Row]:
  """Yields rows whose name ends like one of `names`; none: all."""
  for row in read()[0]:
    if not names or row.name.endswith(tuple(names)):
      yield row
