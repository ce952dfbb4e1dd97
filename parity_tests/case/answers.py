"""Outputs of a kernel that ran elsewhere, under our names and layouts."""

from collections.abc import Mapping, Sequence
import dataclasses
import fnmatch
import functools
import pathlib
from typing import Any, Self

import numpy as np

from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import lazy_tensors
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.case.layouts import element_map
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.parity_tests.case.layouts import names as names_lib
from hpmoe.parity_tests.case.layouts import part_layouts
from hpmoe.reference.contract import messages
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


class File(folder_lib.Folder):
  """A file of inputs in place of a case's folder: real data alone."""

  @classmethod
  def from_inputs(
    cls, path: str, direction: str, inputs: inputs_lib.LayerInputs
  ) -> Self:
    """Returns the file from which real data were read."""
    return cls(
      path=path,
      id=read_case.digest(tensor_files.read(pathlib.Path(path))[0]),
      direction=direction,
      config=inputs.config,
      policy=inputs.policy,
      data=('real',),
      facts={},
      layouts=input_files.read_layouts(path),
    )

  def data_of(self, x: np.ndarray | lazy_tensors.LazyTensor) -> str:
    """See `Folder`.

    Raises:
      tensor_files.Missing: x is not the file's.
    """
    try:
      return super().data_of(x)
    except ValueError as error:
      raise tensor_files.Missing(f'{self.path} has only real data') from error

  def _read(self, tensor: str, name: str) -> folder_lib.Parts:
    return {None: tensor_files.read(pathlib.Path(self.path))[0][tensor]}


