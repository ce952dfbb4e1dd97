"""A candidate that ran elsewhere: what it left in files.

`--case` names what it was given, a folder of `hpmoe export`, and `--outputs`
what it computed, under names and layouts of `--names`, see `case.names`.
"""

from collections.abc import Mapping
import dataclasses
import fnmatch
import functools
from typing import ClassVar, Self

import numpy as np

from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import user_candidate
from hpmoe.parity_tests.case import dumps
from hpmoe.parity_tests.case import flag as flag_lib
from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import names as names_lib
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import tensors

FLAGS = (
  flag_lib.Flag(
    'outputs',
    'path',
    'A folder of tensors that were computed elsewhere from --case: '
    'real.safetensors, .npz, .pt or a folder of .npy; docs/elsewhere.md.',
  ),
  flag_lib.Flag(
    'names',
    'names',
    'A file, names.toml, of what the tensors of --outputs are called and how '
    'they are laid out.',
  ),
)


@dataclasses.dataclass(frozen=True)
class Outputs(candidates.Candidate):
  """Tensors in files.

  Attributes:
    path: their folder.
    names: a file that says what they are called, or None.
    case: what they were computed from.
  """

  can: ClassVar[candidates.Can] = candidates.Can(orders=None, unrounds=True)
  path: str
  names: str | None = None
  case: folder_lib.Folder | None = None
  options: flow_lib.Options = flow_lib.Options()

  @property
  def name(self) -> str:  # type: ignore[override]
    """What reports call it; a name of the user's has a colon."""
    return f'outputs:{self.path}'

  @functools.cached_property
  def map(self) -> names_lib.Names:
    return names_lib.read(self.names)

  def ready(self, case, beside='') -> Self:
    """See `Candidate`."""
    super().ready(case, beside)
    if case.folder is None:
      raise ValueError(
        'outputs: expected --case beside it, the folder of what they were '
        'computed from, got none'
      )
    held = folder_lib.read(case.folder)
    dumps.find(self.path, 'real')
    names_lib.read(self.names)  # refused before what takes long
    return dataclasses.replace(self, case=held)

  def facts(self) -> dict[str, object]:
    """See `Candidate`."""
    return dict(outputs=self.path, names=self.names)

  def run(
    self, config, policy, inputs, which=passes.FORWARD, given=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`.

    Raises:
      CannotJudge: nothing was computed from this kind of data.
    """
    del given
    data = self._data(inputs)
    try:
      files = dumps.find(self.path, data)
    except dumps.Missing as error:
      raise candidates.CannotJudge(str(error)) from error
    ranks = config.num_ranks if None in files else 1
    parts = {
      rank: {
        name: self._ours(name, array, policy, ranks)
        for name, array in self._named(*dumps.read(path), str(path)).items()
      }
      for rank, path in files.items()
    }
    held = parts[None] if None in parts else self._joined(parts)
    mine = {n: a for n, a in held.items() if n in which.outputs}
    return user_candidate.check_outputs(
      self.name, config, policy, mine, which, ()
    )

  def _ours(
    self, name: str, array: np.ndarray, policy, ranks: int
  ) -> np.ndarray:
    """Returns `[ranks, ...]` of a tensor of theirs."""
    assert self.case is not None
    layout = self.map.layouts.get(name)
    ours = self.case.ours(name, array, policy, ranks, layout)
    if tensors.SPECS[name].shape.split()[1] == 'N':
      return _rows(name, ours, self.case.config.num_rows)
    return ours

  def _joined(
    self, parts: Mapping[int | None, Mapping[str, np.ndarray]]
  ) -> dict[str, np.ndarray]:
    """Returns `[R, ...]` of parts of one rank each.

    Raises:
      ValueError: a rank is missing, or has other tensors than the first.
    """
    assert self.case is not None
    ranks = range(self.case.config.num_ranks)
    if {*ranks} != {*parts}:
      raise ValueError(
        f'{self.path}: expected ranks 0 to {len(ranks) - 1}, got '
        f'{", ".join(str(rank) for rank in parts)}'
      )
    for rank in ranks:
      if {*parts[rank]} != {*parts[0]}:
        raise ValueError(
          f'{self.path}: rank {rank}: expected {", ".join(parts[0])}, as of '
          f'rank 0, got {", ".join(parts[rank])}'
        )
    return {n: np.concatenate([parts[r][n] for r in ranks]) for n in parts[0]}

  def _data(self, inputs: passes.Tensors) -> str:
    """Returns the kind of data that inputs are."""
    assert self.case is not None  # `ready`
    for data in self.case.data:
      if np.array_equal(self.case.inputs(data).arrays['x'], inputs['x']):
        return data
    raise ValueError('case: expected data of its folder, got other inputs')

  def _named(
    self, held: Mapping[str, np.ndarray], notes: Mapping[str, str], path: str
  ) -> dict[str, np.ndarray]:
    """Returns tensors under our names.

    Raises:
      ValueError: they belong to another case, or one is unknown.
    """
    assert self.case is not None
    of = notes.get('case', self.case.id)
    if of != self.case.id:
      raise ValueError(
        f'{path}: expected outputs of case {self.case.id[:12]}, got those of '
        f'{of[:12]}'
      )
    found = {}
    theirs = {name: ours for ours, name in self.map.tensors.items()}
    known = {*passes.FORWARD.outputs, *passes.BACKWARD.outputs}
    for name, array in held.items():
      ours = theirs.get(name, name)
      if ours in known:
        found[ours] = array
      elif not any(fnmatch.fnmatchcase(name, drop) for drop in self.map.drop):
        raise ValueError(
          f'{path}: tensor {name!r}: expected {", ".join(sorted(known))}, or '
          'its name in the map of --names: under [tensors], or under [drop]'
        )
    missing = [n for n in theirs if n not in held]
    if missing:
      raise ValueError(
        f'{path}: expected {missing[0]!r}, as the map says, got '
        f'{", ".join(sorted(held))}'
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
