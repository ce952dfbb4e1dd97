"""Intervals of right values do not depend on when they are computed."""

import pytest

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import tolerance_lanes
from hpmoe.parity_tests.judge.limits import edges
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

RANKS, ROWS = 2, 16


@pytest.mark.parametrize(
  'fields, expected',
  [
    (dict(), False),
    (dict(storage='bfloat16'), True),
    (dict(rows='e4m3_1x128'), True),
    (dict(points=('y=bfloat16',)), True),
    (dict(points=('silu=bfloat16',)), True),
    (dict(points=('operands=tf32',)), True),
    # Emulated products are sums of float32 terms: nothing is rounded alike.
    (dict(points=('operands=bf16x3',)), False),
  ],
)
def test_they_apply_where_right_kernels_round_alike(fields, expected):
  assert edges.apply_to(precision.PrecisionPolicy(**fields)) == expected


def test_stages_are_not_rounded_when_they_are_stored():
  policy = precision.PrecisionPolicy(
    storage='bfloat16', points=('silu=float16', 'gate_up=float32')
  )
  wide = edges.without_storage(policy)
  assert (wide.storage, wide.points) == ('float32', ('silu=float16',))


def build_case():
  case = case_lib.Case(preset='tiny', ranks=RANKS, dtype='bfloat16')
  bench = bench_lib.Bench(case)
  inputs = bench.real_inputs
  tiling = bench_lib.cut_tiles(granularity.Options(), inputs, bench.plan)
  answer = lambda: bench.answer(inputs)
  return pass_case.PassCase(passes.FORWARD, inputs, tiling, answer)


def collect_intervals(chain) -> list[bytes]:
  intervals = [chain.interval('y', rank, 0, ROWS) for rank in range(RANKS)]
  return [
    array.tobytes()
    for interval in intervals
    for array in (interval.own, interval.low, interval.high, interval.is_finite)
  ]


@pytest.fixture
def is_large(monkeypatch):
  monkeypatch.setattr(golden_lib, '_MANY_PRODUCTS', 0)


def test_row_by_row_they_are_those_of_stage_by_stage(is_large, monkeypatch):
  case = build_case()
  by_row = tolerance_lanes.build_chain(case, 'y', {}, case.answer())
  assert {'gate_up', 'activation', 'expert_out'} <= {*by_row.row_stages}
  # Limits differ where two right kernels store different rows.
  of_rows = collect_intervals(by_row)
  assert by_row._deviating_golden.deviations

  monkeypatch.setattr(golden_lib, '_MANY_PRODUCTS', 1 << 62)
  by_stage = tolerance_lanes.build_chain(case, 'y', {}, case.answer())
  assert not by_stage.row_stages
  assert collect_intervals(by_stage) == of_rows


def test_beside_the_sums_they_are_the_same_and_cost_fewer_products(
  is_large, monkeypatch
):
  case = build_case()
  counts = []
  plain = gemm_bounds._prefix_sums
  monkeypatch.setattr(
    gemm_bounds, '_prefix_sums', lambda *args: counts.append(1) or plain(*args)
  )

  def count(beside: bool) -> tuple[list[bytes], int]:
    counts.clear()
    golden = case.golden({})
    chain = tolerance_lanes.build_chain(
      case, 'y', {}, case.answer(), golden if beside else None
    )
    if beside:
      chain.accompany(golden)
    golden.rows('y', 0, 0, ROWS)
    return collect_intervals(chain), len(counts)

  apart, products_apart = count(beside=False)
  beside, products_beside = count(beside=True)

  assert beside == apart
  # Of two GEMMs in two goldens, gate_up's is shared; a product of rows with
  # and without deviations is one in both ways.
  assert products_beside / products_apart == pytest.approx(3 / 4, abs=0.05)


def test_rows_that_were_not_filled_beside_other_work_are_filled(is_large):
  case = build_case()
  whole = tolerance_lanes.build_chain(case, 'y', {}, case.answer())
  part = tolerance_lanes.build_chain(case, 'y', {}, case.answer())

  part._make_room()
  part.fill(*next(part.golden.iterate_packed())[:3])

  assert collect_intervals(part) == collect_intervals(whole)
