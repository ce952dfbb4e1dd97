"""What a kernel elsewhere answered, as tensors of ours."""

from collections.abc import Mapping
import dataclasses
import fnmatch

import numpy as np

from hpmoe.parity_tests.case import dumps
from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import names as names_lib
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


@dataclasses.dataclass(frozen=True)
class Answer:
  """Tensors in files.

  Attributes:
    path: their folder.
    case: what they were computed from.
    names: what they are called, and how laid out.
  """

  path: str
  case: folder_lib.Folder
  names: names_lib.Names = names_lib.Names()

  def ranks(self, data: str) -> tuple[int, ...] | None:
    """Returns the ranks that are there, None if all are.

    Raises:
      dumps.Missing: nothing was computed from that kind of data.
    """
    there = tuple(
      sorted(r for r in dumps.find(self.path, data) if r is not None)
    )
    every = range(self.case.config.num_ranks)
    return None if there in ((), tuple(every)) else there

  def tensors(
    self, data: str, policy: precision.PrecisionPolicy
  ) -> dict[str, np.ndarray]:
    """Returns what was computed from a kind of data: `[R, ...]` by our names.

    Of ranks that are not there it is zero.

    Raises:
      dumps.Missing: nothing was.
      ValueError: a file, a name, a shape or a dtype is wrong.
    """
    files = dumps.find(self.path, data)
    ranks = self.case.config.num_ranks if None in files else 1
    parts: dict[int | None, dict[str, np.ndarray]] = {}
    for rank, path in files.items():
      named = self._named(*dumps.read(path), str(path))
      try:
        parts[rank] = {
          name: self._ours(name, array, policy, ranks)
          for name, array in named.items()
        }
      except ValueError as error:
        raise ValueError(f'{path}: {error}') from error
    return parts[None] if None in parts else self._joined(parts)

  def _ours(
    self, name: str, array: np.ndarray, policy, ranks: int
  ) -> np.ndarray:
    """Returns `[ranks, ...]` of a tensor of theirs."""
    layout = self.names.layouts.get(name)
    ours = self.case.ours(name, array, policy, ranks, layout)
    if tensors.SPECS[name].shape.split()[1] == 'N':
      return _rows(name, ours, self.case.config.num_rows)
    return ours

  def _joined(
    self, parts: Mapping[int | None, Mapping[str, np.ndarray]]
  ) -> dict[str, np.ndarray]:
    """Returns `[R, ...]` of parts of one rank each.

    Raises:
      ValueError: there is a rank too many, or one has other tensors than the
        first.
    """
    ranks = range(self.case.config.num_ranks)
    first, *_ = parts
    for rank, part in parts.items():
      if rank not in ranks:
        raise ValueError(
          f'{self.path}: expected ranks 0 to {len(ranks) - 1}, got {rank}'
        )
      if {*part} != {*parts[first]}:
        raise ValueError(
          f'{self.path}: rank {rank}: expected {", ".join(parts[first])}, as '
          f'of rank {first}, got {", ".join(part)}'
        )
    absent = {
      name: np.zeros_like(array) for name, array in parts[first].items()
    }
    every = [parts.get(rank, absent) for rank in ranks]
    return {n: np.concatenate([one[n] for one in every]) for n in absent}

  def _named(
    self, held: Mapping[str, np.ndarray], notes: Mapping[str, str], path: str
  ) -> dict[str, np.ndarray]:
    """Returns tensors under our names.

    Raises:
      ValueError: they belong to another case, or one is unknown.
    """
    of = notes.get('case', self.case.id)
    if of != self.case.id:
      raise ValueError(
        f'{path}: expected outputs of case {self.case.id[:12]}, got those of '
        f'{of[:12]}'
      )
    found = {}
    theirs = {name: ours for ours, name in self.names.tensors.items()}
    known = {*passes.FORWARD.outputs, *passes.BACKWARD.outputs}
    for name, array in held.items():
      ours = theirs.get(name, name)
      if ours in known:
        found[ours] = array
      elif not any(fnmatch.fnmatchcase(name, drop) for drop in self.names.drop):
        raise ValueError(
          f'{path}: tensor {name!r}: expected {", ".join(sorted(known))}, or '
          'its name in the map of --names: under [tensors], or under [drop]'
        )
    return found


def _rows(name: str, array: np.ndarray, rows: int) -> np.ndarray:
  """Returns `[R, N, ...]` of `[R, n, ...]`: zeros added or cut off."""
  if array.shape[1] > rows and array[:, rows:].any():
    raise ValueError(
      f'{name}: expected at most {rows} rows of a rank, got {array.shape[1]}, '
      'not all zero'
    )
  array = array[:, :rows]
  lack = [(0, 0)] * array.ndim
  lack[1] = 0, rows - array.shape[1]
  return np.pad(array, lack) if lack[1][1] else array
