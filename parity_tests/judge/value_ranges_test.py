"""Ranges are those of the values that a check tried."""

import re

import numpy as np
import pytest

from hpmoe.parity_tests import api
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import value_ranges
from hpmoe.reference.contract import presets


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_ranges_of_a_small_layer_are_exact(dtype):
  # given
  inputs = inputs_lib.make_inputs(presets.get('tiny'), 2, dtype=dtype)
  kernel = trial.Kernel()
  gate_up = kernel.forward(inputs.config, inputs.policy, inputs.arrays)[
    'gate_up'
  ].astype(np.float64)
  gate, up = np.split(gate_up, 2, axis=-1)
  expected = dict(gate=gate, up=up, x=inputs.arrays['x'].astype(np.float64))

  # when
  ranges = value_ranges.measure_ranges(inputs)

  # then: the padding is 0, which all have
  for name, values in expected.items():
    assert ranges[name] == pytest.approx((values.min(), values.max()), rel=0.01)
  assert ranges['up'][0] < -1e6 and ranges['up'][1] > 1e6


def test_a_pass_says_beyond_which_values_nothing_was_tried():
  # given: values of the caller, of order one
  rng = np.random.default_rng(0)
  arrays = {
    n: np.float32(a.astype(np.float64) * 0 + rng.normal(size=a.shape) / 4)
    for n, a in case_lib.Case(preset='tiny', ranks=2).make().arrays.items()
  }
  ids = case_lib.Case(preset='tiny', ranks=2).make().arrays['topk_ids']
  case = case_lib.Case(input={**arrays, 'topk_ids': ids})

  def forward(inputs, config, policy):
    return dict(y=trial.Kernel().forward(config, policy, inputs)['y'])

  # when
  report = api.check(forward, case, lanes=('bounded',))

  # then
  assert report.is_pass
  (line,) = re.findall('not tried: values beyond x -0.*', str(report))
  assert 'up -' in line
  assert report.check_report.config['ranges']['up'][1] < 4
