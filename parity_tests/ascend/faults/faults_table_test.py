"""Every fault is caught and located, and one that is not is reported."""

import dataclasses

import pytest

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend.faults import faults_table
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision

REQUEST = check.Request(
  case_lib.Case(direction='both', preset='tiny', ranks=2),
  host.Megakernel(options=granularity.Options(row_block=8)),
)


# Each grain and each placement once; `make sweep` runs the other pairs.
@pytest.mark.parametrize(
  'grain, placement',
  halved_testing.halved(['expert', 'row_block'], precision.LAUNCHED_PLACEMENTS),
)
@pytest.mark.few(1)
def test_every_fault_is_caught_and_located(grain, placement):
  options = dataclasses.replace(REQUEST.candidate.options, event_grain=grain)
  request = REQUEST.but(options=options, placement=placement)

  rows = faults_table.run(request)

  assert [(row.direction, row.name) for row in rows] == [
    (direction.name.lower(), name)
    for direction in layout.Direction
    for name in ('none', *faults.specs(direction))
  ]
  for row in rows:
    assert row.is_caught, row
    assert (row.caught_by == ()) == (row.name == 'none')
    if row.name != 'none' and not row.fused.startswith('no place: '):
      assert row.fused == row.isolated
  # The launch of front ends has a place for faults in tensors that it writes.
  names_with_place = {row.name for row in rows if row.fused == row.isolated}
  assert {'zero_output', 'lost_k_slot', 'missing_signal'} < names_with_place
  assert 'no place: gate_up is not made' in {row.fused for row in rows}
  assert all(row['caught'] for row in faults_table.to_json(rows)['faults'])
  text = faults_table.format_table(rows)
  assert 'passes' in text and 'MISSED' not in text


@pytest.mark.slow
def test_every_fault_of_a_sublayer_is_caught_and_located():
  rows = faults_table.run(REQUEST.but(preset='tp_norm'))

  assert [(row.direction, row.name) for row in rows] == [
    (direction.name.lower(), name)
    for direction in layout.Direction
    for name in ('none', *faults.specs(direction, sublayer=True))
    if name != 'empty_grad_not_zeroed'  # No expert is without rows.
  ]
  assert [row for row in rows if not row.is_caught] == []
  assert {row.isolated == row.fused for row in rows} == {True}


@pytest.mark.slow
def test_a_fault_that_no_lane_sees_is_missed():
  # Exact data have no silu, so what touches only silu leaves no trace in them;
  # operands that are narrowed do, in those that fill the mantissa.
  rows = faults_table.run(REQUEST.but(lanes=('exact',)))

  missed_names = [row.name for row in rows if not row.is_caught]
  unseen = ['early_rounding', 'silu_off']
  assert missed_names == [*unseen, *unseen, 'blocks_out_of_order']
  assert faults_table.to_json(rows)['verdict'] == 'fail'
  assert 'MISSED' in faults_table.format_table(rows)


def test_a_fault_that_the_fused_launch_alone_hides_is_missed(monkeypatch):
  # Given a replay of the fused launch that sees nothing, when faults are
  # planted there, too, then those that have a place in it are missed.
  def blind(self, *arguments, original=host.Megakernel.alone_as_used):
    outputs, whole = original(self, *arguments)
    return {name: whole[name] for name in outputs}, whole

  monkeypatch.setattr(host.Megakernel, 'alone_as_used', blind)
  names_with_place = {'zero_output', 'lost_k_slot', 'misplaced_weight'}
  specs = {n: faults.SPECS[n] for n in (*names_with_place, 'dropped_tile')}
  monkeypatch.setattr(faults, 'specs', lambda *_: specs)

  rows = faults_table.run(REQUEST.but(direction='forward'))

  missed_names = {row.name for row in rows if not row.is_caught}
  assert missed_names == names_with_place
  assert rows[-1].fused.startswith('no place')


@pytest.mark.slow
def test_a_fault_that_bfloat16_hides_is_left_out_by_name():
  request = REQUEST.but(direction='backward', dtype='bfloat16')

  rows = faults_table.run(request)

  assert all(row.is_caught for row in rows)
  assert faults_table.left_out(request, rows) == [
    f'backward {name}: left out, shows in {dtypes} only'
    for name, dtypes in (
      ('narrow_operands_tf32', 'float32'),
      ('narrow_operands_bf16', 'float32 or float16'),
      ('blocks_out_of_order', 'float32'),
    )
  ]


@pytest.mark.parametrize(
  'fields, routings',
  [
    (dict(), ('empty_experts', '')),
    (dict(routing='empty_experts'), ('', '')),
    # All weights are 1, and no expert can be spared.
    (dict(preset='tp'), (None, 'balanced')),
  ],
  ids=('tiny', 'empty_experts', 'tp'),
)
def test_a_fault_gets_a_routing_that_shows_it(fields, routings):
  case = dataclasses.replace(REQUEST.case, **fields)
  bench = bench_lib.Bench(case)
  specs = faults.specs(layout.Direction.BACKWARD)
  names = ('empty_grad_not_zeroed', 'misplaced_weight')

  actual = tuple(faults_table._routing(case, bench, specs[n]) for n in names)

  assert actual == routings
