"""The limits are as tight as docs/tightness.md says."""

import dataclasses

from hpmoe.parity_tests.commands import tightness


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
