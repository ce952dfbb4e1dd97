"""`hpmoe sweep`: parity for every shape, routing, dtype and granularity.

The oracle runs once for each set of inputs.  The first granularity is judged in
all four lanes.  The others must return the same bits as the first; then its
verdicts in the lanes bounded and standard hold for them too.  If a bit differs,
all lanes judge again to show where, and the case fails.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import itertools
import math
import time
from typing import Any

import numpy as np

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.cache import versions
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import text_table
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets

ERROR = 'error'
_WEIGHT_GRADS = {
  order: n for n, order in granularity.WEIGHT_GRAD_ORDERS.items()
}
# Their product is not complete: an order belongs to some dtypes only.
_SUMS = ('dtypes', 'accumulation_orders')


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a sweep covers: the product of all lists.

  Attributes:
    presets, ranks, routings, dtypes: inputs.
    event_grains, row_blocks: granularities of the backend.
    chain_rows, weight_grad_orders: granularities of its backward pass.
    accumulation_orders: of its sums; each for the dtypes that have it.
    relay: whether rows are relayed.
    direction: one of `passes.DIRECTIONS`.
    tokens: T instead of the presets'.
    seed: seed of all values.
    placement: where the routing weight multiplies.
  """

  presets: tuple[str, ...]
  ranks: tuple[int, ...]
  routings: tuple[str, ...]
  dtypes: tuple[str, ...]
  event_grains: tuple[str, ...]
  row_blocks: tuple[int, ...]
  chain_rows: tuple[int | None, ...] = (None,)
  weight_grad_orders: tuple[str, ...] = ('interleaved',)
  accumulation_orders: tuple[str, ...] = ('ascending',)
  relay: tuple[bool, ...] = (False,)
  direction: str = 'both'
  tokens: int | None = None
  seed: int = 0
  placement: str = 'combine'

  def __post_init__(self):
    for name, value in vars(self).items():
      if isinstance(value, (tuple, list)) and not value:
        raise ValueError(f'{name}: expected at least one, got none')
    unknown = set(self.weight_grad_orders) - set(granularity.WEIGHT_GRAD_ORDERS)
    if unknown:
      raise ValueError(
        f'weight_grad_orders: expected some of '
        f'{tuple(granularity.WEIGHT_GRAD_ORDERS)}, got {min(unknown)!r}'
      )
    precision.sums(self.dtypes, self.accumulation_orders)

  @property
  def sums(self) -> tuple[tuple[str, str], ...]:
    """Pairs of a storage dtype and an order of accumulation."""
    return precision.sums(self.dtypes, self.accumulation_orders)

  @property
  def cases(self) -> int:
    fields = [v for n, v in vars(self).items() if n not in _SUMS]
    lists = [value for value in fields if isinstance(value, (tuple, list))]
    return math.prod(map(len, (self.sums, *lists)))

  def iterate_cases(self) -> Iterator[case_lib.Case]:
    """Yields the cases, one for each set of inputs.

    All routings of a shape get the lossless capacity, so that the oracle is
    compiled once for all of them.
    """
    for preset, ranks, (dtype, order), routing in itertools.product(
      self.presets, self.ranks, self.sums, self.routings
    ):
      shape = presets.config(presets.get(preset), ranks, self.tokens)
      yield case_lib.Case(
        direction=self.direction,
        capacity=shape.num_rows,
        preset=preset,
        ranks=ranks,
        tokens=self.tokens,
        dtype=dtype,
        routing=routing,
        seed=self.seed,
        placement=self.placement,
        accumulation_order=order,
      )

  def options(self) -> Iterator[granularity.Options]:
    for grain, row_block, chain, order, relay in itertools.product(
      self.event_grains,
      self.row_blocks,
      self.chain_rows,
      self.weight_grad_orders,
      self.relay,
    ):
      yield granularity.Options(
        event_grain=grain,
        row_block=row_block,
        chain_rows=chain,
        order=granularity.WEIGHT_GRAD_ORDERS[order],
        relay=relay,
      )


@dataclasses.dataclass(frozen=True)
class CaseResult:
  """The result of one case under one granularity.

  Attributes:
    preset, ranks, dtype, accumulation_order, routing, event_grain, row_block,
      chain_rows, weight_grad_order, relay: the case and its granularity.
    verdict: 'pass', 'fail' or 'error'.
    judgement: 'all lanes', or 'same bits' as a case judged in all lanes.
    tiles: tiles compared.
    worst_ulp: of the lane bounded, by stage.
    reason: what failed.
    seconds: wall time.
  """

  preset: str
  ranks: int
  dtype: str
  accumulation_order: str
  routing: str
  event_grain: str
  row_block: int
  chain_rows: int | None
  weight_grad_order: str
  relay: bool
  verdict: str
  judgement: str
  tiles: int
  worst_ulp: dict[str, int]
  reason: str
  seconds: float


def run(
  plan: Plan,
  write: Callable[[dict[str, object]], None],
  progress: Callable[[str], None] = lambda step: None,
) -> list[CaseResult]:
  """Runs every case.

  Args:
    plan: what to cover.
    write: called with each result as plain data, as soon as it is known.
    progress: called with the name of each case before it runs.

  Raises:
    ValueError: the plan names something that does not exist.
  """
  results = []
  for case in list(plan.iterate_cases()):  # a wrong shape fails before any runs
    bench = bench_lib.Bench(case, keep=True)
    first = None
    for options in plan.options():
      progress(_describe_case(case, options))
      result, first = _run_case(case, options, bench, first)
      write(_to_row(result))
      results.append(result)
  return results


