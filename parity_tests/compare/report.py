"""The report of `hpmoe compare`: the table and the first difference."""

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import io
import math
import pathlib
import re
import textwrap
from typing import Any

from hpmoe.models.checkpoint import atomic_folder
from hpmoe.parity_tests.cache import versions
from hpmoe.parity_tests.compare import compare
from hpmoe.parity_tests.compare import metrics
from hpmoe.parity_tests.compare import subject as subject_lib
from hpmoe.parity_tests.report import failure_text
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import report_json
from hpmoe.parity_tests.report import report_text
from hpmoe.parity_tests.report import text_table

_COLUMNS = (
  'NPU Tensor Shape',
  'Cosine',
  'EucDist',
  'MaxAbsErr',
  'MaxRelativeErr',
  'One Thousandth Err Ratio',
  'Five Thousandths Err Ratio',
  'Result',
)
_HEADING = ('', 'Name', 'Shape', *_COLUMNS[1:])
_MAX_CHOICES = 8
_COLOURS = {metrics.WARNING: '\x1b[33m', metrics.ERROR: '\x1b[31m'}


def heading(request: compare.Request, subject: subject_lib.Subject) -> str:
  """Returns a line that describes the comparison."""
  batch, sequence = subject.tokens.shape
  config = subject.config
  return (
    f'{request.right} (NPU) against {request.left} (Bench): {subject.name}, '
    f'{config.num_hidden_layers} layers, {config.num_experts} experts, '
    f'{batch} x {sequence} tokens, R={subject.ranks}, '
    f'{subject.params["model.embed_tokens.weight"].dtype}'
  )


def table(result: compare.Result, colour: bool = False) -> str:
  """Returns a line for each tensor; '>' marks the first difference."""
  first = result.first
  cells = [
    ('>' if row is first else '', row.name, *map(_cell(row), _COLUMNS))
    for row in result.rows
  ]
  colours = [_COLOURS.get(row.result, '') for row in result.rows]
  return text_table.format_table(_HEADING, cells, colours if colour else None)


def _cell(row: metrics.Row):
  def cell(column: str) -> str:
    value = row.values[column]
    return f'{value:.6g}' if isinstance(value, float) else str(value)

  return cell


def conclusion(request: compare.Request, result: compare.Result) -> str:
  """Returns the first difference, its cause, and the verdict."""
  first, lines = result.first, []
  if first is not None:
    lines.append(f'first difference: {first.name}')
    if first.values['Err_message']:
      lines.append(f'  {first.values["Err_message"]}')
  for layer, choices in result.choices.items():
    lines.append(f'layer {layer}: tokens that go to other experts:')
    lines += [f'  {choice}' for choice in choices[:_MAX_CHOICES]]
    if len(choices) > _MAX_CHOICES:
      lines.append(f'  and {len(choices) - _MAX_CHOICES} more')
  lines += [*_apart(result), *_alone(result.judged_layers, result.wrong)]
  lines += _steps(result)
  far = [s.measured.modules for s in result.steps]
  parted = first is not None or any(any(distance.values()) for distance in far)
  if parted and not (result.wrong or result.later) and result.judged_layers:
    lines.append(_cause(request, result))
  all_same = all(row.same_bits for row in result.rows)
  equal = 'every tensor has the same bits' if all_same else 'within thresholds'
  sentence = equal if first is None else 'a difference beyond thresholds'
  if first is None and result.later is not None:
    sentence = f'layer {result.later.layer} is wrong in step '
    sentence += str(result.steps[-1].number)
  lines.append(f'{result.verdict}: {sentence}')
  return '\n'.join(lines)


def _has_bounds(request: compare.Request) -> bool:
  """Whether gradients of the candidate's side are judged by their bounds."""
  return ':' not in request.right.moe or request.right.candidate is not None


def _cause(request: compare.Request, result: compare.Result) -> str:
  """Returns why the sides differ although no experts are wrong."""
  # The rounding of a user's layer on the left is unknown.
  unknown = ':' in request.left.moe or request.left.candidate is not None
  sentence = 'all experts are correct on their inputs'
  if result.steps and not _has_bounds(request):
    # Their errors may exceed rounding.
    return f'{sentence}; of gradients only large errors show: see predicted'
  if not result.is_rounding or unknown:
    return sentence
  sentence = (
    'rounding explains every difference: each layer of experts with other '
  )
  sentence += 'bits is within its bound on its own inputs'
  if request.left.framework == request.right.framework:
    return f'{sentence}, and all other code is the same'
  return f'{sentence}; modules between them are not judged'


# Tensors that pass between modules, as `side_results` names them.
_MODULE_TENSORS = {
  'forward': re.compile(
    r'Module\.model\.(layers\.\d+|\w+)\.0\.forward\.output\.0'
  ),
  'backward': re.compile(
    r'Module\.model\.(layers\.\d+|\w+)\.0\.backward\.input\.0'
  ),
}


