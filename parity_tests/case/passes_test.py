"""The two passes as data: complete, in order, and the oracle's own."""

import numpy as np
import pytest

from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference import layer_grad
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import tensors


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
  forward = passes.FORWARD.answer(oracle, made.arrays)
  dy = inputs.draw_dy(made.config, made.arrays['x'].dtype, 3)
  given = {**made.arrays, **forward, 'dy': dy}
  backward = passes.BACKWARD.answer(oracle, given)

  # then each tensor is that of the pass as one function.
  whole = oracle.forward() | oracle.backward(given, dy)
  assert set(forward | backward) == set(whole)
  for name, value in (forward | backward).items():
    np.testing.assert_array_equal(ulp.bits(value), ulp.bits(whole[name]), name)


@pytest.mark.parametrize('placement', ('combine', 'before_down'))
@pytest.mark.parametrize('which', (passes.FORWARD, passes.BACKWARD))
def test_a_stage_comes_after_what_it_is_computed_from(which, placement):
  policy = precision.PrecisionPolicy(placement=placement)
  sources = which.sources(policy)

  assert set(sources) < set(which.stages)
  for stage, before in sources.items():
    assert all(
      which.stages.index(b) < which.stages.index(stage) for b in before
    )
  assert set(which.movement(policy)) <= set(which.stages)
  assert set(which.results) <= set(which.stages)


@pytest.mark.parametrize('placement', ('combine', 'before_down'))
def test_the_backward_pass_reads_what_the_oracle_reads(placement):
  policy = precision.PrecisionPolicy(placement=placement)

  read = set(passes.BACKWARD.reads(policy))

  assert read == {*layer_grad.reads(policy), 'x', 'dy'}
  assert set(passes.saved(policy)) < set(tensors.STAGES)


def test_a_direction_is_its_passes_in_order():
  assert passes.of('both') == (passes.FORWARD, passes.BACKWARD)
  assert passes.of('backward') == (passes.BACKWARD,)
  with pytest.raises(ValueError, match='direction: expected one of .* got'):
    passes.of('sideways')
