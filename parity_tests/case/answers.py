"""What a kernel elsewhere answered, as tensors of ours."""

from collections.abc import Mapping, Sequence
import dataclasses
import fnmatch
import functools
import pathlib
from typing import Any, Self

import numpy as np

from hpmoe.parity_tests.case import dumps
from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import lazy_tensors
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case.layouts import element_map
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.parity_tests.case.layouts import names as names_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


class File(folder_lib.Folder):
  """A file of inputs in a case's place: real data alone."""

  @classmethod
  def of(cls, path: str, direction: str, made: inputs_lib.LayerInputs) -> Self:
    """Returns the file that real data were read from."""
    return cls(
      path=path,
      id=read_case.digest(dumps.read(pathlib.Path(path))[0]),
      direction=direction,
      config=made.config,
      policy=made.policy,
      data=('real',),
      facts={},
      layouts=input_files.read_layouts(path),
    )

  def data_of(self, x: np.ndarray | lazy_tensors.Slabs) -> str:
    """See `Folder`.

    Raises:
      dumps.Missing: x is not of the file.
    """
    try:
      return super().data_of(x)
    except ValueError as error:
      raise dumps.Missing(f'{self.path} has real data alone') from error

  def _read(self, tensor: str, name: str) -> folder_lib.Parts:
    return {None: dumps.read(pathlib.Path(self.path))[0][tensor]}


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
  ) -> tuple[dict[str, np.ndarray], dict[str, 'Origin']]:
    """Returns what was computed from a kind of data, and where it is.

    Returns:
      Tensors `[R, ...]` by our names, zero for ranks that are not there; and
      where each came from.

    Raises:
      dumps.Missing: nothing was.
      ValueError: a file, a name, a shape or a dtype is wrong.
    """
    files = dumps.find(self.path, data)
    held = {
      rank: self._named(*dumps.read(path, self.names.raw), str(path))
      for rank, path in files.items()
    }
    self._check_ranks(held)
    found, origins = {}, {}
    for name in dict.fromkeys(n for part in held.values() for n in part):
      parts = {rank: part[name] for rank, part in held.items() if name in part}
      if name not in tensors.SPECS:
        continue
      try:
        found[name], placed = self._ours(name, parts, held, policy)
      except ValueError as error:
        place = files[None] if None in parts else self.path
        raise ValueError(f'{place}: {error}') from error
      there = {rank: str(files[rank]) for rank in parts}
      called = self.names.tensors.get(name, name)
      axes = placed.layout.axes
      lacks = any(part.ndim < len(axes) for part in parts.values())
      gone = axes.index('R') if lacks else None
      origins[name] = Origin(called, there, placed, gone)
    return found, origins

  def notes(self, data: str) -> Mapping[str, str]:
    """Returns what a file says beside its tensors."""
    path = next(iter(dumps.find(self.path, data).values()))
    return dumps.read(path, self.names.raw)[1]

  def share(
    self, data: str, policy: precision.PrecisionPolicy
  ) -> dict[str, Any]:
    """Returns what `tensors` does, to be read where it is used.

    Raises:
      dumps.Missing: nothing was.
    """
    files = dumps.find(self.path, data)
    some = [files[None]] if None in files else [*files.values()]
    names = self._named(*dumps.read(some[0]), str(some[0]))
    known = (name for name in names if name in tensors.SPECS)
    return {name: self._slabs(name, files, policy, data) for name in known}

  def origin(self, data: str, name: str) -> 'Origin':
    """Returns where a tensor of a kind of data is; little of it is read.

    Where rows are in another order, all of it is.
    """
    files = dumps.find(self.path, data)
    layout = (
      self.names.layouts.get(name)
      or self.case.layouts.get(name)
      or layouts_lib.own_layout(name)
    )
    if layout.moves_rows:
      return self.tensors(data, self.case.policy)[1][name]
    path = next(iter(files.values()))
    shape = [*self._named(*dumps.read(path), str(path))[name].shape]
    gone = None
    if len(shape) < len(layout.axes):
      gone = layout.axes.index('R')
      shape.insert(gone, self.case.config.num_ranks)
    of = layout if None in files else layout.with_ranks
    placed = of.placed(self.case.config.dims(), shape=tuple(shape))
    called = self.names.tensors.get(name, name)
    there = {rank: str(one) for rank, one in files.items()}
    return Origin(called, there, placed, gone)

  def _slabs(self, name: str, files, policy, data: str) -> lazy_tensors.Slabs:
    """Returns a tensor of theirs, read rank by rank."""
    layout = self.names.layouts.get(name) or self.case.layouts.get(name)

    def part(rank: int | None, called: str = name) -> np.ndarray:
      held = self._named(*dumps.read(files[rank]), str(files[rank]))
      if called not in held:
        raise ValueError(
          f'{files[rank]}: expected {called}, as of other ranks, got '
          f'{", ".join(held)}'
        )
      return held[called]

    order = None
    if layout is not None and layout.order:
      order = functools.partial(part, called=layout.order)
    there = (*files,)
    of = self.case.slabs(name, there, part, policy, data, layout, order)
    rows, read = self.case.config.num_rows, of.read
    return dataclasses.replace(
      of, read=lambda rank: with_rows(name, read(rank)[None], rows)[0]
    )

  def _ours(
    self, name: str, parts: folder_lib.Parts, held, policy
  ) -> tuple[np.ndarray, element_map.Placed]:
    """Returns `[R, ...]` of a tensor of theirs."""
    layout = self.names.layouts.get(name) or self.case.layouts.get(name)
    order = None
    if layout is not None and layout.order:
      order = {r: held[r].get(layout.order) for r in parts}
      if any(one is None for one in order.values()):
        raise ValueError(
          f'{name}: expected tensor {layout.order!r} beside it, got none'
        )
    ours, placed = self.case.taken(name, parts, policy, layout, order)
    return with_rows(name, ours, self.case.config.num_rows), placed

  def _check_ranks(
    self, parts: Mapping[int | None, Mapping[str, np.ndarray]]
  ) -> None:
    """Refuses ranks that do not go together.

    Raises:
      ValueError: there is a rank too many, one has other tensors than the
        first, or a tensor is there of all ranks and of one.
    """
    ranks = range(self.case.config.num_ranks)
    each = {rank: part for rank, part in parts.items() if rank is not None}
    first = next(iter(each), 0)
    for rank, part in each.items():
      if rank not in ranks:
        raise ValueError(
          f'{self.path}: expected ranks 0 to {len(ranks) - 1}, got {rank}'
        )
      if {*part} != {*each[first]}:
        raise ValueError(
          f'{self.path}: rank {rank}: expected {", ".join(each[first])}, as '
          f'of rank {first}, got {", ".join(part)}'
        )
    for name in {*parts.get(None, {})} & {*each.get(first, {})}:
      raise ValueError(
        f'{self.path}: expected {name} of all ranks or of each, got both'
      )

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
    both = (passes.FORWARD, passes.BACKWARD)
    layer = self.case.config
    known = {n for one in both for n in one.of_layer(layer).outputs}
    orders = {one.order for one in self.names.layouts.values()}
    for name, array in held.items():
      ours = theirs.get(name, name)
      if ours in known or name in orders:
        found[ours] = array
      elif not any(fnmatch.fnmatchcase(name, drop) for drop in self.names.drop):
        raise ValueError(
          f'{path}: tensor {name!r}: expected {", ".join(sorted(known))}, or '
          'its name in the map of --names: under [tensors], or under [drop]'
        )
    return found


