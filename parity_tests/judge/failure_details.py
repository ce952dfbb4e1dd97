"""Details added to a failure: what to return, where it is in files."""

from collections.abc import Sequence, Set
import dataclasses

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import tensors

RECOMPUTES_HINT = (
  'hint: the backward pass was judged on the saved tensors that it was given, '
  'as the forward pass did not return them; if it recomputes them, declare it: '
  'function.backward.recomputes = True'
)


def add_hints(
  results: Sequence[verdicts.Result], rows: str = ''
) -> list[verdicts.Result]:
  """Adds the names of tensors that would locate a failure more closely.

  Args:
    results: of all passes.
    rows: forms of the policy.
  """
  missing = {r.missing for r in results}
  hints: dict[str, str] = {}
  for layer_pass in passes.from_direction('both'):
    layer_pass = layer_pass.of_layer(tensors.EVERY_PART)
    names = {*layer_pass.stages}
    if layer_pass.name == passes.FORWARD.name:
      coded = tensors.ROW_CODES + tensors.TOKEN_CODES
      names |= {spec.name for spec in coded}
    else:
      names |= {*passes.ROUTER_ROWS}
    missing_stages = verdicts.ordered(names & missing)
    if missing_stages:
      stage_hint = (
        f'return {", ".join(missing_stages)} to locate it more closely'
      )
      hints |= dict.fromkeys(layer_pass.results, stage_hint)
  judged_stages = {r.stage for r in results if r.verdict != verdicts.NOT_JUDGED}
  hints |= _hint_codes(judged_stages, rows)
  hinted = []
  for result in results:
    failure = result.failure
    hint = hints.get(verdicts.tensor_of(result.stage))
    if failure is not None and hint:
      failure = failure.with_hint(hint)
    hinted.append(dataclasses.replace(result, failure=failure))
  return hinted


def _hint_codes(stages: Set[str], rows: str) -> dict[str, str]:
  """Returns, by GEMM, the names of its rows' codes, if none was judged."""
  forms, hints = quantised.row_forms(rows), {}
  for gemm, (name, _) in tensors.GEMMS.items():
    parts = quantised.parts(forms.get(name, ''), name)
    if parts and not {*parts} & stages:
      hints[gemm] = f'return {", ".join(parts)}, which may be the wrong tensors'
  return hints


def add_places(
  results: Sequence[verdicts.Result],
  candidate: candidates.Candidate,
  tiling: tiles.Tiling,
) -> list[verdicts.Result]:
  """Adds the place of the first bad tile in the candidate's own files."""

  def place(failure: verdicts.Failure) -> verdicts.Failure:
    tensor = verdicts.tensor_of(failure.stage)
    location = candidate.place(tensor, [np.array([i]) for i in failure.index])
    tile = _tile(tensor, failure, tiling)
    if location and tile is not None:
      location += f'; tile: {candidate.place(tensor, tile)}'
    return dataclasses.replace(failure, location=location)

  return [
    dataclasses.replace(
      result, failure=result.failure and place(result.failure)
    )
    for result in results
  ]


def _tile(
  tensor: str, failure: verdicts.Failure, tiling: tiles.Tiling
) -> list[np.ndarray] | None:
  """Returns a tile's coordinates, arrays that broadcast together, or None."""
  if tensor in tensors.PLAN or failure.row_block is None:
    return None
  cut = tiling.cut(tensor, failure.rank)
  expert = tiles.NO_EXPERT if failure.expert is None else failure.expert
  is_tile = (cut.block == failure.row_block) & (
    (cut.expert == tiles.NO_EXPERT) | (cut.expert == expert)
  )
  assert failure.col_block is not None  # as is row_block
  rows, columns = cut.window((int(np.argmax(is_tile)), failure.col_block))
  places = [
    tiling.index(tensor, failure.rank, row)
    for row in range(rows.start, rows.stop)
  ]
  axes = np.array(places).T[..., None]
  return [*axes, np.arange(columns.start, columns.stop)[None]]
