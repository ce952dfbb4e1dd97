"""Each pass stage by stage: the bits of the oracle's whole pass."""

import numpy as np
import pytest

from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import of_pass
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import presets


@pytest.mark.parametrize(
  ('dtype', 'placement', 'exact'),
  [
    ('float32', 'before_down', False),
    ('bfloat16', 'combine', False),
    ('float32', 'combine', True),
  ],
)
def test_answers_stage_by_stage_have_the_bits_of_the_whole(
  dtype, placement, exact
):
  # Given a layer whose last rank has rows to spare,
  made = inputs.make_inputs(
    presets.get('tiny'),
    2,
    13,
    dtype,
    'empty_experts',
    exact=exact,
    placement=placement,
  )
  oracle = oracle_lib.Oracle(made.config, made.policy, made.arrays)

  # when both passes are run stage by stage,
  forward = of_pass.answer(oracle, passes.FORWARD, made.arrays)
  dy = inputs.draw_dy(made.config, made.arrays['x'].dtype, 3)
  given = {**made.arrays, **forward, 'dy': dy}
  backward = of_pass.answer(oracle, passes.BACKWARD, given)

  # then each tensor is that of the pass as one function.
  whole = oracle.forward() | oracle.backward(given, dy)
  assert set(forward | backward) == set(whole)
  for name, value in (forward | backward).items():
    np.testing.assert_array_equal(ulp.bits(value), ulp.bits(whole[name]), name)
