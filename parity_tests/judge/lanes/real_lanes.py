"""Lanes bitwise, bounded and standard: one run on real data."""

from collections.abc import Callable

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import isolated_replay
from hpmoe.parity_tests.judge.lanes import code_lane
from hpmoe.parity_tests.judge.lanes import equality
from hpmoe.parity_tests.judge.lanes import launch_tasks
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import stage_explanations
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.lanes import tolerance_lanes

# One product, or a sum in slot order: the contract allows one order only.
_ORDERED = ('y', 'd_expert_out', 'dx')


def judge_real(
  options: pass_case.LaneOptions,
  case: pass_case.PassCase,
  candidate: candidates.Candidate,
) -> pass_case.Findings:
  """Judges lanes bitwise, bounded and standard on one run of the candidate.

  Movement and the whole layer are judged even if no such lane was requested.
  """
  layer_pass = case.layer_pass
  options.progress(f'{layer_pass.name}, real data: candidate')
  answer = case.ask(candidate)
  if candidate.checking.is_part:
    answer = launch_tasks.fill_left_out(case, candidate, answer)
  outputs, sources = answer.outputs, answer.sources
  isolated = answer.is_isolated
  results: pass_case.Results = []
  wrong: list[isolated_replay.WrongTask] = []
  golden = case.golden(sources)

  def blame(
    lane: str, rows: pass_case.Results, bad: Callable[[str], np.ndarray]
  ):
    if isolated:
      wrong.extend(
        launch_tasks.find_wrong_tasks(case, candidate, lane, rows, bad)
      )

  if 'bitwise' in options.lanes and answer.serial is not None:
    options.progress(f'{layer_pass.name}, bitwise: own kernels, serially')
    serial = case.run(answer.serial)
    results += _compare_serial(case, outputs, serial)
    blame('bitwise', results, equality.select_unequal(outputs, serial))
    del serial
    results += compare_ordered(case, answer)
  if 'bitwise' in options.lanes and candidate.as_used is not None:
    results += _compare_as_used(case, outputs, case.run(candidate.as_used))
  alone = isolated and candidate.alone_as_used and not candidate.fault
  if alone and 'bitwise' in options.lanes:
    rows, tasks = launch_tasks.judge_tasks_as_used(case, candidate)
    results += rows
    wrong += tasks
  options.progress(f'{layer_pass.name}, real data: oracle')
  expected = _select_expected(case, sources)
  rows, homes = compare_movement(case, answer, expected)
  results += rows
  blame('bitwise', rows, equality.select_unequal(outputs, homes))
  results += code_lane.judge_codes(case, answer)
  rows = tolerance_lanes.judge_tolerances(options, case, answer, expected)
  results = stage_explanations.explain_results(
    options,
    case,
    answer,
    expected,
    results + rows,
    lambda name, right: (
      tile_lanes.differs('bitwise', outputs[name], right)
      if name in case.movement
      else tolerance_lanes.find_refused(
        case, name, sources, expected, outputs[name]
      )
    ),
    exact=False,
  )
  if options.beside is not None:
    results += options.beside(options, case, answer)
  blame(
    'bounded',
    [r for r in rows if r.lane == 'bounded'],
    lambda name: tile_lanes.out_of_bound(name, outputs[name], golden),
  )
  return pass_case.Findings(results, outputs, wrong)


def _compare_serial(
  case: pass_case.PassCase, outputs: passes.Tensors, serial: passes.Tensors
) -> pass_case.Results:
  """Compares stages bit for bit with a serial run of the same tile kernels."""
  return [
    equality.compare_equal(
      name, 'bitwise', equality.SERIAL_RULE, outputs, serial, case.tiling
    )
    for name in case.layer_pass.stages
    if name in outputs
  ]


def _compare_as_used(
  case: pass_case.PassCase,
  outputs: passes.Tensors,
  used_outputs: passes.Tensors,
) -> pass_case.Results:
  """Compares results bit for bit with the launch that front ends make."""
  return [
    equality.compare_equal(
      name, 'bitwise', equality.USED_RULE, used_outputs, outputs, case.tiling
    )
    for name in case.layer_pass.results
  ]


def _select_expected(
  case: pass_case.PassCase, sources: passes.Tensors
) -> dict[str, np.ndarray]:
  """Returns the oracle's tensors that lanes compare with.

  The oracle's own stages are needed only if the candidate returned no tensor on
  which a stage depends.
  """
  first = {
    name for name in case.stages if not case.has_any_source(name, sources)
  }
  second = {name for name in case.stages if case.reads_only(name, first)}
  names = {*case.layer_pass.plan, *case.layer_pass.results, *first, *second}
  if case.tiling.ranks is not None:
    names |= {*case.stages}
  expected = case.answer()
  return {name: expected[name] for name in names}


def compare_ordered(
  case: pass_case.PassCase, answer: pass_case.Answer
) -> pass_case.Results:
  """Compares stages that have one legal order of additions with the oracle.

  Only our own kernels must use that order; other kernels may use any.
  """
  return [
    tile_lanes.compare(
      name,
      'bitwise',
      equality.ORDERED_RULE,
      answer.outputs[name],
      case.recompute(name, answer.sources),
      case.tiling,
    )
    for name in case.layer_pass.stages
    if name in _ORDERED and name not in case.movement
    if name in answer.outputs and case.has_all_sources(name, answer.sources)
  ]


def compare_movement(
  case: pass_case.PassCase, answer: pass_case.Answer, expected: passes.Tensors
) -> tuple[pass_case.Results, pass_case.Arrays]:
  """Compares movement and counts bit for bit.

  If a candidate returned moved rows but not their source, `judge_tolerances`
  judges them instead.

  Returns:
    The results, and by name the tensors that were expected.
  """
  outputs, sources = answer.outputs, answer.sources
  results: pass_case.Results = []
  destinations: pass_case.Arrays = {}
  for name in (*case.layer_pass.plan, *case.movement):
    rule = equality.ORACLE_RULE
    before = case.sources[name]
    if before:
      rule = f'equals its own {before[0]}, returned'
    if name in outputs and not case.has_all_sources(name, sources):
      continue
    if name in outputs:
      destinations[name] = (
        case.recompute(name, sources) if before else expected[name]
      )
    results.append(
      equality.compare_equal(
        name, 'bitwise', rule, outputs, destinations, case.tiling
      )
    )
  return results, destinations