def distances(result: compare.Result) -> dict[str, dict[str, float]]:
  """Returns the distance of each module's outputs, by direction and module.

  EucDist / l2norm; NaN where the sides cannot be subtracted.
  """
  by_way: dict[str, dict[str, float]] = {}
  for way, pattern in _MODULE_TENSORS.items():
    matches = [(pattern.fullmatch(row.name), row.values) for row in result.rows]
    of_way = {m[1]: _distance(v) for m, v in matches if m is not None}
    if of_way:
      by_way[way] = of_way
  return by_way


def _apart(result: compare.Result) -> list[str]:
  """Returns the distance of the sides by module, in each direction."""
  lines = []
  for way, by_module in distances(result).items():
    items = [f'{module} {far:.2g}' for module, far in by_module.items()]
    if items:
      lines.append(f'EucDist / l2norm of what modules return, {way}:')
      lines += textwrap.wrap(
        ', '.join(items), 96, initial_indent='  ', subsequent_indent='  '
      )
  return lines


def _distance(values: Mapping[str, Any]) -> float:
  far, size = values['EucDist'], values['Bench l2norm']
  return far / (size or 1) if isinstance(far, float) else math.nan


_STEPS = (
  *('step', 'loss', 'apart', 'predicted', 'last norm apart'),
  *('predicted', 'other experts', 'predicted'),
)
_MOST_STEPS = 24


def _steps(result: compare.Result) -> list[str]:
  """Returns how the sides diverge in training, and the predicted rounding."""
  if not result.steps:
    return []
  stride = -(-len(result.steps) // _MOST_STEPS)
  sample = [*result.steps[:-1:stride], result.steps[-1]]
  cells = [
    [str(s.number), f'{s.loss:.6g}']
    + [f'{abs(o.loss):.2g}' for o in (s.measured, s.predicted)]
    + [f'{o.modules["model.norm"]:.2g}' for o in (s.measured, s.predicted)]
    + [str(o.choices) for o in (s.measured, s.predicted)]
    for s in sample
  ]
  lines = ['', 'training, each side from its own weights; predicted of']
  lines[-1] += ' rounding as large as the first gradients have it:'
  lines.append(text_table.format_table(_STEPS, cells, None))
  if not any(result.steps[0].predicted.modules.values()):
    lines.append('first gradients have the same bits: nothing is predicted')
  last_step = f'step {result.steps[-1].number}'
  if result.later is None:
    lines.append(f'{last_step}: all experts are correct on their inputs')
    return lines
  lines.append(f'{last_step}: layer {result.later.layer} is wrong')
  return lines + _alone(result.trained_layers, result.later)


def _alone(
  layers: Sequence[compare.JudgedLayer], wrong: compare.JudgedLayer | None
) -> list[str]:
  """Returns the finding on each MoE layer by itself."""
  lines = []
  for layer in layers:
    finding = layer.reason
    if layer.report is not None:
      bound = 'out of' if layer.is_wrong else 'within'
      finding = f'{bound} the rounding bound on its own inputs'
    lines.append(f'layer {layer.layer}, its experts alone: {finding}')
  if wrong is not None and wrong.report is not None:
    lines.append(f'\nlayer {wrong.layer}, hpmoe check of {wrong.reason}:')
    lines += filter(
      None,
      (
        failure_text.format_failure(wrong.report),
        report_text.format_modes(wrong.report),
      ),
    )
    lines.append('')
  return lines


def to_json(
  request: compare.Request,
  subject: subject_lib.Subject,
  result: compare.Result,
) -> dict[str, Any]:
  """Returns the whole report as plain data."""
  first, wrong, later = result.first, result.wrong, result.later
  return json_fields.to_plain_data(
    dict(
      verdict=result.verdict,
      left=str(request.left),
      right=str(request.right),
      model=subject.name,
      tokens=list(subject.tokens.shape),
      ranks=subject.ranks,
      fault=request.fault,
      fault_layer=request.fault_layer,
      rows=[row.values | dict(same_bits=row.same_bits) for row in result.rows],
      first_difference=first and first.name,
      choices={
        str(layer): [str(choice) for choice in choices]
        for layer, choices in result.choices.items()
      },
      layers=[
        dict(layer=layer.layer, why=layer.reason, wrong=layer.is_wrong)
        for layer in result.judged_layers
      ],
      rounding_alone=result.is_rounding
      and (not result.steps or _has_bounds(request)),
      wrong_layer=wrong and wrong.layer,
      steps=[dataclasses.asdict(step) for step in result.steps],
      later_layer=later and later.layer,
      later_check=later and later.report and report_json.to_json(later.report),
      check=wrong and wrong.report and report_json.to_json(wrong.report),
      versions=versions.list_versions(),
    )
  )


def write_csv(path: str, result: compare.Result) -> None:
  """Writes every row under msprobe's column names.

  Raises:
    OSError: the file cannot be written.
  """
  file = io.StringIO(newline='')
  writer = csv.DictWriter(file, metrics.COLUMNS)
  writer.writeheader()
  writer.writerows(row.values for row in result.rows)
  atomic_folder.write_file(pathlib.Path(path), file.getvalue().encode())
