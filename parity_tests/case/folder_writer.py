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
from hpmoe.parity_tests.case import folder
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.parity_tests.case.layouts import part_layouts
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy


def write(
  path: str | os.PathLike[str],
  direction: str,
  inputs_by_data: Mapping[str, inputs_lib.LayerInputs],
  per_rank: bool = False,
  layouts: Mapping[str, layouts_lib.Layout] | None = None,
  **facts: object,
) -> folder.Folder:
  """Writes a case.

  Args:
    path: of a folder that is empty or absent.
    direction: one of `passes.DIRECTIONS`.
    inputs_by_data: data by kind, real data among them, of the same routing;
      with the inputs of the backward pass, if there is one.
    per_rank: whether each rank has its own files.
    layouts: the layouts of tensors, by name.
    **facts: further facts for reports.

  Raises:
    ValueError: the folder is not empty.
  """
  for data_inputs in inputs_by_data.values():
    tensors.require_layer(data_inputs.config, 'to write as a case')
  path = pathlib.Path(path)
  if path.exists() and (not path.is_dir() or any(path.iterdir())):
    raise ValueError(f'out: expected a folder that is empty, got {str(path)!r}')
  path.mkdir(parents=True, exist_ok=True)
  real = inputs_by_data['real']
  # The order of rows is unknown before the kernel runs, so they have ours.
  layouts = {
    n: data_inputs
    for n, data_inputs in (layouts or {}).items()
    if not data_inputs.order
  }
  layouts |= _find_part_layouts(layouts, real)
  tables: dict[str, Mapping[str, object]] = {}
  for data, data_inputs in inputs_by_data.items():
    tables[f'data.{data}'] = _differing_policy(
      data_inputs.policy, real.policy
    ) | {
      part: _write_part(
        path, f'{data}.{part}', part_arrays, real, per_rank, layouts
      )
      for part, part_arrays in _split_passes(data_inputs).items()
    }
  description: dict[str, Mapping[str, object]] = dict(
    layer=_select_fields(real.config),
    policy=_select_fields(real.policy),
    layouts={name: str(data_inputs) for name, data_inputs in layouts.items()},
    returns=_list_returns(direction, real, layouts),
  )
  version = dict(hpmoe=versions.installed_version('hyperparallel-moe'))
  head = dict(
    format=folder.FORMAT,
    id=folder.hash_tables(description | tables),
    direction=direction,
  )
  tables = (
    dict(case=head | version)
    | description
    | dict(facts={**real.facts, **facts})
  ) | tables
  shutil.copy(read_case.__file__, path / 'read_case.py')
  # Written last: if it exists, all other files are complete.
  (path / folder.TOML_NAME).write_text(_format_toml(tables), encoding='utf-8')
  return folder.read(path)


def _find_part_layouts(
  layouts: Mapping[str, layouts_lib.Layout], real: inputs_lib.LayerInputs
) -> dict[str, layouts_lib.Layout]:
  """Returns the layouts of codes and scales, which follow from others."""
  policy = real.policy
  names = (
    *quantised_inputs.list_names(policy, real.config),
    *quantised_inputs.list_row_names(policy),
  )
  resolved_layouts = {
    n: part_layouts.find_layout(layouts, n, policy) for n in names
  }
  return {
    n: layout for n, layout in resolved_layouts.items() if layout is not None
  }


def _select_fields(record: MoEConfig | PrecisionPolicy) -> dict[str, object]:
  """Returns fields; newer ones only if they are not the default."""
  fields = dataclasses.asdict(record)
  later = (
    'bias',
    'd_shared',
    'points',
    *precision.SUM_ORDERS,
    'quantised',
    'rows',
    'x_form',
    'weight_ulp',
    'operand_forms',
    *precision.FORM,
  )
  usual = {n: getattr(type(record), n) for n in later if n in fields}
  return {n: v for n, v in fields.items() if n not in usual or v != usual[n]}


def _differing_policy(
  policy: PrecisionPolicy, real: PrecisionPolicy
) -> dict[str, object]:
  """Returns the activation of a kind of data, if it is not the case's."""
  form = {n: getattr(policy, n) for n in precision.FORM}
  other = {n: v for n, v in form.items() if v != getattr(real, n)}
  return dict(activation=policy.activation) | other


def _split_passes(
  inputs: inputs_lib.LayerInputs,
) -> dict[str, dict[str, np.ndarray]]:
  """Returns the forward pass's inputs, and those that the backward adds."""
  arrays = quantised_inputs.replace_values(inputs.policy, inputs.arrays)
  names = passes.FORWARD.reads(inputs.config, inputs.policy)
  forward = {n: arrays[n] for n in names if n in arrays}
  rest = {n: a for n, a in arrays.items() if n not in forward}
  parts = dict(zip(folder.PARTS, (forward, rest)))
  return {part: arrays for part, arrays in parts.items() if arrays}


def _write_part(
  path: pathlib.Path,
  name: str,
  arrays: Mapping[str, np.ndarray],
  real: inputs_lib.LayerInputs,
  per_rank: bool,
  layouts: Mapping[str, layouts_lib.Layout],
) -> list[str]:
  """Writes tensors `[R, ...]`; returns the hash of each file."""
  dims, ids = real.config.dims(), real.arrays['topk_ids']
  laid_out: dict[str, Any] = {}
  for n, array in arrays.items():
    if n not in layouts:
      # It is computed or read rank by rank, never in memory as a whole.
      laid_out[n] = array if per_rank else [array]
      continue
    routing = part_layouts.find_sizes(n, real.policy, dims), ids
    if per_rank:
      laid_out[n] = layouts[n].split(array, *routing)
    else:
      laid_out[n] = [layouts[n].apply(array, *routing)]
  hashes = []
  for rank in range(real.config.num_ranks) if per_rank else (None,):
    file_tensors = {n: parts[rank or 0] for n, parts in laid_out.items()}
    read_case.save(read_case.path_of(str(path), name, rank), file_tensors, {})
    hashes.append(read_case.digest(file_tensors))
  return hashes


def _list_returns(
  direction: str,
  inputs: inputs_lib.LayerInputs,
  layouts: Mapping[str, layouts_lib.Layout],
) -> dict[str, str]:
  """Returns axes and dtype of the tensors that may be returned, by name."""
  return {
    name: f'{layouts.get(name) or _describe_axes(inputs.policy, name)}, '
    f'{inputs.policy.dtype(name)}'
    for layer_pass in passes.from_direction(direction)
    for name in layer_pass.of_layer(inputs.config).list_outputs(inputs.policy)
  }


def _describe_axes(policy: precision.PrecisionPolicy, name: str) -> str:
  """Returns axes: 'R N D'; for scales and packed codes 'R N ceil(D/128)'."""
  spec = tensors.SPECS[name]
  kind = name.rpartition('_')[2]
  row_forms = quantised.row_forms(policy.rows)
  if kind not in ('codes', 'scales') or name[: -len(kind) - 1] not in row_forms:
    return spec.shape
  form = quantised.FORMS[row_forms[name[: -len(kind) - 1]]]
  if kind == 'codes':
    return f'{spec.shape}/2' if form.is_packed else spec.shape
  group = form.group[1]
  *rest, last = spec.shape.split()
  return ' '.join([*rest, f'ceil({last}/{group})' if group else '1'])


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
  """Returns a value in a form that TOML and JSON share."""
  if isinstance(value, Mapping):
    value = ', '.join(f'{n}={v}' for n, v in value.items())
  return json.dumps(value, default=float, allow_nan=False)
