"""A case as a folder: what a kernel elsewhere reads, and what it is asked for.

case.toml holds sizes, precision, what to return and a hash of each file; the
tensors are in .safetensors files, of all ranks or one of each, for each kind of
data; `read_case.py` beside them reads it anywhere.
"""

from collections.abc import Mapping
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np

from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import layouts as layouts_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy

FORMAT = 1
_TOML = 'case.toml'


@dataclasses.dataclass(frozen=True)
class Folder:
  """A case that was written.

  Attributes:
    path: where it lies.
    id: hash of all its files.
    direction: as of `Case`.
    config: sizes.
    policy: of the real data.
    data: names of `inputs.DATA` that are there.
    facts: what a report should say of the data.
    layouts: how its tensors and what is returned are laid out, where that is
      not as ours.
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
    """Returns data of a kind, with what a backward pass reads if it has that.

    Raises:
      ValueError: it is not there, or is not what was written.
    """
    case = read_case.load(self.path)
    if data not in case.data:
      raise ValueError(
        f'case: expected {data} data in {self.path}, got only '
        f'{", ".join(self.data)}'
      )
    table = case.data[data]
    policy = dataclasses.replace(self.policy, activation=table.activation)
    arrays: dict[str, np.ndarray] = {}
    for part in _PARTS[: 1 + hasattr(table, passes.BACKWARD.name)]:
      arrays |= self._part(f'{data}.{part}', getattr(table, part), policy)
    checks.check_inputs(self.config, policy, arrays)
    return inputs_lib.LayerInputs(
      self.config, policy, arrays, self.path, self.facts, data
    )

  def data_of(self, x: np.ndarray) -> str:
    """Returns the kind of data that x `[R, T, D]` is of.

    Raises:
      ValueError: it is of none.
    """
    for data in self.data:
      # Of one file of many only x is read.
      for rank, path in self._paths(f'{data}.{_PARTS[0]}').items():
        ranks = self.config.num_ranks if rank is None else 1
        held = read_case.read(path)[0]['x']
        mine = x if rank is None else x[rank : rank + 1]
        if not np.array_equal(self.ours('x', held, self.policy, ranks), mine):
          break
      else:
        return data
    raise ValueError(f'case: expected data of {self.path}, got others')

  def _paths(self, name: str) -> dict[int | None, str]:
    """Returns the file of all ranks, or those of each."""
    whole = read_case.path_of(self.path, name)
    if os.path.exists(whole):
      return {None: whole}
    ranks = range(self.config.num_ranks)
    return {rank: read_case.path_of(self.path, name, rank) for rank in ranks}

  def ours(
    self,
    name: str,
    array: np.ndarray,
    policy: PrecisionPolicy,
    ranks: int,
    layout: layouts_lib.Layout | None = None,
  ) -> np.ndarray:
    """Returns `[ranks, ...]` of a tensor that was laid out as theirs.

    Args:
      name: of the tensor.
      array: theirs; of one rank its axis may be missing.
      policy: its dtype.
      ranks: R, or 1.
      layout: None: that of the case, or ours.

    Raises:
      ValueError: its shape or dtype cannot be that of the tensor.
    """
    sizes = {**self.config.dims(), '2F': 2 * self.config.d_ff, 'R': ranks}
    array = read_case.as_numpy(array)
    layout = layout or self.layouts.get(name)
    if layout is not None:
      array = layout.undo(layout.with_rank(array, ranks), sizes)
    elif ranks == 1 and array.ndim < len(tensors.SPECS[name].shape.split()):
      array = array[None]
    return layouts_lib.as_stored(name, array, policy.dtype(name))

  def _part(
    self, name: str, hashes: list[str], policy: PrecisionPolicy
  ) -> dict[str, np.ndarray]:
    """Returns the tensors `[R, ...]` of a part."""
    held = []
    paths = self._paths(name).items()
    for (rank, path), expected in zip(paths, hashes, strict=True):
      ranks = self.config.num_ranks if rank is None else 1
      found = read_case.read(path)[0]
      if read_case.digest(found) != expected:
        raise ValueError(
          f'{path}: expected the tensors that were written, with hash '
          f'{expected[:12]}, got others'
        )
      held.append({n: self.ours(n, a, policy, ranks) for n, a in found.items()})
    if len(held) == 1:
      return held[0]
    return {n: np.concatenate([one[n] for one in held]) for n in held[0]}


# Tables of case.toml that its id is made of, with those of data.
_TOLD = ('layer', 'policy', 'layouts', 'returns')
_PARTS = (passes.FORWARD.name, passes.BACKWARD.name)


def read(path: str | os.PathLike[str]) -> Folder:
  """Returns a case; its tensors are read when they are asked for.

  Raises:
    ValueError: the folder is none, or of another version.
  """
  case = read_case.load(path)
  try:
    if case.case.format != FORMAT:
      raise ValueError(
        f'format: expected {FORMAT}, got {case.case.format}: it was written by '
        f'hpmoe {case.case.hpmoe}'
      )
    _check_id(case)
    return Folder(
      str(path),
      case.case.id,
      case.case.direction,
      MoEConfig(**vars(case.layer)),
      PrecisionPolicy(**vars(case.policy)),
      tuple(case.data),
      vars(case.facts),
      layouts_lib.of(vars(case.layouts)),
    )
  except (AttributeError, TypeError, ValueError) as error:
    raise ValueError(
      f'{path}: expected a case of `hpmoe export`, got {error}'
    ) from error


def _check_id(case) -> None:
  """Refuses a description that is not the one that was written.

  Raises:
    ValueError: it was changed.
  """
  told = {name: vars(getattr(case, name)) for name in _TOLD}
  data = {f'data.{name}': vars(table) for name, table in case.data.items()}
  if _id(told | data) != case.case.id:
    raise ValueError(
      f'other sizes, policy, layouts or hashes than those of case '
      f'{case.case.id[:12]}: {_TOML} was changed'
    )


def write(
  path: str | os.PathLike[str],
  direction: str,
  made: Mapping[str, inputs_lib.LayerInputs],
  per_rank: bool = False,
  layouts: Mapping[str, layouts_lib.Layout] | None = None,
  **facts: object,
) -> Folder:
  """Writes a case.

  Args:
    path: of a folder that is empty or not there.
    direction: one of `passes.DIRECTIONS`.
    made: data by kind, the real one among it, of the same routing; with what a
      backward pass reads, if there is one.
    per_rank: whether each rank has files of its own.
    layouts: how tensors are to be laid out, by name.
    **facts: what reports should say beside what the data say.

  Raises:
    ValueError: the folder has something in it.
  """
  path = pathlib.Path(path)
  if path.exists() and (not path.is_dir() or any(path.iterdir())):
    raise ValueError(f'out: expected a folder that is empty, got {str(path)!r}')
  path.mkdir(parents=True, exist_ok=True)
  real = made['real']
  tables: dict[str, Mapping[str, object]] = {}
  for data, one in made.items():
    tables[f'data.{data}'] = dict(activation=one.policy.activation) | {
      part: _write_part(path, f'{data}.{part}', held, per_rank, layouts or {})
      for part, held in _parts(one).items()
    }
  told = dict(
    layer=dataclasses.asdict(real.config),
    policy=dataclasses.asdict(real.policy),
    layouts={name: str(one) for name, one in (layouts or {}).items()},
    returns=_returns(direction, real.policy, layouts or {}),
  )
  head = dict(format=FORMAT, id=_id(told | tables), direction=direction)
  tables = (
    dict(case=head | _versions()) | told | dict(facts={**real.facts, **facts})
  ) | tables
  shutil.copy(read_case.__file__, path / 'read_case.py')
  # Last: where it is, all the others are whole.
  (path / _TOML).write_text(_toml(tables), encoding='utf-8')
  return read(path)


def _parts(made: inputs_lib.LayerInputs) -> dict[str, dict[str, np.ndarray]]:
  """Returns what the forward pass reads, and what the backward adds."""
  forward = {n: made.arrays[n] for n in tensors.INPUTS}
  rest = {n: a for n, a in made.arrays.items() if n not in forward}
  parts = dict(zip(_PARTS, (forward, rest)))
  return {part: held for part, held in parts.items() if held}


def _write_part(
  path: pathlib.Path,
  name: str,
  held: Mapping[str, np.ndarray],
  per_rank: bool,
  layouts: Mapping[str, layouts_lib.Layout],
) -> list[str]:
  """Writes tensors `[R, ...]`; returns the hash of each file."""
  ranks = range(len(next(iter(held.values())))) if per_rank else (None,)
  hashes = []
  for rank in ranks:
    of = {n: _theirs(a, rank, layouts.get(n)) for n, a in held.items()}
    read_case.save(read_case.path_of(str(path), name, rank), of, {})
    hashes.append(read_case.digest(of))
  return hashes


def _theirs(
  array: np.ndarray, rank: int | None, layout: layouts_lib.Layout | None
) -> np.ndarray:
  """Returns a tensor `[R, ...]` as it is written, of a rank or of all."""
  if layout is not None:
    return layout.apply(array if rank is None else array[rank : rank + 1])
  return array if rank is None else array[rank]


def _id(tables: Mapping[str, Mapping[str, object]]) -> str:
  return hashlib.sha256(json.dumps(tables).encode()).hexdigest()[:32]


def _versions() -> dict[str, str]:
  from hpmoe.parity_tests.kept import versions

  return dict(hpmoe=versions.of('hyperparallel-moe'))


def _returns(
  direction: str,
  policy: PrecisionPolicy,
  layouts: Mapping[str, layouts_lib.Layout],
) -> dict[str, str]:
  """Returns axes and dtype of what may be returned, by name."""
  return {
    name: f'{layouts.get(name, tensors.SPECS[name].shape)}, '
    f'{policy.dtype(name)}'
    for which in passes.of(direction)
    for name in which.outputs
  }


def _toml(tables: Mapping[str, Mapping[str, object]]) -> str:
  lines = [
    '# A layer to compute: `read_case.py` reads it and writes what is returned.'
  ]
  for table, values in tables.items():
    lines += ['', f'[{table}]']
    lines += [f'{n} = {_value(v)}' for n, v in values.items() if v is not None]
  return '\n'.join(lines) + '\n'


def _value(value: Any) -> str:
  """Returns a value that TOML and JSON write alike."""
  if isinstance(value, Mapping):
    value = ', '.join(f'{n}={v}' for n, v in value.items())
  return json.dumps(value, default=float, allow_nan=False)
