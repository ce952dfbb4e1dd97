"""A family of awkward shapes, at which kernels often fail.

A forward pass is judged by golden rows alone: no oracle is compiled, and a
shape takes half a second.  Gradients are judged by the oracle, which is
compiled for each shape.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import os
import tempfile
from typing import Any

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement as judgement_lib
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import presets

# Tokens of a rank, and rows of experts, near common block sizes.
TOKENS = (1, 15, 16, 17, 127, 128, 129)
ROWS = (0, 1, 128, 129)
_MOST_RANKS = 8
_ROWS_KIND = 'rows'
CRASH, NOT_TRIED = 'crash', 'not tried'
# Tiles of a sample: more than a shape has.
_ALL_TILES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Shape:
  """A shape of the family.

  Attributes:
    kind: what is awkward about it, for the last line.
    says: its sizes in words.
    case: the case with these sizes.
  """

  kind: str
  says: str
  case: case_lib.Case


@dataclasses.dataclass(frozen=True)
class Row:
  """The result of a shape.

  Attributes:
    kind, says: of the shape.
    verdict: of its check, or `CRASH` or `NOT_TRIED`.
    reason: the first failure, the error, or what the layer lacks; or ''.
    report: of the check, if there is one.
  """

  kind: str
  says: str
  verdict: str
  reason: str = ''
  report: check.Report | None = None


def list_shapes(case: case_lib.Case, folder: str) -> Iterator[Shape]:
  """Yields the family around a case.

  Args:
    case: shapes have its preset, ranks, dtype, policy and parts.
    folder: where a routing is written.

  Raises:
    ValueError: the preset has no routed experts.
  """

  def change(kind: str, says: str, sizes: str = '', **fields) -> Shape:
    preset = f'{case.preset}{sizes}'
    return Shape(kind, says, dataclasses.replace(case, preset=preset, **fields))

  shape = presets.get(case.preset)
  experts, top_k = shape.num_experts, shape.top_k
  if experts is None or top_k is None:
    raise ValueError(
      f'shapes: expected a preset with routed experts, got {case.preset}'
    )
  for tokens in TOKENS:
    yield change('T', f'T {tokens}', tokens=tokens)
  routing_file = _write_rows(experts, top_k, case.ranks, folder)
  if routing_file is not None:
    path, tokens = routing_file
    yield change(_ROWS_KIND, _name_rows(), tokens=tokens, routing=path)
  tokens = min(shape.num_tokens, 16)
  # Logits that a kernel computes of x choose as they will.
  routing = case.routing if case.router_gemm else 'balanced'
  for count, name in ((1, '1'), (experts, 'E')):
    yield change(
      *('K', f'K {name}', f':top_k={count}'), tokens=tokens, routing=routing
    )
  for letter, size in (('d_model', shape.d_model), ('d_ff', shape.d_ff)):
    name = 'D' if letter == 'd_model' else 'F'
    odd = size + 5 + size % 2
    yield change(name, f'{name} {odd}', f':{letter}={odd}', tokens=tokens)
  for ranks in range(1, min(experts, _MOST_RANKS) + 1):
    if experts % ranks == 0:
      yield change('R', f'R {ranks}', ranks=ranks, tokens=tokens)


def run(
  request: request_lib.Request,
  progress: Callable[[str], None] = lambda step: None,
) -> list[Row]:
  """Checks each shape around the case of a request.

  Args:
    request: shapes have its case but for sizes.
    progress: called with the name of each shape.

  Raises:
    ValueError: the inputs of the case are not drawn, so its sizes are fixed.
  """
  case = request.case
  if case.input is not None or case.folder is not None or case.sublayer:
    raise ValueError(
      'shapes: expected a preset, whose sizes can be changed, got inputs of '
      'one shape'
    )
  with tempfile.TemporaryDirectory(prefix='hpmoe-') as folder:
    rows = []
    for shape in list_shapes(case, folder):
      progress(shape.says)
      rows.append(_run_shape(request, shape))
    if all(row.kind != _ROWS_KIND for row in rows):
      reason = 'expected more experts, so that others serve most tokens'
      rows.append(Row(_ROWS_KIND, _name_rows(), NOT_TRIED, reason))
    return rows


def _name_rows() -> str:
  return f'experts of {", ".join(map(str, ROWS))} rows'


def _run_shape(request: request_lib.Request, shape: Shape) -> Row:
  judging = judgement_lib.Judgement(
    lanes=judgement_lib.OF_SAMPLE, tiles=_ALL_TILES, repeat=1
  )
  if shape.case.direction != 'forward':
    judging = judgement_lib.Judgement(lanes=('bounded',), repeat=1)
  command = _name_shape(request.command, shape.case)
  try:
    report = check.run(
      dataclasses.replace(
        request, case=shape.case, judgement=judging, command=command
      )
    )
  except candidates.CandidateError as error:
    return Row(shape.kind, shape.says, CRASH, str(error))
  except ValueError as error:
    # The user typed no name of our file.
    reason = str(error).replace(shape.case.routing, 'one of this shape')
    return Row(shape.kind, shape.says, NOT_TRIED, reason)
  return Row(shape.kind, shape.says, report.verdict, _explain(report), report)


def _name_shape(
  command: tuple[str, ...], case: case_lib.Case
) -> tuple[str, ...]:
  """Returns the words of a command that checks this shape alone.

  A routing that was written for it is left out.
  """
  sizes = dict(preset=case.preset, ranks=case.ranks, tokens=case.tokens)
  if case.routing in inputs_lib.ROUTINGS and case.routing != 'text':
    sizes['routing'] = case.routing
  replaced = (*sizes, *(flag.name for flag in case_flags.SIZES))
  own_words = [w for w in command if w.partition('=')[0][2:] not in replaced]
  return (
    *own_words,
    *(f'--{n}={v}' for n, v in sizes.items() if v is not None),
  )


def _explain(report: check.Report) -> str:
  failure = report.first_failure
  if failure is None:
    return ''
  words = f'{failure.stage}{list(failure.index)}'
  return f'{words}: {failure.pattern}' if failure.pattern else words


def _write_rows(
  experts: int, top_k: int, ranks: int, folder: str
) -> tuple[str, int] | None:
  """Writes a routing in which experts have `ROWS` rows.

  Returns:
    Its path and the tokens of a rank; None: there are too few experts.
  """
  common = np.arange(len(ROWS), experts)
  if len(common) < top_k:
    return None
  tokens = -(-(sum(ROWS) + 2) // ranks)
  ids = np.empty((ranks * tokens, top_k), np.int32)
  for token in range(len(ids)):
    ids[token] = np.roll(common, -token)[:top_k]
  first = 0
  for expert, count in enumerate(ROWS):
    ids[first : first + count, 0] = expert
    first += count
  path = os.path.join(folder, 'rows.npz')
  np.savez(path, topk_ids=ids.reshape(ranks, tokens, top_k))
  return path, tokens


def format_rows(rows: Sequence[Row]) -> list[tuple[str, ...]]:
  """Returns cells: the shape, the verdict, and why."""
  return [(row.says, row.verdict, row.reason) for row in rows]


def format_summary(rows: Sequence[Row]) -> str:
  """Returns the last line."""
  checks = [row for row in rows if row.verdict != NOT_TRIED]
  right = [row for row in checks if row.verdict == verdicts.PASS]
  untried = [row.says for row in rows if row.verdict == NOT_TRIED]
  word = 'PASS' if is_right(rows) else 'FAIL'
  remark = f'; not tried: {", ".join(untried)}' if untried else ''
  sizes = ', '.join(row.says for row in checks)
  return (
    f'{word}: {len(right)} of {len(checks)} shapes pass; tried: {sizes}{remark}'
  )


def is_right(rows: Sequence[Row]) -> bool:
  """Says whether at least one shape ran, and all that ran are right."""
  checks = [row for row in rows if row.verdict != NOT_TRIED]
  return bool(checks) and all(row.verdict == verdicts.PASS for row in checks)


def find_outcome(rows: Sequence[Row]) -> str:
  """Returns what all shapes amount to, as one check would.

  Returns:
    `CRASH` if the candidate crashed at a shape, `NOT_TRIED` if it ran at none,
    or else a verdict.
  """
  verdicts_of_rows = {row.verdict for row in rows}
  if CRASH in verdicts_of_rows:
    return CRASH
  if verdicts_of_rows <= {NOT_TRIED}:
    return NOT_TRIED
  return verdicts.PASS if is_right(rows) else verdicts.FAIL


def find_first_failing(rows: Sequence[Row]) -> Row | None:
  """Returns the first shape that was judged and fails."""
  failing = (row for row in rows if row.verdict == verdicts.FAIL)
  return next(failing, None)


def to_json(rows: Sequence[Row]) -> dict:
  """Returns rows as plain data, without their reports."""
  return dict(
    verdict=verdicts.PASS if is_right(rows) else verdicts.FAIL,
    shapes=[
      {n: v for n, v in vars(row).items() if n != 'report'} for row in rows
    ],
  )


def from_json(content: Mapping[str, Any]) -> list[Row]:
  """Returns the rows of `to_json`.

  Raises:
    KeyError, TypeError: the content is no such data.
  """
  return [Row(**row) for row in content['shapes']]
