"""Lanes bitwise, bounded and standard: one run on real data."""

from collections.abc import Callable

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.explain import stage_explanations
from hpmoe.parity_tests.judge import equality
from hpmoe.parity_tests.judge import isolation
from hpmoe.parity_tests.judge import lanes
from hpmoe.parity_tests.judge import launch_tasks
from hpmoe.parity_tests.judge import pass_case
from hpmoe.parity_tests.judge import tolerance_lanes

# One product, or a sum in slot order: the contract leaves one order only.
_ORDERED = ('y', 'd_expert_out', 'dx')


def judge_real(
  asked: pass_case.LaneOptions,
  case: pass_case.PassCase,
  candidate: candidates.Candidate,
) -> pass_case.Findings:
  """Lanes bitwise, bounded and standard, on one run of the candidate.

  Where none of them is asked for, what moves and the layer are judged still.
  """
  which = case.which
  asked.progress(f'{which.name}, real data: candidate')
  answered = case.ask(candidate)
  if candidate.checking.is_part:
    answered = launch_tasks.fill_left_out(case, candidate, answered)
  got, sources = answered.got, answered.sources
  isolated = sources is not got
  results: pass_case.Results = []
  wrong: list[isolation.WrongTask] = []
  golden = case.golden(sources)

  def blame(
    lane: str, found: pass_case.Results, bad: Callable[[str], np.ndarray]
  ):
    if isolated:
      wrong.extend(
        launch_tasks.find_wrong_tasks(case, candidate, lane, found, bad)
      )

  if 'bitwise' in asked.lanes and answered.serial is not None:
    asked.progress(f'{which.name}, bitwise: own kernels, serially')
    serial = case.run(answered.serial)
    results += [
      equality.compare_equal(
        name, 'bitwise', equality.SERIAL_RULE, got, serial, case.tiling
      )
      for name in which.stages
      if name in got
    ]
    blame('bitwise', results, equality.select_unequal(got, serial))
    del serial
    results += compare_ordered(case, answered)
  if 'bitwise' in asked.lanes and candidate.as_used is not None:
    used = case.run(candidate.as_used)
    results += [
      equality.compare_equal(
        name, 'bitwise', equality.USED_RULE, used, got, case.tiling
      )
      for name in which.results
    ]
  alone = isolated and candidate.alone_as_used and not candidate.fault
  if alone and 'bitwise' in asked.lanes:
    found, tasks = launch_tasks.judge_tasks_as_used(case, candidate)
    results += found
    wrong += tasks
  asked.progress(f'{which.name}, real data: oracle')
  expected = case.answer()
  # The oracle's own stages stand in only where the candidate kept to itself
  # all that a stage descends from.
  first = {name for name in case.stages if not case.descends(name, sources)}
  second = {name for name in case.stages if case.reads_only(name, first)}
  needed = {*which.plan, *which.results, *first, *second}
  if case.tiling.ranks is not None:
    needed |= {*case.stages}
  expected = {name: expected[name] for name in needed}
  found, homes = compare_movement(case, answered, expected)
  results += found
  blame('bitwise', found, equality.select_unequal(got, homes))
  found = tolerance_lanes.judge_tolerances(asked, case, answered, expected)
  results = stage_explanations.explain_results(
    asked,
    case,
    answered,
    expected,
    results + found,
    lambda name, right: (
      lanes.differs('bitwise', got[name], right)
      if name in case.movement
      else lanes.out_of_bound(name, got[name], golden)
    ),
    exact=False,
  )
  blame(
    'bounded',
    [r for r in found if r.lane == 'bounded'],
    lambda name: lanes.out_of_bound(name, got[name], golden),
  )
  return pass_case.Findings(results, got, wrong)


def compare_ordered(
  case: pass_case.PassCase, answered: pass_case.Answer
) -> pass_case.Results:
  """What has one legal order of additions, against the oracle in that order.

  Only our own kernels are held to it: those of others may add as they like.
  """
  return [
    lanes.compare(
      name,
      'bitwise',
      equality.ORDERED_RULE,
      answered.got[name],
      case.recompute(name, answered.sources),
      case.tiling,
    )
    for name in case.which.stages
    if name in _ORDERED and name not in case.movement
    if name in answered.got and case.follows(name, answered.sources)
  ]


def compare_movement(
  case: pass_case.PassCase, answered: pass_case.Answer, expected: passes.Tensors
) -> tuple[pass_case.Results, pass_case.Got]:
  """What only moves or counts, bit for bit, and what it must equal.

  A candidate that returned what moved, but not from where, is judged on that by
  `judged`.
  """
  got, sources = answered.got, answered.sources
  results: pass_case.Results = []
  homes: pass_case.Got = {}
  for name in (*case.which.plan, *case.movement):
    rule = equality.ORACLE_RULE
    before = case.sources[name]
    if before:
      rule = f'equals its own {before[0]}, returned'
    if name in got and not case.follows(name, sources):
      continue
    if name in got:
      homes[name] = case.recompute(name, sources) if before else expected[name]
    results.append(
      equality.compare_equal(name, 'bitwise', rule, got, homes, case.tiling)
    )
  return results, homes
