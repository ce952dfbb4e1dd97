"""The W8A8 kernel of the pages passes, and a wrong scale in it is named."""

import pytest

from examples import w8a8_kernel
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement

CASE = case_lib.Case(
  preset='tiny', ranks=2, quantised='int8_channel', rows='int8_token'
)


def check_kernel(kernel):
  candidate = in_process.Function(kernel)
  judging = judgement.Judgement(lanes=('bounded',), repeat=1)
  return check.run(check.Request(CASE, candidate, judging))


def use_scales_of_first_channel(inputs, config, policy):
  scales = inputs['w_gate_up_scales'].copy()
  scales[:] = scales[..., :1]
  changed = {**inputs, 'w_gate_up_scales': scales}
  return w8a8_kernel.layer(changed, config, policy)


def test_the_kernel_passes():
  assert check_kernel(w8a8_kernel.layer).verdict == 'pass'


@pytest.mark.verdict_alone
def test_scales_of_one_channel_fail():
  assert check_kernel(use_scales_of_first_channel).verdict == 'fail'