@dataclasses.dataclass(frozen=True)
class Answer:
  """Tensors in files.

  Attributes:
    path: their folder.
    case: the case that they were computed from.
    names: the user's names and layouts of tensors.
  """

  path: str
  case: folder_lib.Folder
  names: names_lib.Names = names_lib.Names()

  def ranks(self, data: str) -> tuple[int, ...] | None:
    """Returns the ranks that have outputs, or None if all have.

    Raises:
      tensor_files.Missing: there are no outputs for that kind of data.
    """
    present = tuple(
      sorted(r for r in tensor_files.find(self.path, data) if r is not None)
    )
    all_ranks = range(self.case.config.num_ranks)
    return None if present in ((), tuple(all_ranks)) else present

  def tensors(
    self, data: str, policy: precision.PrecisionPolicy
  ) -> tuple[dict[str, np.ndarray], dict[str, 'Origin']]:
    """Returns the outputs for a kind of data, and their origins.

    Returns:
      Tensors `[R, ...]` by our names, zero for missing ranks; and the origin of
      each.

    Raises:
      tensor_files.Missing: there are none.
      ValueError: a file, a name, a shape or a dtype is wrong.
    """
    files = tensor_files.find(self.path, data)
    tensors_by_rank = {
      rank: self._rename_tensors(
        *tensor_files.read(path, self.names.raw), str(path)
      )
      for rank, path in files.items()
    }
    self._check_ranks(tensors_by_rank)
    arrays, origins = {}, {}
    for name in dict.fromkeys(
      n for part in tensors_by_rank.values() for n in part
    ):
      parts = {
        rank: part[name]
        for rank, part in tensors_by_rank.items()
        if name in part
      }
      if name not in tensors.SPECS:
        continue
      try:
        arrays[name], elements = self._undo_layout(
          name, parts, tensors_by_rank, policy
        )
      except ValueError as error:
        place = files[None] if None in parts else self.path
        raise ValueError(f'{place}: {error}') from error
      paths = {rank: str(files[rank]) for rank in parts}
      user_name = self.names.tensors.get(name, name)
      axes = elements.layout.axes
      lacks = any(part.ndim < len(axes) for part in parts.values())
      missing_axis = axes.index('R') if lacks else None
      origins[name] = Origin(user_name, paths, elements, missing_axis)
    return arrays, origins

  def notes(self, data: str) -> Mapping[str, str]:
    """Returns the metadata of a file."""
    path = next(iter(tensor_files.find(self.path, data).values()))
    return tensor_files.read(path, self.names.raw)[1]

  def recomputes(self, data: str) -> bool | None:
    """Returns the note `recomputes` of `read_case.run`; None: there is none."""
    note = self.notes(data).get('recomputes', '')
    return {'true': True, 'false': False}.get(note)

  def share(
    self, data: str, policy: precision.PrecisionPolicy
  ) -> dict[str, Any]:
    """Returns the outputs as lazy tensors.

    Raises:
      tensor_files.Missing: there are none.
    """
    files = tensor_files.find(self.path, data)
    paths = [files[None]] if None in files else [*files.values()]
    names = self._rename_tensors(*tensor_files.read(paths[0]), str(paths[0]))
    spec_names = (name for name in names if name in tensors.SPECS)
    return {
      name: self._read_lazily(name, files, policy, data) for name in spec_names
    }

  def origin(self, data: str, name: str) -> 'Origin':
    """Returns the origin of a tensor of a kind of data.

    The tensor is read only if its rows have another order.
    """
    files = tensor_files.find(self.path, data)
    layout = self._find_layout(
      name, self.case.policy
    ) or layouts_lib.own_layout(name)
    if layout.moves_rows:
      return self.tensors(data, self.case.policy)[1][name]
    path = next(iter(files.values()))
    shape = [
      *self._rename_tensors(*tensor_files.read(path), str(path))[name].shape
    ]
    missing_axis = None
    if len(shape) < len(layout.axes):
      missing_axis = layout.axes.index('R')
      shape.insert(missing_axis, self.case.config.num_ranks)
    ranked_layout = layout if None in files else layout.with_ranks
    elements = ranked_layout.map_elements(
      self.case.find_sizes(name, self.case.policy), shape=tuple(shape)
    )
    user_name = self.names.tensors.get(name, name)
    paths = {rank: str(file) for rank, file in files.items()}
    return Origin(user_name, paths, elements, missing_axis)

  def _read_lazily(
    self, name: str, files, policy, data: str
  ) -> lazy_tensors.LazyTensor:
    """Returns a tensor of the user as a lazy tensor."""
    layout = self._find_layout(name, policy)

    def part(rank: int | None, user_name: str = name) -> np.ndarray:
      rank_tensors = self._rename_tensors(
        *tensor_files.read(files[rank]), str(files[rank])
      )
      if user_name not in rank_tensors:
        raise ValueError(
          f'{files[rank]}: expected {user_name}, as of other ranks, got '
          f'{", ".join(rank_tensors)}'
        )
      return rank_tensors[user_name]

    order = None
    if layout is not None and layout.order:
      order = functools.partial(part, user_name=layout.order)
    ranks = (*files,)
    lazy = self.case.make_lazy_tensor(
      name, ranks, part, policy, data, layout, order
    )
    rows, read = self.case.config.num_rows, lazy.read
    return dataclasses.replace(
      lazy, read=lambda rank: with_rows(name, read(rank)[None], rows)[0]
    )

  def _undo_layout(
    self, name: str, parts: folder_lib.Parts, tensors_by_rank, policy
  ) -> tuple[np.ndarray, element_map.ElementMap]:
    """Returns `[R, ...]` of a tensor of the user."""
    layout = self._find_layout(name, policy)
    order = None
    if layout is not None and layout.order:
      order = {r: tensors_by_rank[r].get(layout.order) for r in parts}
      if any(order_tensor is None for order_tensor in order.values()):
        raise ValueError(
          f'{name}: expected tensor {layout.order!r} with it, got none'
        )
    restored, elements = self.case.undo_layout(
      name, parts, policy, layout, order
    )
    return with_rows(name, restored, self.case.config.num_rows), elements

  def _find_layout(
    self, name: str, policy: precision.PrecisionPolicy
  ) -> layouts_lib.Layout | None:
    layouts = {**self.case.layouts, **self.names.layouts}
    return part_layouts.find_layout(layouts, name, policy)

  def _check_ranks(
    self, parts: Mapping[int | None, Mapping[str, np.ndarray]]
  ) -> None:
    """Refuses ranks that do not fit each other.

    Raises:
      ValueError: there are too many ranks, a rank has other tensors than the
        first, or a tensor exists both for all ranks and for one.
    """
    ranks = range(self.case.config.num_ranks)
    rank_parts = {
      rank: part for rank, part in parts.items() if rank is not None
    }
    first = next(iter(rank_parts), 0)
    for rank, part in rank_parts.items():
      if rank not in ranks:
        raise ValueError(
          f'{self.path}: expected ranks 0 to {len(ranks) - 1}, got {rank}'
        )
      if {*part} != {*rank_parts[first]}:
        raise ValueError(
          f'{self.path}: rank {rank}: expected {", ".join(rank_parts[first])}, '
          'as '
          f'of rank {first}, got {", ".join(part)}'
        )
    for name in {*parts.get(None, {})} & {*rank_parts.get(first, {})}:
      raise ValueError(
        f'{self.path}: expected {name} of all ranks or of each, got both'
      )

  def _rename_tensors(
    self,
    user_tensors: Mapping[str, np.ndarray],
    notes: Mapping[str, str],
    path: str,
  ) -> dict[str, np.ndarray]:
    """Returns tensors under our names.

    Raises:
      ValueError: they belong to another case, or a name is unknown.
    """
    case_id = notes.get('case', self.case.id)
    if case_id != self.case.id:
      raise ValueError(
        f'{path}: expected outputs of case {self.case.id[:12]}, got those of '
        f'{case_id[:12]}'
      )
    renamed = {}
    own_names = {
      name: own_name for own_name, name in self.names.tensors.items()
    }
    layer_passes = (passes.FORWARD, passes.BACKWARD)
    layer = self.case.config
    outputs = {
      n
      for layer_pass in layer_passes
      for n in layer_pass.of_layer(layer).list_outputs(self.case.policy)
    }
    orders = {layer_pass.order for layer_pass in self.names.layouts.values()}
    for name, array in user_tensors.items():
      own_name = own_names.get(name, name)
      if own_name in outputs or name in orders:
        renamed[own_name] = array
      elif not any(fnmatch.fnmatchcase(name, drop) for drop in self.names.drop):
        choices = messages.name_choices(sorted(outputs), own_name)
        raise ValueError(
          f'{path}: expected tensors among {choices}, or named under [tensors] '
          f'or [drop] of --names, got {name!r}'
          f'{messages.suggest(sorted(outputs), own_name)}'
        )
    return renamed


