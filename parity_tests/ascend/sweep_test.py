"""The sweep: what it covers, and that equal bits are not assumed."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import sweep
from hpmoe.parity_tests.case import passes

PLAN = sweep.Plan(
  presets=('tiny',),
  ranks=(2,),
  routings=('zipf', 'empty_experts'),
  dtypes=('float32',),
  event_grains=('expert', 'row_block'),
  row_blocks=(16,),
  tokens=9,
)


@pytest.mark.slow
def test_every_case_is_run_and_passes():
  lines, steps = [], []

  cases = sweep.run(PLAN, lines.append, steps.append)

  assert len(cases) == len(lines) == len(steps) == PLAN.cases == 4
  assert [c.judgement for c in cases] == ['all lanes', 'same bits'] * 2
  assert [(row['judged'], row['why']) for row in lines] == [
    (case.judgement, case.reason) for case in cases
  ]
  assert all(c.verdict == 'pass' and c.tiles > 0 for c in cases)
  assert {(c.routing, c.event_grain) for c in cases} == {
    (r, g) for r in PLAN.routings for g in PLAN.event_grains
  }
  assert '4 of 4 cases pass' in sweep.format_summary(cases)
  (group,) = sweep.to_json(PLAN, cases)['groups']
  assert (group['cases'], group['passed']) == (4, 4)
  assert group['tiles'] == sum(c.tiles for c in cases)
  # One case that fails is enough.
  bad = dataclasses.replace(cases[0], verdict='fail')
  assert sweep.to_json(PLAN, [bad, *cases])['verdict'] == 'fail'


@pytest.mark.parametrize(
  ('changes', 'expected'),
  [
    (
      dict(
        direction='backward',
        chain_rows=(None, 16),
        weight_grad_orders=('interleaved', 'last'),
      ),
      [
        dict(chain_rows=rows, weight_grad_order=order)
        for rows in (None, 16)
        for order in ('interleaved', 'last')
      ],
    ),
    # Of a dtype that has it.
    (
      dict(
        direction='forward',
        dtypes=('float32', 'bfloat16'),
        accumulation_orders=('ascending', 'even_odd_32'),
      ),
      [
        dict(dtype=dtype, accumulation_order=order, judgement='all lanes')
        for dtype, order in (
          ('float32', 'ascending'),
          ('bfloat16', 'ascending'),
          ('bfloat16', 'even_odd_32'),
        )
      ],
    ),
    # A relayed layer has the bits of the other.
    (
      dict(relay=(False, True)),
      [
        dict(relay=False, judgement='all lanes'),
        dict(relay=True, judgement='same bits'),
      ],
    ),
  ],
  ids=('weight_gradients', 'orders', 'relay'),
)
@pytest.mark.few(1)
def test_what_a_plan_lists_is_covered(changes, expected):
  single = dict(routings=('zipf',), event_grains=('row_block',))
  plan = dataclasses.replace(PLAN, **single | changes)

  cases = sweep.run(plan, lambda line: None)

  assert len(cases) == plan.cases == len(expected)
  assert {case.verdict for case in cases} == {'pass'}
  for case, fields in zip(cases, expected, strict=True):
    assert fields.items() <= vars(case).items()
    assert ('d_w_down' in case.worst_ulp) == (plan.direction != 'forward')


@pytest.mark.parametrize('guilty', (passes.FORWARD, passes.BACKWARD))
@pytest.mark.few(1)
def test_a_bit_that_differs_is_judged(monkeypatch, guilty):
  # Given a backend that is wrong at one event grain only,
  right = host.Megakernel.run

  def run(self, config, policy, inputs, layer_pass, oracle_tensors=None):
    answer = right(self, config, policy, inputs, layer_pass, oracle_tensors)
    if layer_pass is guilty and self.options.event_grain == 'row_block':
      answer[guilty.results[0]][0, 0, 0] += np.float32(1)
    return answer

  monkeypatch.setattr(host.Megakernel, 'run', run)

  # when it is swept, then the lanes see it.
  cases = sweep.run(
    dataclasses.replace(PLAN, routings=('zipf',)), lambda line: None
  )
  assert [(c.verdict, c.judgement) for c in cases] == [
    ('pass', 'all lanes'),
    ('fail', 'all lanes'),
  ]
  assert f'{guilty.results[0]} exact' in cases[1].reason
  assert 'FAIL: tiny R=2' in sweep.format_summary(cases)


def test_bits_that_differ_fail_even_if_every_lane_passes(monkeypatch):
  # Given a backend whose second launch has other bits, within all rules,
  monkeypatch.setattr(sweep, '_same_bits', lambda *args: False)

  # when it is swept, then the first law is broken.
  first, second = sweep.run(
    dataclasses.replace(PLAN, direction='forward', routings=('zipf',)),
    lambda line: None,
  )
  assert (first.verdict, second.verdict) == ('pass', 'fail')
  assert 'not with the bits of the first case' in second.reason


def test_a_wrong_shape_is_refused_before_any_case_runs():
  lines = []

  with pytest.raises(ValueError, match='expected a divisor of num_experts=8'):
    sweep.run(dataclasses.replace(PLAN, ranks=(2, 3)), lines.append)

  assert not lines


def test_a_sweep_over_nothing_is_refused():
  with pytest.raises(ValueError, match='^routings: expected at least one'):
    dataclasses.replace(PLAN, routings=())
