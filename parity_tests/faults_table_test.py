"""Every fault is caught where it is, and one that is not is reported."""

import dataclasses

import pytest

from backend_ascend.taskflow import flow as flow_lib
from parity_tests import check
from parity_tests import faults_table

REQUEST = check.Request(
    preset='tiny', ranks=2, options=flow_lib.Options(row_block=8)
)


@pytest.mark.parametrize('placement', ('combine', 'before_down'))
@pytest.mark.parametrize('grain', ('expert', 'row_block'))
def test_every_fault_is_caught_and_located(grain, placement):
  options = dataclasses.replace(REQUEST.options, event_grain=grain)
  request = dataclasses.replace(
      REQUEST, options=options, placement=placement
  )

  rows = faults_table.run(request)

  assert [row.name for row in rows] == ['none', *faults_table.names()]
  for row in rows:
    assert row.caught, row
  assert rows[0].caught_by == ()
  text = faults_table.table(rows)
  assert 'passes' in text and 'MISSED' not in text


def test_a_fault_that_no_lane_sees_is_missed():
  # Integer data have no silu, so early rounding leaves no trace in them.
  rows = faults_table.run(dataclasses.replace(REQUEST, lanes=('exact',)))

  missed = [row.name for row in rows if not row.caught]
  assert missed == ['early_rounding']
  assert faults_table.to_json(rows)['verdict'] == 'fail'
  assert 'MISSED' in faults_table.table(rows)