@dataclasses.dataclass(frozen=True)
class Origin:
  """Where a tensor is, in the words of who wrote it.

  Attributes:
    name: theirs.
    files: of all ranks (None), or of each.
    placed: where elements of ours are.
    gone: which axis is of ranks alone and was left out, or None.
  """

  name: str
  files: Mapping[int | None, str]
  placed: element_map.Placed
  gone: int | None

  def but_for(self, folder: str, called: str) -> 'Origin':
    """Returns the same in a folder of another name."""
    files = {r: one.replace(folder, called) for r, one in self.files.items()}
    return dataclasses.replace(self, files=files)

  def place(self, index: element_map.Index) -> str:
    """Returns where elements of ours are: a file, and coordinates there.

    Args:
      index: arrays that broadcast, one for each axis of ours.
    """
    found = np.broadcast_arrays(*self.placed.there(index))
    there = [one.reshape(-1) for one in found]
    if None in self.files:
      return self._told(None, there)
    ranks, local = self.placed.of_rank(there)
    told = [
      self._told(int(rank), [one[ranks == rank] for one in local])
      for rank in np.unique(ranks)
    ]
    return '; '.join(told[:2] + ['...'] * (len(told) > 2))

  def _told(self, rank: int | None, there: Sequence[np.ndarray]) -> str:
    """Returns a file, and coordinates: '5, 128:192, 0:32:2'."""
    spans = [_span(np.unique(one)) for one in there]
    if self.gone is not None:
      del spans[self.gone]
    return f'{self.files[rank]} {self.name}[{", ".join(spans)}]'


def _span(values: np.ndarray) -> str:
  first, last = int(values[0]), int(values[-1])
  if len(values) == 1:
    return str(first)
  steps = {*np.diff(values).tolist()}
  if len(steps) > 1:
    some = ' '.join(map(str, values[:4].tolist()))
    return f'{{{some}{" ..." * (len(values) > 4)}}}'
  (step,) = steps
  return f'{first}:{last + 1}' + f':{step}' * (step > 1)


def with_rows(name: str, array: np.ndarray, rows: int) -> np.ndarray:
  """Returns `[R, N, ...]` of `[R, n, ...]`: zeros added or cut off.

  A tensor that has no rows, or not as many axes, is returned as it is.

  Raises:
    ValueError: it has more rows than N, not all zero.
  """
  axes = tensors.SPECS[name].shape.split()
  if axes[1] != 'N' or array.ndim != len(axes):
    return array
  if array.shape[1] > rows and array[:, rows:].any():
    raise ValueError(
      f'{name}: expected at most {rows} rows of a rank, got {array.shape[1]}, '
      'not all zero'
    )
  array = array[:, :rows]
  lack = [(0, 0)] * array.ndim
  lack[1] = 0, rows - array.shape[1]
  return np.pad(array, lack) if lack[1][1] else array
