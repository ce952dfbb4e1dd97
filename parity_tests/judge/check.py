"""One check: runs the lanes of a request and returns a report."""

from collections.abc import Mapping
import dataclasses
import time
from typing import Any

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import shared_memory
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import isolated_replay
from hpmoe.parity_tests.judge import price as price_lib
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import self_routing
from hpmoe.parity_tests.judge import value_ranges
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import equality
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import repeat

Request = request_lib.Request


@dataclasses.dataclass(frozen=True)
class Report:
  """The results of a check.

  Attributes:
    config: sizes, policy, routing facts and options, as plain data.
    results: every comparison, by lane, in dependency order.
    seconds: wall time.
    wrong: in isolated replay, the tasks that are wrong.
    launches: launches of the megakernel.
    changes: tensors whose bits differ in a later run on the same inputs, or
      that are wrong in a run on others.
    runs: the smallest number of runs of a pass on the same inputs.
  """

  config: Mapping[str, Any]
  results: tuple[verdicts.Result, ...]
  seconds: float
  wrong: tuple[isolated_replay.WrongTask, ...] = ()
  launches: tuple[candidates.Launch, ...] = ()
  changes: tuple[verdicts.Change, ...] = ()
  runs: int = 1

  @property
  def verdict(self) -> str:
    fails = any(r.verdict == verdicts.FAIL for r in self.results)
    has_failed = fails or self.num_races or not self.is_steady
    return verdicts.FAIL if has_failed else verdicts.PASS

  @property
  def is_steady(self) -> bool:
    """Whether all runs agree, or are allowed to differ."""
    if self.is_stale:
      return False
    return not self.changes or bool(self.config['allow_nondeterministic'])

  @property
  def is_stale(self) -> bool:
    """Whether a call on other data of the same shape was wrong."""
    return any(change.is_other for change in self.changes)

  @property
  def num_races(self) -> int:
    return sum(launch.num_races for launch in self.launches)

  @property
  def races(self) -> tuple[Any, ...]:
    """The first races, each once: launches on other data repeat them."""
    return tuple(
      dict.fromkeys(r for launch in self.launches for r in launch.races)
    )

  @property
  def first_failure(self) -> verdicts.Failure | None:
    """The failing tile that comes first in dependency order.

    In isolated replay errors do not spread, so failures of the strictest lane
    come first.
    """
    failures = [r.failure for r in self.results if r.failure is not None]
    key = verdicts.Failure.order
    if self.config.get('modes', {}).get('isolate'):
      key = verdicts.Failure.severity
    sublayer = verdicts.is_of_sublayer(r.stage for r in self.results)
    return min(
      failures, key=lambda failure: key(failure, sublayer), default=None
    )


def count_steps(request: Request) -> int:
  """Returns how often `run` calls `progress`."""
  has_serial = request.candidate.serial is not None
  repeats = repeat.count_runs(request.judgement, request.candidate) - 1
  return 1 + sum(
    pass_case.count_pass_steps(request.judgement.lanes, layer_pass, has_serial)
    + repeats
    for layer_pass in request.case.passes
  )


def run(
  request: Request, progress: pass_case.Progress = lambda step: None
) -> Report:
  """Runs the lanes of a request.

  Args:
    request: what to check.
    progress: called with the name of each step as it begins.

  Raises:
    ValueError: the request was wrong.
    candidates.CandidateError: the candidate crashed, hung or could not run.
  """
  case = request.case
  if case.router or case.router_gemm or case.local_experts:
    return self_routing.run(request, progress, run)
  start = time.perf_counter()
  candidate = request.candidate.ready(request.case)
  request.judgement.refuse(request.case, candidate)
  request = dataclasses.replace(request, candidate=candidate)
  price = price_lib.estimate(request.case, request.judgement)
  if price is not None:
    price.refuse()
  progress('inputs')
  bench = bench_lib.Bench(request.case)
  try:
    with shared_memory.reuse():
      return run_on_bench(request, bench, start, progress)
  except candidates.CandidateError as error:
    replay = request.replay(*request.judgement.lanes)
    plan_errors = _plan_of_launch(request, bench, error)
    plan_errors += f'; replay: {replay}' if error.diagnosis else ''
    raise candidates.CandidateError(
      f'{error}{plan_errors}',
      error.diagnosis,
      replay,
      time.perf_counter() - start,
      error.plan,
    ) from error


def run_on_bench(
  request: Request,
  bench: bench_lib.Bench,
  start: float,
  progress: pass_case.Progress = lambda step: None,
) -> Report:
  """Returns the report of a bench; `start`: time at which its work began."""
  findings = bench.examine(request, progress)
  return build_report(request, bench, findings, time.perf_counter() - start)


def build_report(
  request: Request,
  bench: bench_lib.Bench,
  findings: pass_case.Findings,
  seconds: float,
) -> Report:
  """Returns the report of some findings."""
  return Report(
    config=describe(request, bench.real_inputs),
    results=tuple(findings.results),
    seconds=seconds,
    wrong=tuple(findings.wrong),
    launches=tuple(request.candidate.launches),
    changes=tuple(findings.changes),
    runs=findings.runs,
  )


def _plan_of_launch(
  request: Request, bench: bench_lib.Bench, error: candidates.CandidateError
) -> str:
  """Returns the error of the plan of a launch that ended early, or ''."""
  if error.plan is None:
    return ''
  tiling = bench_lib.cut_tiles(
    request.candidate.options, bench.real_inputs, bench.plan
  )
  rows = [
    equality.compare_equal(
      name, 'bitwise', equality.ORACLE_RULE, error.plan, bench.plan, tiling
    )
    for name in bench.plan
  ]
  wrong = [row.stage for row in rows if row.verdict == verdicts.FAIL]
  if not wrong:
    return ''
  return f'; not as the oracle plans this routing: {", ".join(wrong)}'


def describe(
  request: Request, inputs: inputs_lib.LayerInputs
) -> dict[str, object]:
  """Returns all facts that decide the outcome, as plain data."""
  candidate, policy = request.candidate, inputs.policy
  options = candidate.options.resolve(inputs.config, policy.accumulation_order)
  return (
    dict(
      direction=request.case.direction,
      layer=dataclasses.asdict(inputs.config),
      policy=dataclasses.asdict(policy),
      routing=inputs.routing,
      inputs=dict(inputs.facts),
      ranges=value_ranges.measure_ranges(inputs),
      shape=value_ranges.describe_shape(inputs),
    )
    | candidate.facts()
    | ({} if candidate.capabilities.stages else dict(results_alone=True))
    | dict(
      candidate=candidate.name,
      options=dataclasses.asdict(options),
      modes=dataclasses.asdict(candidate.checking),
      ranks=candidate.ranks,
      recomputes=candidate.recomputes,
    )
    | dataclasses.asdict(request.judgement)
    | (dict(expensive=True) if repeat.is_expensive(candidate) else {})
    | dict(command=request.replay())
  )
