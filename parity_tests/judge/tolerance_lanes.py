"""Lanes bounded and standard: every stage of a pass, then the fused layer."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import forked_jobs
from hpmoe.parity_tests.judge import lanes
from hpmoe.parity_tests.judge import pass_case
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import bounds
from hpmoe.parity_tests.judge.limits import edges
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import tensor_parallel as dense
from hpmoe.reference.contract import precision

Job = Callable[[], pass_case.Results]


def judge_tolerances(
  asked: pass_case.LaneOptions,
  case: pass_case.PassCase,
  answered: pass_case.Answer,
  expected: passes.Tensors,
) -> pass_case.Results:
  """Lanes bounded and standard: every stage, then the fused layer.

  Whatever was asked for, the layer must lie within its bound: few records have
  a rule for it, and stages may agree among themselves and be wrong.  Where each
  stage ran alone, nothing passed through the layer; then every stage must.
  """
  which, got = case.which, answered.got
  records = asked.records if 'standard' in asked.lanes else ()
  whole = answered.sources is got
  layer = case.golden({})
  goldens = layer, case.golden(answered.sources)
  fused = layer
  if pass_case.is_dense(case):
    fused = dense.Rows.of(layer, which.name != passes.FORWARD.name)
  jobs: list[tuple[str, Job]] = []
  for name in which.stages:
    found = _stage_jobs(asked, case, answered, expected, goldens, name)
    jobs += [(name, job) for job in found]
  mine = tuple(r for r in records if r.layer)
  for name in which.results if whole else ():
    row, home = verdicts.ROWS[name], expected[name]
    if name in got:
      judge = functools.partial(lanes.tolerances, row, got[name], fused, home)
      job: Job = functools.partial(judge, mine, same=home)
    else:
      job = functools.partial(_report_missing, row, mine, True, name)
    jobs.append(('layer', job))
  return _run_jobs(asked, which, jobs)


def _stage_jobs(
  asked: pass_case.LaneOptions,
  case: pass_case.PassCase,
  answered: pass_case.Answer,
  expected: passes.Tensors,
  goldens: tuple[golden_lib.Rows, golden_lib.Rows],
  name: str,
) -> Iterator[Job]:
  """Yields what judges one stage; `goldens` are the layer's and the stages'."""
  got, sources = answered.got, case.usable(name, answered.sources)
  records = asked.records if 'standard' in asked.lanes else ()
  records = () if name in case.movement else records
  follows = case.follows(name, sources)
  # Bits cannot say where the rows came from.
  lost = name in case.movement and not follows
  whole = answered.sources is got or answered.serial
  bound = 'bounded' in asked.lanes or lost or not whole
  if name not in got:
    yield functools.partial(_report_missing, name, records, bound)
    return
  # What was made of tensors that stayed away went through several operators.
  fit = tuple(r for r in records if r.layer or follows)
  known = case.descends(name, sources)
  # A golden that is not rounded as the stage is says little of edges.
  inside = precision.points_of(name, case.made.policy)
  apart = bound and not (follows and not inside)
  beside = None
  if fit or apart:
    beside = (
      _recompute_beside(case, name, sources, expected)
      if known
      else expected[name]
    )
  # A stage that reads inputs only is no fused operator.
  golden = goldens[known or not case.sources[name]]
  same = beside if apart else None
  yield functools.partial(
    lanes.tolerances, name, got[name], golden, beside, fit, bound, same
  )
  if follows:
    return
  unfit = tuple(r for r in records if not r.layer)
  before = case.unseen(name, sources)[-1]
  yield functools.partial(_report_missing, name, unfit, False, before)
  # Edges are told from what the oracle stored, stage by stage, and a chain has
  # the golden of one pass: what the forward pass kept would be float64, not
  # what was stored.
  if case.unseen_saved:
    return
  is_result = name in case.which.results
  if bounds.is_narrow(case.made.policy) and (bound or is_result):
    right = build_chain(case, name, sources, expected)
    yield lambda: [lanes.within_edges(name, got[name], right)]


def _recompute_beside(
  case: pass_case.PassCase,
  name: str,
  sources: passes.Tensors,
  expected: passes.Tensors,
) -> np.ndarray:
  """Returns the oracle's stage on a candidate's tensors.

  It is in `expected` where the candidate's are bit for bit the oracle's.
  """
  for read in case.sources[name]:
    alike = read in sources and name in expected and read in expected
    if (
      not alike or lanes.differs('bitwise', sources[read], expected[read]).any()
    ):
      return case.recompute(name, sources)
  return expected[name]


def build_chain(
  case: pass_case.PassCase,
  name: str,
  sources: passes.Tensors,
  expected: passes.Tensors,
) -> edges.Chain:
  """Returns the stages from the nearest that were captured to `name`."""
  unseen = case.unseen(name, sources)
  own: pass_case.Got = {}
  for one in (*unseen, name):
    if case.descends(one, sources):
      own[one] = case.recompute(one, {**sources, **own})
    else:
      own[one] = expected[one]
  policy = dataclasses.replace(case.made.policy, storage='float32')
  golden = case.golden({**sources, **own}, policy)
  golden = dataclasses.replace(golden, within=case.made.policy.dtype(name))
  comparisons = verdicts.comparisons(case.made.config)
  return edges.Chain(golden, own, unseen, comparisons)


def _run_jobs(
  asked: pass_case.LaneOptions,
  which: passes.Pass,
  jobs: Sequence[tuple[str, Job]],
) -> pass_case.Results:
  """Returns what jobs say, and tells each step before the first of its jobs."""
  results: pass_case.Results = []
  told = ''
  found = forked_jobs.results([job for _, job in jobs])
  for step, _ in jobs:
    if step != told:
      asked.progress(f'{which.name}, bounded, standard: {step}')
      told = step
    results += next(found)
  if told != 'layer':
    asked.progress(f'{which.name}, bounded, standard: layer')
  return results


def _report_missing(
  name: str,
  records: Sequence[standards.Standard],
  bounded: bool,
  missing: str = '',
) -> pass_case.Results:
  rules = [('bounded', verdicts.BOUND_RULE)] if bounded else []
  rules += [('standard', record.name) for record in records]
  return [verdicts.not_captured(name, *rule, missing or name) for rule in rules]
