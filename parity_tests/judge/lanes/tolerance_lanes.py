"""Lanes bounded and standard: every stage of a pass, then the fused layer."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import forked_jobs
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.limits import edges
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import tensor_parallel as dense
from hpmoe.reference.contract import precision

Job = Callable[[], pass_case.Results]


def judge_tolerances(
  options: pass_case.LaneOptions,
  case: pass_case.PassCase,
  answer: pass_case.Answer,
  expected: passes.Tensors,
) -> pass_case.Results:
  """Judges lanes bounded and standard: every stage, then the fused layer.

  The layer must always be within its bound, whichever lanes were requested: few
  records have a rule for it, and all stages may agree with each other and still
  be wrong.  In isolated replay, where nothing passes through the layer, every
  stage must be within its bound.
  """
  layer_pass, outputs = case.layer_pass, answer.outputs
  records = options.records if 'standard' in options.lanes else ()
  whole = not answer.is_isolated
  layer = case.golden({})
  goldens = layer, case.golden(answer.sources)
  fused = layer
  if pass_case.is_dense(case):
    fused = dense.Rows.from_layer(layer, layer_pass.name != passes.FORWARD.name)
  jobs: list[tuple[str, Job]] = []
  # Gradients of logits have a row of their own, see `judge.router`.
  for name in (n for n in layer_pass.stages if n != passes.ROUTER_ROWS[0]):
    stage_jobs = _stage_jobs(options, case, answer, expected, goldens, name)
    jobs += [(name, job) for job in stage_jobs]
  layer_records = tuple(r for r in records if r.layer)
  for name in layer_pass.results if whole else ():
    row, home = verdicts.ROWS[name], expected[name]
    if name in outputs:
      judge = functools.partial(
        tile_lanes.tolerances, row, outputs[name], fused, home
      )
      job: Job = functools.partial(judge, layer_records, stored_oracle=home)
    else:
      job = functools.partial(_report_missing, row, layer_records, True, name)
    jobs.append(('layer', job))
  # Threads divide the experts of a large layer; two processes would compute the
  # sums of y twice.
  fork = False if layer.has_many_products else None
  return _run_jobs(options, layer_pass, jobs, fork)


def _stage_jobs(
  options: pass_case.LaneOptions,
  case: pass_case.PassCase,
  answer: pass_case.Answer,
  expected: passes.Tensors,
  goldens: tuple[golden_lib.Rows, golden_lib.Rows],
  name: str,
) -> Iterator[Job]:
  """Yields jobs that judge a stage; `goldens`: of the layer, of the stages."""
  outputs, sources = answer.outputs, case.select_usable(name, answer.sources)
  records = options.records if 'standard' in options.lanes else ()
  records = () if name in case.movement else records
  has_sources = case.has_all_sources(name, sources)
  # Its bits cannot be compared, as the source was not returned.
  is_untraced = name in case.movement and not has_sources
  whole = not answer.is_isolated or answer.serial
  bound = 'bounded' in options.lanes or is_untraced or not whole
  if name not in outputs:
    yield functools.partial(_report_missing, name, records, bound)
    return
  # If a source was not returned, several operators lie before the stage.
  fit_records = tuple(r for r in records if r.layer or has_sources)
  has_source = case.has_any_source(name, sources)
  # Edges need a golden that has the roundings inside the stage.
  rounds_inside = precision.points_of(name, case.inputs.policy)
  needs_beside = bound and not (has_sources and not rounds_inside)
  benchmark = None
  if fit_records or needs_beside:
    benchmark = (
      _recompute_beside(case, name, sources, expected)
      if has_source
      else expected[name]
    )
  # A stage that reads inputs only is no fused operator.
  golden = goldens[has_source or not case.sources[name]]
  stored_beside = benchmark if needs_beside else None
  yield functools.partial(
    tile_lanes.tolerances,
    name,
    outputs[name],
    golden,
    benchmark,
    fit_records,
    bound,
    stored_beside,
  )
  if has_sources:
    return
  unfit_records = tuple(r for r in records if not r.layer)
  missing_source = case.list_unseen(name, sources)[-1]
  yield functools.partial(
    _report_missing, name, unfit_records, False, missing_source
  )
  # Edges need the tensors that the oracle stored, and a chain has the golden of
  # one pass only: saved tensors of the forward pass would be float64, not the
  # stored values.
  if case.unseen_saved:
    return
  is_result = name in case.layer_pass.results
  if edges.apply_to(case.inputs.policy) and (bound or is_result):
    right = build_chain(case, name, sources, expected, golden)
    right.accompany(golden)
    yield lambda: [tile_lanes.within_edges(name, outputs[name], right)]


def _recompute_beside(
  case: pass_case.PassCase,
  name: str,
  sources: passes.Tensors,
  expected: passes.Tensors,
) -> np.ndarray:
  """Returns the oracle's stage, computed from a candidate's tensors.

  If those are bit for bit the oracle's, that is the tensor in `expected`.
  """
  for read in case.sources[name]:
    alike = read in sources and name in expected and read in expected
    if (
      not alike
      or tile_lanes.differs('bitwise', sources[read], expected[read]).any()
    ):
      return case.recompute(name, sources)
  return expected[name]


def find_refused(
  case: pass_case.PassCase,
  name: str,
  sources: passes.Tensors,
  expected: passes.Tensors,
  actual: np.ndarray,
) -> np.ndarray:
  """Returns `[R, ...]` bool, elements of a failed stage that are wrong.

  If sources were not returned, `edges` names the elements that no right kernel
  stores; other limits are wider, or refuse tiles.
  """
  usable = case.select_usable(name, sources)
  has_edges = edges.apply_to(case.inputs.policy) and not case.unseen_saved
  if has_edges and not case.has_all_sources(name, usable):
    chain = build_chain(case, name, usable, expected)
    outside = tile_lanes.out_of_edges(name, actual, chain)
    if outside.any():
      return outside
  return tile_lanes.out_of_bound(name, actual, case.golden(sources))


def build_chain(
  case: pass_case.PassCase,
  name: str,
  sources: passes.Tensors,
  expected: passes.Tensors,
  beside: golden_lib.Rows | None = None,
) -> edges.Chain:
  """Returns the chain of stages from the nearest returned ones to `name`.

  Its golden uses the weights that `beside` prepares.
  """
  unseen = case.list_unseen(name, sources)
  own: pass_case.Arrays = {}
  for stage in (*unseen, name):
    if case.has_any_source(stage, sources):
      own[stage] = case.recompute(stage, {**sources, **own})
    else:
      own[stage] = expected[stage]
  policy = edges.without_storage(case.inputs.policy)
  golden = case.golden({**sources, **own}, policy)
  golden = dataclasses.replace(
    golden, operand_dtype=case.inputs.policy.dtype(name)
  )
  golden = golden if beside is None else golden.share_weights(beside)
  comparisons = verdicts.comparisons(case.inputs.config)
  return edges.Chain(golden, own, unseen, comparisons)


def _run_jobs(
  options: pass_case.LaneOptions,
  layer_pass: passes.Pass,
  jobs: Sequence[tuple[str, Job]],
  fork: bool | None,
) -> pass_case.Results:
  """Returns the results of jobs; reports each step before its first job."""
  results: pass_case.Results = []
  last_step = ''
  job_results = forked_jobs.run_jobs([job for _, job in jobs], fork)
  for step, _ in jobs:
    if step != last_step:
      options.progress(f'{layer_pass.name}, bounded, standard: {step}')
      last_step = step
    results += next(job_results)
  if last_step != 'layer':
    options.progress(f'{layer_pass.name}, bounded, standard: layer')
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
