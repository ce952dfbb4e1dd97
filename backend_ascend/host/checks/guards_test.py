"""Padding of saved tensors is poisoned; guards_test.cc has the guards."""

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

CONFIG = config_testing.make_config(r=4, t=13, e=8, k=3, d=10, f=6)


def test_saved_rows_of_nobody_are_nan_and_the_caller_s_stay():
  policy = precision.PrecisionPolicy()
  case = testing.make_case(layout.Direction.BACKWARD, CONFIG, policy, 'zipf')
  plan = runtime.route(case.image, case.inputs['topk_ids'])
  valid = plan.counts.sum(axis=0).reshape(4, -1).sum(axis=1)

  read = runtime._with_poisoned_padding(case.image, case.inputs, plan)

  assert set(read) == {'expert_in', 'gate_up', 'activation'}
  for name, rows in read.items():
    for rank in range(4):
      np.testing.assert_array_equal(
        rows[rank, : valid[rank]], case.inputs[name][rank, : valid[rank]]
      )
      assert np.isnan(rows[rank, valid[rank] :]).all()
    assert not np.isnan(case.inputs[name]).any()
