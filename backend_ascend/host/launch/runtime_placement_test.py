"""Experts in other places: no bit of a tensor changes."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.host.load import expert_placement
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

# R, T, E, K, D, F.
SHAPES = {
  'ragged': config_testing.make_config(r=2, t=13, e=8, k=3, d=6, f=5),
  'one_rank': config_testing.make_config(r=1, t=7, e=4, k=4, d=6, f=5),
  'k_is_e': config_testing.make_config(r=4, t=9, e=8, k=8, d=5, f=3),
  'rank_per_expert': config_testing.make_config(r=3, t=10, e=3, k=2, d=4, f=3),
}
OPTIONS = dict(
  row_block=4, col_block=4, put_rows=3, num_aic=2, num_aiv=3, chain_rows=4
)
BUSY = modes_lib.Modes(permute=5, late_puts=True, races=True, guards=True)


def launch_placed(direction, placement, config, policy, inputs, **options):
  """Returns the tensors of a launch in other places, as the layer has them."""
  view = expert_placement.PlacedLayer(placement, config, inputs['topk_ids'])
  image = testing.compiled(direction, view.config, policy, **OPTIONS | options)
  result = runtime.run(image, view.place(inputs), modes=BUSY)
  assert not result.num_races
  outputs = result.outputs
  relayed = [spec.name for spec in tensors.RELAYED]
  return view.restore({n: outputs[n] for n in outputs if n not in relayed})


@pytest.mark.parametrize(
  'shape, routing, placement, relay',
  halved_testing.covering(
    SHAPES, testing.ROUTINGS, precision.LAUNCHED_PLACEMENTS, (False, True)
  ),
)
def test_every_bit_is_that_of_a_launch_without(
  shape, routing, placement, relay
):
  # Given experts in drawn places, when both passes run in random order, with
  # puts as late as they may be, then every tensor is that of a serial run in
  # which experts are where their numbers say.
  config = SHAPES[shape]
  policy = precision.PrecisionPolicy(placement=placement)
  order = testing.rng('placement', shape, routing).permutation(
    config.num_experts
  )
  experts = expert_placement.ExpertPlacement(
    tuple(order.tolist()), config.num_ranks
  )
  for direction in layout.Direction:
    case = testing.make_case(direction, config, policy, routing, **OPTIONS)
    actual = launch_placed(
      direction, experts, config, policy, case.inputs, relay=relay
    )
    assert testing.differing(actual, case.right) == []


@pytest.mark.parametrize('shape', ['ragged', 'k_is_e', 'rank_per_expert'])
def test_a_copy_takes_a_part_of_the_rows_and_changes_no_bit(shape):
  # Given loads of another batch, when the hottest experts have copies, then
  # each copy gets rows, and every tensor of the forward pass is the same.
  config, forward = SHAPES[shape], layout.Direction.FORWARD
  policy = precision.PrecisionPolicy()
  case = testing.make_case(forward, config, policy, **OPTIONS)
  ids = case.inputs['topk_ids']
  other = testing.make_inputs(config, policy, name='other')['topk_ids']
  loads = np.bincount(other.ravel(), minlength=config.num_experts)
  experts = expert_placement.place_by_loads(loads, config.num_ranks, True)
  rows = np.bincount(experts.map_ids(ids).ravel())
  assert (rows > 0).sum() > config.num_experts
  actual = launch_placed(forward, experts, config, policy, case.inputs)
  assert testing.differing(actual, case.right) == []
