"""Errors of our own backend are not reported as wrong requests."""

import numpy as np
import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.candidates import candidates
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

CONFIG = config_testing.make_config(r=1, t=3, e=2, k=1, d=4, f=2)


def _inputs():
  specs = [tensors.SPECS[name] for name in tensors.INPUTS]
  inputs = {s.name: np.ones(s.dims(**CONFIG.dims()), np.float32) for s in specs}
  return inputs | dict(topk_ids=np.ones((1, 3, 1), np.int32))


class _Early:
  """A lowering that, after `right_cuts` calls, sets a threshold too low."""

  def __init__(self, lower, right_cuts: int):
    self.lower = lower
    self.right = right_cuts

  def __call__(self, *arguments):
    flow = self.lower(*arguments)
    self.right -= 1
    if self.right < 0:
      flow.waits['threshold'][0] -= 1
    return flow


@pytest.mark.parametrize('right_cuts', [0, 1])
def test_a_flow_that_a_proof_refuses_is_no_wrong_request(
  monkeypatch, right_cuts
):
  # Given a lowering that goes wrong in the launch, or only in the cut of the
  # serial run, when either is made, then the candidate could not run.
  host._compiled.cache_clear()
  lower = _Early(host.compiler.lower_forward.lower_forward, right_cuts)
  monkeypatch.setattr(host.compiler.lower_forward, 'lower_forward', lower)
  megakernel = host.Megakernel(granularity.Options(num_aic=1, num_aiv=1))
  policy = precision.PrecisionPolicy()
  inputs = _inputs()
  runs = [megakernel.run, megakernel.serial]

  for run in runs[:right_cuts]:
    run(CONFIG, policy, inputs)
  with pytest.raises(candidates.CandidateError, match='^backend_ascend: '):
    runs[right_cuts](CONFIG, policy, inputs)


def test_a_launch_that_ends_early_hands_out_its_plan():
  megakernel = host.Megakernel(
    granularity.Options(num_aic=1, num_aiv=1), fault='missing_signal'
  )
  inputs = _inputs()

  with pytest.raises(candidates.CandidateError, match='deadlock') as error:
    megakernel.run(CONFIG, precision.PrecisionPolicy(), inputs)

  assert error.value.plan.keys() == set(tensors.PLAN)
  np.testing.assert_array_equal(error.value.plan['counts'], [[0, 3]])
