"""Writes a case as a folder, as `folder` reads it."""

from collections.abc import Mapping
import dataclasses
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np

from hpmoe.parity_tests.cache import versions
from hpmoe.parity_tests.case import codes
from hpmoe.parity_tests.case import folder
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy


def write(
  path: str | os.PathLike[str],
  direction: str,
  made: Mapping[str, inputs_lib.LayerInputs],
  per_rank: bool = False,
  layouts: Mapping[str, layouts_lib.Layout] | None = None,
  **facts: object,
) -> folder.Folder:
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
  for one in made.values():
    tensors.require_layer(one.config, 'to write as a case')
  path = pathlib.Path(path)
  if path.exists() and (not path.is_dir() or any(path.iterdir())):
    raise ValueError(f'out: expected a folder that is empty, got {str(path)!r}')
  path.mkdir(parents=True, exist_ok=True)
  real = made['real']
  # Where rows will be is not known of what has not run: it reads them as ours.
  layouts = {n: one for n, one in (layouts or {}).items() if not one.order}
  tables: dict[str, Mapping[str, object]] = {}
  for data, one in made.items():
    tables[f'data.{data}'] = _differing_policy(one.policy, real.policy) | {
      part: _write_part(path, f'{data}.{part}', held, real, per_rank, layouts)
      for part, held in _split_passes(one).items()
    }
  told: dict[str, Mapping[str, object]] = dict(
    layer=_select_fields(real.config),
    policy=_select_fields(real.policy),
    layouts={name: str(one) for name, one in layouts.items()},
    returns=_list_returns(direction, real, layouts),
  )
  version = dict(hpmoe=versions.installed_version('hyperparallel-moe'))
  head = dict(
    format=folder.FORMAT,
    id=folder.hash_tables(told | tables),
    direction=direction,
  )
  tables = (
    dict(case=head | version) | told | dict(facts={**real.facts, **facts})
  ) | tables
  shutil.copy(read_case.__file__, path / 'read_case.py')
  # Last: where it is, all the others are whole.
  (path / folder.TOML_NAME).write_text(_format_toml(tables), encoding='utf-8')
  return folder.read(path)


def _select_fields(of: MoEConfig | PrecisionPolicy) -> dict[str, object]:
  """Returns fields; those that came later only where a layer has the part."""
  fields = dataclasses.asdict(of)
  later = (
    'bias',
    'd_shared',
    'points',
    *precision.SUM_ORDERS,
    'quantised',
    'rows',
    *precision.FORM,
  )
  usual = {n: getattr(type(of), n) for n in later if n in fields}
  return {n: v for n, v in fields.items() if n not in usual or v != usual[n]}


def _differing_policy(
  mine: PrecisionPolicy, real: PrecisionPolicy
) -> dict[str, object]:
  """Returns what a kind of data has for an activation."""
  form = {n: getattr(mine, n) for n in precision.FORM}
  other = {n: v for n, v in form.items() if v != getattr(real, n)}
  return dict(activation=mine.activation) | other


def _split_passes(
  made: inputs_lib.LayerInputs,
) -> dict[str, dict[str, np.ndarray]]:
  """Returns what the forward pass reads, and what the backward adds."""
  held = codes.given(made.policy, made.arrays)
  names = passes.FORWARD.reads(made.config, made.policy)
  forward = {n: held[n] for n in names if n in held}
  rest = {n: a for n, a in held.items() if n not in forward}
  parts = dict(zip(folder.PARTS, (forward, rest)))
  return {part: held for part, held in parts.items() if held}


def _write_part(
  path: pathlib.Path,
  name: str,
  held: Mapping[str, np.ndarray],
  real: inputs_lib.LayerInputs,
  per_rank: bool,
  layouts: Mapping[str, layouts_lib.Layout],
) -> list[str]:
  """Writes tensors `[R, ...]`; returns the hash of each file."""
  of = real.config.dims(), real.arrays['topk_ids']
  theirs: dict[str, Any] = {}
  for n, array in held.items():
    if n not in layouts:
      # Made or read rank by rank, it is never held whole.
      theirs[n] = array if per_rank else [array]
    elif per_rank:
      theirs[n] = layouts[n].split(array, *of)
    else:
      theirs[n] = [layouts[n].apply(array, *of)]
  hashes = []
  for rank in range(real.config.num_ranks) if per_rank else (None,):
    mine = {n: parts[rank or 0] for n, parts in theirs.items()}
    read_case.save(read_case.path_of(str(path), name, rank), mine, {})
    hashes.append(read_case.digest(mine))
  return hashes


def _list_returns(
  direction: str,
  made: inputs_lib.LayerInputs,
  layouts: Mapping[str, layouts_lib.Layout],
) -> dict[str, str]:
  """Returns axes and dtype of what may be returned, by name."""
  return {
    name: f'{layouts.get(name, tensors.SPECS[name].shape)}, '
    f'{made.policy.dtype(name)}'
    for which in passes.of(direction)
    for name in which.of_layer(made.config).outputs
  }


def _format_toml(tables: Mapping[str, Mapping[str, object]]) -> str:
  lines = [
    '# A layer to compute: `read_case.py` reads it and writes what is returned.'
  ]
  for table, values in tables.items():
    lines += ['', f'[{table}]']
    lines += [
      f'{n} = {_format_value(v)}' for n, v in values.items() if v is not None
    ]
  return '\n'.join(lines) + '\n'


def _format_value(value: Any) -> str:
  """Returns a value that TOML and JSON write alike."""
  if isinstance(value, Mapping):
    value = ', '.join(f'{n}={v}' for n, v in value.items())
  return json.dumps(value, default=float, allow_nan=False)