@dataclasses.dataclass(frozen=True)
class Origin:
  """The location of a tensor in the user's files.

  Attributes:
    name: the user's name.
    files: by rank; None: of all ranks.
    elements: maps elements of our tensor to the user's.
    missing_axis: the position of a rank axis that was left out, or None.
  """

  name: str
  files: Mapping[int | None, str]
  elements: element_map.ElementMap
  missing_axis: int | None

  def in_folder(self, folder: str, new_folder: str) -> 'Origin':
    """Returns the origin with another name of its folder."""
    files = {
      r: path.replace(folder, new_folder) for r, path in self.files.items()
    }
    return dataclasses.replace(self, files=files)

  def place(self, index: element_map.Index) -> str:
    """Returns the file of elements, and their coordinates there, in words.

    Args:
      index: arrays that broadcast, one for each of our axes.
    """
    coordinates = np.broadcast_arrays(*self.elements.find_places(index))
    places = [coordinate.reshape(-1) for coordinate in coordinates]
    if None in self.files:
      return self._format_place(None, places)
    ranks, local = self.elements.split_ranks(places)
    texts = [
      self._format_place(
        int(rank), [coordinate[ranks == rank] for coordinate in local]
      )
      for rank in np.unique(ranks)
    ]
    return '; '.join(texts[:2] + ['...'] * (len(texts) > 2))

  def _format_place(
    self, rank: int | None, places: Sequence[np.ndarray]
  ) -> str:
    """Returns a file, and coordinates: '5, 128:192, 0:32:2'."""
    spans = [_span(np.unique(coordinate)) for coordinate in places]
    if self.missing_axis is not None:
      del spans[self.missing_axis]
    return f'{self.files[rank]} {self.name}[{", ".join(spans)}]'


def _span(values: np.ndarray) -> str:
  first, last = int(values[0]), int(values[-1])
  if len(values) == 1:
    return str(first)
  steps = {*np.diff(values).tolist()}
  if len(steps) > 1:
    first_values = ' '.join(map(str, values[:4].tolist()))
    return f'{{{first_values}{" ..." * (len(values) > 4)}}}'
  (step,) = steps
  return f'{first}:{last + 1}' + f':{step}' * (step > 1)


def with_rows(name: str, array: np.ndarray, rows: int) -> np.ndarray:
  """Returns `[R, N, ...]` of `[R, n, ...]`: zeros added or cut off.

  A tensor without rows, or with another number of axes, is returned unchanged.

  Raises:
    ValueError: it has more rows than N, not all zero.
  """
  axes = tensors.SPECS[name].shape.split()
  if axes[1:2] != ['N'] or array.ndim != len(axes):
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
