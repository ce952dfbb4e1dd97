"""A case as a folder, for a kernel that runs elsewhere.

case.toml has sizes, precision, the tensors to return and a hash of each file.
The tensors are in .safetensors files, for each kind of data one of all ranks or
one per rank.  `read_case.py` beside them reads the folder anywhere.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import os
from typing import Any

import numpy as np

from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import lazy_tensors
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case.layouts import element_map
from hpmoe.parity_tests.case.layouts import exact_cast
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.parity_tests.case.layouts import part_layouts
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy
from hpmoe.reference.quantised import quantise

FORMAT = 1
TOML_NAME = 'case.toml'

# A tensor of the user by rank; None: of all ranks.
Parts = Mapping[int | None, np.ndarray]


class NoData(ValueError):
  """A case lacks that kind of data."""


@dataclasses.dataclass(frozen=True)
class Folder:
  """A folder of a case.

  Attributes:
    path: of the folder.
    id: hash of all its files.
    direction: as of `Case`.
    config: sizes.
    policy: of the real data.
    data: the kinds of data that it has, of `inputs.DATA`.
    facts: facts about the data for a report.
    layouts: the layouts of its tensors and of returned tensors that are not
      ours.
  """

  path: str
  id: str
  direction: str
  config: MoEConfig
  policy: PrecisionPolicy
  data: tuple[str, ...]
  facts: Mapping[str, object]
  layouts: Mapping[str, layouts_lib.Layout]

  def inputs(self, data: str = 'real') -> inputs_lib.LayerInputs:
    """Returns data of a kind, with the inputs of a backward pass if it has any.

    Raises:
      ValueError: there are none, or a file has changed.
    """
    table, policy = self._find_data_table(data)
    arrays: dict[str, np.ndarray] = {}
    for part in PARTS[: 1 + hasattr(table, passes.BACKWARD.name)]:
      arrays |= self._read_part(f'{data}.{part}', getattr(table, part), policy)
    arrays |= quantised_inputs.compute_values(
      policy.coded_inputs(self.config), arrays
    )
    checks.check_inputs(self.config, policy, arrays)
    return inputs_lib.LayerInputs(
      self.config, policy, arrays, self.path, self.facts, data
    )

  def share(
    self, ranks: Sequence[int], data: str = 'real'
  ) -> inputs_lib.LayerInputs:
    """Returns the data of `inputs` as lazy tensors.

    The routing of all ranks is in memory.  Only the files of `ranks` are
    checked, and a file of all ranks if rank 0 is among them.

    Raises:
      ValueError: as `inputs`.
    """
    table, policy = self._find_data_table(data)
    if policy.coded:
      raise ValueError(
        f'case: expected tensors that are not quantised in {self.path}, to be '
        f'judged in parts, got {dict(policy.coded)}'
      )
    arrays: dict[str, Any] = {}
    for part in PARTS[: 1 + hasattr(table, passes.BACKWARD.name)]:
      paths = self._paths(f'{data}.{part}')
      for (rank, path), expected in zip(
        paths.items(), getattr(table, part), strict=True
      ):
        if (rank or 0) in ranks:
          _check_hash(path, _digest_file(path), expected)
      for name in read_case.read(next(iter(paths.values())))[0]:
        arrays[name] = self._read_lazily(name, paths, policy, data)
    for name in ('topk_ids', 'topk_weights', *tensors.PLAN):
      if name in arrays:
        arrays[name] = np.asarray(arrays[name])
    names = tensors.inputs(self.config)
    checks.check_arrays(self.config, policy, arrays, names)
    for name in names:
      for rank in ranks:
        for part in arrays[name][rank]:
          checks.check_finite(f'{name} of rank {rank}', part)
    return inputs_lib.LayerInputs(
      self.config, policy, arrays, self.path, self.facts, data
    )

  def _read_lazily(
    self, name: str, paths, policy: PrecisionPolicy, data: str
  ) -> lazy_tensors.LazyTensor:
    def part(rank: int | None) -> np.ndarray:
      return read_case.read(paths[rank])[0][name]

    return self.make_lazy_tensor(name, tuple(paths), part, policy, data)

  def make_lazy_tensor(
    self,
    name: str,
    files: Sequence[int | None],
    part: Callable[[int | None], np.ndarray],
    policy: PrecisionPolicy,
    data: str,
    layout: layouts_lib.Layout | None = None,
    order: Callable[[int | None], np.ndarray] | None = None,
  ) -> lazy_tensors.LazyTensor:
    """Returns a lazy tensor of the result of `undo_layout`.

    Args:
      name: of the tensor.
      files: ranks that have files, the others are zero; None: one file of all.
      part: reads a part of the user's tensor.
      policy: has its dtype.
      data: kind of data.
      layout: None: the case's, or ours.
      order: reads the tensor that `layout.order` names.
    """
    layout = layout or part_layouts.find_layout(self.layouts, name, policy)
    shape = passes.FORWARD.find_shape(policy, name, **self.config.dims())
    dtype = storage.FORMATS.get(policy.dtype(name))
    numpy = np.dtype(np.int32) if dtype is None else np.dtype(dtype.numpy)
    if tensors.SPECS[name].role == 'codes':
      numpy = quantise.numpy_dtype(policy.dtype(name))

    def read(rank: int) -> np.ndarray:
      whole = None in files
      if not whole and rank not in files:
        return np.zeros(shape[1:], numpy)
      if layout is None:
        array = read_case.as_numpy(part(None if whole else rank))
        if whole or array.ndim == len(shape):
          array = array[rank if whole else 0]
        return exact_cast.cast_exactly(name, array, policy.dtype(name))
      alone = not (whole or (layout.is_of_tokens and layout.moves_rows))
      ranks = [rank] if alone else files
      user_parts = {file_rank: part(file_rank) for file_rank in ranks}
      orders = (
        None
        if order is None
        else {file_rank: order(file_rank) for file_rank in ranks}
      )
      return self.undo_layout(name, user_parts, policy, layout, orders)[0][rank]

    return lazy_tensors.LazyTensor(shape, numpy, read, data)

  def _find_data_table(self, data: str) -> tuple[Any, PrecisionPolicy]:
    """Returns the table of a kind of data in case.toml, and its policy."""
    case = read_case.load(self.path)
    if data not in case.data:
      raise NoData(f'the case has no {data} data (hpmoe export writes it)')
    table = case.data[data]
    return table, dataclasses.replace(self.policy, **_read_policy(table))

  def data_of(self, x: np.ndarray | lazy_tensors.LazyTensor) -> str:
    """Returns the kind of data that has this x `[R, T, D]`.

    Raises:
      ValueError: none has it.
    """
    if isinstance(x, lazy_tensors.LazyTensor):
      return x.data
    for data in self.data:
      parts = self._read('x', f'{data}.{PARTS[0]}')
      if np.array_equal(self.undo_case_layout('x', parts, self.policy), x):
        return data
    raise ValueError(f'case: expected data of {self.path}, got others')

  @functools.cached_property
  def ids(self) -> np.ndarray:
    """`[R, T, K]` int32 experts, common to all kinds of data."""
    parts = self._read('topk_ids', f'{self.data[0]}.{PARTS[0]}')
    return self.undo_case_layout('topk_ids', parts, self.policy)

  def _read(self, tensor: str, name: str) -> Parts:
    """Returns one tensor, without reading others of its file."""
    paths = self._paths(name).items()
    return {rank: read_case.read(path)[0][tensor] for rank, path in paths}

  def _paths(self, name: str) -> dict[int | None, str]:
    """Returns the file of all ranks, or the file of each."""
    whole = read_case.path_of(self.path, name)
    if os.path.exists(whole):
      return {None: whole}
    ranks = range(self.config.num_ranks)
    return {rank: read_case.path_of(self.path, name, rank) for rank in ranks}

  def undo_case_layout(
    self, name: str, parts: Parts, policy: PrecisionPolicy
  ) -> np.ndarray:
    """Returns `[R, ...]` of a tensor in the layout of this case."""
    return self.undo_layout(name, parts, policy)[0]

  def find_sizes(self, name: str, policy: PrecisionPolicy) -> dict[str, int]:
    """Returns the sizes of a tensor by the letters of its axes."""
    return part_layouts.find_sizes(name, policy, self.config.dims())

  def undo_layout(
    self,
    name: str,
    parts: Parts,
    policy: PrecisionPolicy,
    layout: layouts_lib.Layout | None = None,
    order: Parts | None = None,
  ) -> tuple[np.ndarray, element_map.ElementMap]:
    """Returns `[R, ...]` of a tensor in the user's layout.

    Args:
      name: of the tensor.
      parts: the user's tensor, of all ranks or of some; a part of one rank may
        lack the rank axis.  Missing ranks are zero in the result.
      policy: has its dtype.
      layout: None: the case's, or ours.
      order: parts of the tensor that `layout.order` names.

    Returns:
      The tensor, and a map of its elements to the user's tensor with a rank
      axis.

    Raises:
      ValueError: its shape or dtype is wrong.
    """
    layout = (
      layout
      or part_layouts.find_layout(self.layouts, name, policy)
      or layouts_lib.own_layout(name)
    )
    ranks = self.config.num_ranks
    present_ranks = (
      None if None in parts or len(parts) == ranks else tuple(parts)
    )
    if present_ranks is not None and layout.is_of_tokens and layout.moves_rows:
      raise ValueError(
        f'{name}: expected all ranks with layout {str(layout)!r}, whose rows '
        f"are on their tokens' ranks, got ranks {present_ranks}"
      )
    ranked_layout = layout if None in parts else layout.with_ranks
    arrays = {rank: read_case.as_numpy(part) for rank, part in parts.items()}
    user_tensor = layout.join_ranks(arrays, ranks)
    slots = None
    if order is not None:
      slots = layout.join_ranks(order, ranks, of_order=True)
    ids = self.ids if layout.moves_rows else None
    elements = ranked_layout.map_elements(
      self.find_sizes(name, policy), ids, slots, user_tensor.shape
    )
    restored = elements.undo(user_tensor, present_ranks)
    return exact_cast.cast_exactly(name, restored, policy.dtype(name)), elements

  def _read_part(
    self, name: str, hashes: list[str], policy: PrecisionPolicy
  ) -> dict[str, np.ndarray]:
    """Returns the tensors `[R, ...]` of a part."""
    tensors_by_rank: dict[int | None, dict[str, np.ndarray]] = {}
    paths = self._paths(name).items()
    for (rank, path), expected in zip(paths, hashes, strict=True):
      tensors_by_rank[rank] = read_case.read(path)[0]
      _check_hash(path, read_case.digest(tensors_by_rank[rank]), expected)
    first = next(iter(tensors_by_rank.values()))
    parts = {
      n: {
        rank: rank_tensors[n] for rank, rank_tensors in tensors_by_rank.items()
      }
      for n in first
    }
    return {
      n: self.undo_case_layout(n, rank_parts, policy)
      if n in tensors.IN_FILES
      else _join_ranks(rank_parts)
      for n, rank_parts in parts.items()
    }


def _join_ranks(parts: Parts) -> np.ndarray:
  """Returns `[R, ...]` of codes, which have our layout."""
  arrays = {rank: read_case.as_numpy(part) for rank, part in parts.items()}
  return arrays[None] if None in arrays else np.stack([*arrays.values()])


def _check_hash(path: str, actual: str, expected: str) -> None:
  if actual != expected:
    raise ValueError(
      f'{path}: expected the tensors that were written, with hash '
      f'{expected[:12]}, got others'
    )


def _digest_file(path: str) -> str:
  """Returns `read_case.digest` of a file, reading it in chunks."""
  total = hashlib.sha256()
  for name, array in sorted(read_case.read(path)[0].items()):
    total.update(f'{name} {array.dtype} {array.shape};'.encode())
    for first in range(0, array.nbytes, _CHUNK_BYTES):
      data = read_case.read(path)[0][name].reshape(-1).view(np.uint8)
      total.update(data[first : first + _CHUNK_BYTES].tobytes())
  return total.hexdigest()


# Bytes of a file that are read at once.
_CHUNK_BYTES = 1 << 24
# Tables of case.toml from which its id is computed, with those of data.
_HASHED_TABLES = ('layer', 'policy', 'layouts', 'returns')
PARTS = (passes.FORWARD.name, passes.BACKWARD.name)


def read(path: str | os.PathLike[str]) -> Folder:
  """Returns the case of a folder; its tensors are read on demand.

  Raises:
    ValueError: the folder is no case, or has another version.
  """
  case = read_case.load(path)
  try:
    if case.case.format != FORMAT:
      raise ValueError(
        f'format: expected {FORMAT}, got {case.case.format}: it was written by '
        f'hpmoe {case.case.hpmoe}'
      )
    _check_description(case)
    return Folder(
      str(path),
      case.case.id,
      case.case.direction,
      MoEConfig(**vars(case.layer)),
      PrecisionPolicy(**vars(case.policy)),
      tuple(case.data),
      vars(case.facts),
      layout_text.parse_all(vars(case.layouts)),
    )
  except (AttributeError, TypeError, ValueError) as error:
    raise ValueError(
      f'{path}: expected a case of `hpmoe export`, got {error}'
    ) from error


def _check_description(case) -> None:
  """Refuses a description whose hash is wrong.

  Raises:
    ValueError: it was changed.
  """
  tables = {name: vars(getattr(case, name)) for name in _HASHED_TABLES}
  data = {f'data.{name}': vars(table) for name, table in case.data.items()}
  if hash_tables(tables | data) != case.case.id:
    raise ValueError(
      f'other sizes, policy, layouts or hashes than those of case '
      f'{case.case.id[:12]}: {TOML_NAME} was changed'
    )


def _read_policy(table: object) -> dict[str, object]:
  """Returns the fields of a policy's table."""
  names = ('activation', *precision.FORM)
  return {n: v for n, v in vars(table).items() if n in names}


def hash_tables(tables: Mapping[str, Mapping[str, object]]) -> str:
  return hashlib.sha256(json.dumps(tables).encode()).hexdigest()[:32]
