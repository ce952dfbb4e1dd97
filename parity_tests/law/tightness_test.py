"""The limits are as tight as docs/measured.md says."""

import dataclasses

from hpmoe.parity_tests.law import tightness


def test_limits_are_tight_and_narrow_operands_caught():
  (row,) = tightness.measure([256], 1, lambda step: None)

  assert row.holds
  assert row.spread[0] > 0.1 and row.tf32 > 100


def test_a_limit_that_nobody_reaches_does_not_hold():
  (row,) = tightness.measure([64], 1, lambda step: None)

  assert not dataclasses.replace(
    row, bound=(0.01,) * 2, spread=(0.01,) * 2
  ).holds
  assert not dataclasses.replace(row, tf32=0.9).holds


def test_each_stage_that_rounds_has_a_row():
  rows = tightness.measure_stages(
    1, lambda step: None, [('float32', 'forward'), ('bfloat16', 'backward')]
  )

  forward = ('gate_up', 'activation', 'expert_out', 'y', 'layer')
  results = ('dx', 'd_topk_weights', 'd_w_down', 'd_w_gate_up')
  between = ('d_expert_out', 'd_activation', 'd_gate_up', 'd_expert_in')
  backward = (*results, *between, *(f'layer {name}' for name in results))
  assert {(r.storage, r.stage) for r in rows} == {
    *(('float32', stage) for stage in forward),
    *(('bfloat16', stage) for stage in backward),
  }
  # Right kernels use some of each limit, but for storage that hides all.
  assert all(row.holds and row.bound[0] > 0 for row in rows)
  assert all(row.spread[0] > 0.01 for row in rows if row.storage == 'float32')
  assert not dataclasses.replace(rows[0], spread=(0.5, 1.5)).holds
