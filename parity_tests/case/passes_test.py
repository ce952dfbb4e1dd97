"""The two passes as data: complete, and in order."""

import pytest

from hpmoe.parity_tests.case import passes
from hpmoe.reference import layer_grad
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

LAYERS = (tensors.Parts(), tensors.EVERY_PART)


@pytest.mark.parametrize('layer', LAYERS, ids=('plain', 'every part'))
@pytest.mark.parametrize('placement', ('combine', 'before_down'))
@pytest.mark.parametrize('which', (passes.FORWARD, passes.BACKWARD))
def test_a_stage_comes_after_what_it_is_computed_from(which, placement, layer):
  policy = precision.PrecisionPolicy(placement=placement)
  which = which.of_layer(layer)
  sources = which.sources(layer, policy)

  assert set(sources) == {*which.outputs, which.relayed}
  for stage, before in sources.items():
    assert all(
      which.stages.index(b) < which.stages.index(stage) for b in before
    )
  assert set(which.movement(policy)) <= set(which.stages)
  assert set(which.results) <= set(which.stages)


@pytest.mark.parametrize('layer', LAYERS, ids=('plain', 'every part'))
@pytest.mark.parametrize('placement', ('combine', 'before_down'))
def test_the_backward_pass_reads_what_the_oracle_reads(placement, layer):
  policy = precision.PrecisionPolicy(placement=placement)

  read = set(passes.BACKWARD.reads(layer, policy))

  needed = {*layer_grad.reads(layer, policy), 'dy'}
  assert needed | {*tensors.inputs(layer)} == read
  assert set(tensors.saved(layer, placement)) < set(tensors.stages(layer))


def test_a_direction_is_its_passes_in_order():
  assert passes.from_direction('both') == (passes.FORWARD, passes.BACKWARD)
  assert passes.from_direction('backward') == (passes.BACKWARD,)
  with pytest.raises(ValueError, match='direction: expected one of .* got'):
    passes.from_direction('sideways')
