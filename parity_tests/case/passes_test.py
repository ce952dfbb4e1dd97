"""The two passes as data: complete, and in order."""

import pytest

from hpmoe.parity_tests.case import passes
from hpmoe.reference import layer_grad
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

LAYERS = (tensors.Parts(), tensors.EVERY_PART)


@pytest.mark.parametrize('layer', LAYERS, ids=('plain', 'every part'))
@pytest.mark.parametrize('placement', ('combine', 'before_down'))
@pytest.mark.parametrize('layer_pass', (passes.FORWARD, passes.BACKWARD))
def test_a_stage_comes_after_what_it_is_computed_from(
  layer_pass, placement, layer
):
  policy = precision.PrecisionPolicy(placement=placement)
  layer_pass = layer_pass.of_layer(layer)
  sources = layer_pass.sources(layer, policy)

  assert set(sources) == {*layer_pass.outputs, layer_pass.relayed}
  for stage, before in sources.items():
    assert all(
      layer_pass.stages.index(b) < layer_pass.stages.index(stage)
      for b in before
    )
  assert set(layer_pass.movement(policy)) <= set(layer_pass.stages)
  assert set(layer_pass.results) <= set(layer_pass.stages)


@pytest.mark.parametrize('layer', LAYERS, ids=('plain', 'every part'))
@pytest.mark.parametrize('placement', ('combine', 'before_down'))
def test_the_backward_pass_reads_what_the_oracle_reads(placement, layer):
  policy = precision.PrecisionPolicy(placement=placement)

  read = set(passes.BACKWARD.reads(layer, policy))

  required = {*layer_grad.reads(layer, policy), 'dy'}
  assert required | {*tensors.inputs(layer)} == read
  assert set(tensors.saved_stages(layer, placement)) < set(
    tensors.stages(layer)
  )


def test_a_direction_is_its_passes_in_order():
  assert passes.from_direction('both') == (passes.FORWARD, passes.BACKWARD)
  assert passes.from_direction('backward') == (passes.BACKWARD,)
  with pytest.raises(ValueError, match='direction: expected one of .* got'):
    passes.from_direction('sideways')
