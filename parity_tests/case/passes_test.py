"""The two passes as data: complete, and in order."""

import pytest

from hpmoe.parity_tests.case import passes
from hpmoe.reference import layer_grad
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


@pytest.mark.parametrize('placement', ('combine', 'before_down'))
@pytest.mark.parametrize('which', (passes.FORWARD, passes.BACKWARD))
def test_a_stage_comes_after_what_it_is_computed_from(which, placement):
  policy = precision.PrecisionPolicy(placement=placement)
  sources = which.sources(policy)

  assert set(sources) == {*which.outputs, which.relayed}
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