@dataclasses.dataclass(frozen=True)
class _Recording(host.Megakernel):
  """Our backend, recording its outputs: exact data first, passes in order."""

  answers: list[dict[str, np.ndarray]] = dataclasses.field(
    default_factory=list, init=False
  )

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ):
    answer = super().run(config, policy, inputs, layer_pass, oracle_tensors)
    self.answers.append(answer)
    return answer


@dataclasses.dataclass(frozen=True)
class _First:
  """A case that passed in all lanes, and its bits."""

  answers: Sequence[dict[str, np.ndarray]]
  tiles: int
  worst_ulp: dict[str, int]


def _run_case(
  case: case_lib.Case,
  options: granularity.Options,
  bench: bench_lib.Bench,
  first: _First | None,
) -> tuple[CaseResult, _First | None]:
  start = time.perf_counter()
  candidate = _Recording(options)
  try:
    if first is not None and _same_bits(case, bench, candidate, first):
      end = ('pass', 'same bits', first.tiles, first.worst_ulp, '')
    else:
      candidate.answers.clear()
      results = bench.judge(request_lib.Request(case, candidate))
      end = _outcome(results)
      if first is not None and end[0] == verdicts.PASS:
        reason = 'passes in all lanes, but not with the bits of the first case'
        end = (verdicts.FAIL, *end[1:-1], reason)
      if first is None and end[0] == verdicts.PASS:
        first = _First(candidate.answers, end[2], end[3])
  except candidates.CandidateError as error:
    end = (ERROR, 'all lanes', 0, {}, str(error))
  result = CaseResult(
    case.preset,
    case.ranks,
    case.dtype,
    case.accumulation_order,
    case.routing,
    options.event_grain,
    options.row_block,
    options.chain_rows,
    _WEIGHT_GRADS[options.order],
    options.relay,
    *end,
    round(time.perf_counter() - start, 3),
  )
  return result, first


def _same_bits(
  case: case_lib.Case,
  bench: bench_lib.Bench,
  candidate: _Recording,
  first: _First,
) -> bool:
  expected = iter(first.answers)
  for inputs in map(bench.inputs, inputs_lib.DATA):
    outputs: passes.Tensors = {}
    for layer_pass in case.passes:
      pass_case = bench.case(candidate, layer_pass, inputs, outputs)
      outputs = pass_case.run(candidate.run)
      right = next(expected)
      for name in layer_pass.outputs:
        if not np.array_equal(ulp.bits(outputs[name]), ulp.bits(right[name])):
          return False
  return True


def _outcome(results: Sequence[verdicts.Result]):
  failures = [r for r in results if r.verdict == verdicts.FAIL]
  reason = '; '.join(
    f'{r.stage} {r.lane} {r.rule} {r.reason}'.strip() for r in failures
  )
  return (
    verdicts.FAIL if failures else verdicts.PASS,
    'all lanes',
    sum(r.tiles for r in results),
    {r.stage: r.worst_ulp for r in results if r.lane == 'bounded'},
    reason,
  )


def _describe_case(
  case: CaseResult | case_lib.Case, cut: CaseResult | granularity.Options
) -> str:
  """Returns the name of a case in progress and failures."""
  order = case.accumulation_order
  return (
    f'{case.preset} R={case.ranks} {case.dtype} '
    f'{"" if order == "ascending" else f"{order} "}{case.routing} '
    f'{cut.event_grain} {cut.row_block}{" relay" if cut.relay else ""}'
  )


def all_pass(cases: Sequence[CaseResult]) -> bool:
  return all(case.verdict == verdicts.PASS for case in cases)


def to_json(plan: Plan, cases: Sequence[CaseResult]) -> dict[str, Any]:
  """Returns plan, counts by preset and dtype, and cases, as plain data."""
  return dict(
    verdict=verdicts.PASS if all_pass(cases) else verdicts.FAIL,
    plan=plan,
    groups=_count_groups(cases),
    cases=[_to_row(case) for case in cases],
    versions=versions.list_versions(),
  )


def _to_row(result: CaseResult) -> dict[str, Any]:
  """Returns a result as the report's JSON names its fields."""
  return json_fields.rename_fields(result, judgement='judged', reason='why')


def _count_groups(cases: Sequence[CaseResult]) -> list[dict[str, Any]]:
  """Returns counts by preset and dtype."""
  cases_by_group = itertools.groupby(
    sorted(cases, key=lambda c: (c.preset, c.dtype)),
    key=lambda c: (c.preset, c.dtype),
  )
  groups = []
  for (preset, dtype), group in cases_by_group:
    group_results = list(group)
    groups.append(
      dict(
        preset=preset,
        dtype=dtype,
        cases=len(group_results),
        passed=sum(c.verdict == verdicts.PASS for c in group_results),
        tiles=sum(c.tiles for c in group_results),
        seconds=round(sum(c.seconds for c in group_results), 1),
      )
    )
  return groups


def format_summary(cases: Sequence[CaseResult]) -> str:
  """Returns a table of counts by preset and dtype, and each failed case."""
  lines = [text_table.format_rows(_count_groups(cases))]
  for case in cases:
    if case.verdict != verdicts.PASS:
      description = _describe_case(case, case)
      lines.append(f'{case.verdict.upper()}: {description}: {case.reason}')
  num_passed = sum(c.verdict == verdicts.PASS for c in cases)
  lines.append(f'{num_passed} of {len(cases)} cases pass')
  return '\n'.join(lines)
