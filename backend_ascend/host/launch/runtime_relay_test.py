"""Relay: a token crosses to a rank once, and no bit of a result changes."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision

Kind = layout.Kind
# R, T, E, K, D, F.
SHAPES = {
  'ragged': config_testing.make_config(r=2, t=13, e=8, k=3, d=6, f=5),
  'one_rank': config_testing.make_config(r=1, t=7, e=4, k=4, d=6, f=5),
  'k_is_e': config_testing.make_config(r=4, t=9, e=8, k=8, d=5, f=3),
  'one_expert': config_testing.make_config(r=1, t=5, e=1, k=1, d=4, f=3),
  'rank_per_expert': config_testing.make_config(r=3, t=10, e=3, k=2, d=4, f=3),
}
# No two experts of a token on one rank, and all of them where they fit.
ROUTINGS = (*testing.ROUTINGS, 'apart', 'together')
BUSY = modes_lib.Modes(
  permute=5, late_puts=True, races=True, guards=True, trace=True
)


def topk_ids(config, routing: str) -> np.ndarray:
  """Returns `[R, T, K]` i32, distinct per token."""
  rng = testing.rng('relay', config, routing)
  if routing in testing.ROUTINGS:
    return testing.make_ids(config, routing, rng)
  r, t, k, e = (config.dims()[c] for c in 'RTKE')
  local = config.experts_per_rank
  ranks = np.argsort(rng.random((r, t, r)), axis=-1)
  apart = routing == 'apart'
  places = np.arange(e)
  spread = ranks[..., places % r if apart else places // local]
  inner = places // r if apart else places % local
  return (spread * local + inner)[..., :k].astype(np.int32)


def distinct(config, ids: np.ndarray) -> np.ndarray:
  """Returns `[R, R]`, tokens of a rank that have an expert on another."""
  owner = ids // config.experts_per_rank
  is_owner = (owner[..., None] == np.arange(config.num_ranks)).any(axis=2)
  return is_owner.sum(axis=1)


@pytest.mark.parametrize(
  'shape, routing, grain, placement',
  halved_testing.covering(
    SHAPES, ROUTINGS, ('row_block', 'expert'), precision.LAUNCHED_PLACEMENTS
  ),
)
def test_every_bit_is_that_of_a_launch_without(
  shape, routing, grain, placement
):
  # Given both images of a layer, when the one with relay is launched in random
  # order, with puts as late as they may be, and serially, then every tensor
  # of the other one is the same.
  config = SHAPES[shape]
  policy = precision.PrecisionPolicy(placement=placement)
  inputs = testing.make_inputs(config, policy)
  inputs['topk_ids'] = topk_ids(config, routing)
  options = dict(
    event_grain=grain,
    row_block=4,
    col_block=4,
    put_rows=3,
    num_aic=2,
    num_aiv=3,
    chain_rows=4,
  )
  for compile_ in (testing.compile_layer, testing.compile_grad):
    images = [
      compile_(config, policy, **options, relay=relay)
      for relay in (False, True)
    ]
    expected = runtime.launch(images[0], inputs)
    result = runtime.run(images[1], inputs, modes=BUSY)
    assert result.num_races == 0
    for actual in (result.outputs, runtime.launch_serial(images[1], inputs)):
      for name, tensor in expected.items():
        np.testing.assert_array_equal(
          actual[name].view(np.uint8), tensor.view(np.uint8), name
        )
    saved_names = ('expert_in', 'gate_up', 'activation', 'returned')
    inputs = {name: expected.get(name) for name in saved_names} | inputs
    inputs['dy'] = inputs.pop('x', None)


@pytest.mark.parametrize('routing', ROUTINGS)
@pytest.mark.parametrize('shape', SHAPES)
def test_a_token_crosses_to_a_rank_once(shape, routing):
  # Given the plan, when relayed rows are counted by source and destination,
  # then they are the tokens with an expert there, and each task of the image
  # that puts writes only those.
  config = SHAPES[shape]
  ids = topk_ids(config, routing)
  image = testing.compile_layer(config, relay=True, row_block=4)
  plan = runtime.route(image, ids)
  r = config.num_ranks
  tokens = distinct(config, ids)
  relayed = plan.relayed_counts.reshape(r, r, -1).sum(axis=2)
  np.testing.assert_array_equal(relayed, tokens)
  accesses, _ = runtime.inspect(image, plan)
  tasks = image.tables['tasks'][accesses['task']]
  rows = accesses['row_end'] - accesses['row_begin']
  put = (tasks['kind'] == Kind.RELAY_PUT) & (accesses['write'] == 1)
  put &= accesses['col_begin'] == 0
  num_crossed = np.zeros((r, r), int)
  np.add.at(num_crossed, (tasks['rank'][put], accesses['slab'][put]), rows[put])
  np.testing.assert_array_equal(num_crossed, tokens)


@pytest.mark.parametrize('routing', ['uniform', 'together'])
@pytest.mark.parametrize('name', ['dropped_tile', 'skipped_wait'])
def test_who_lost_rows_is_named(name, routing):
  # Given a put of relayed rows that writes nothing, or a relay that does not
  # wait for one, when launched with puts as late as they may be, then rows are
  # not copied, and the diagnosis names the task that lost them.
  config = SHAPES['ragged']
  policy = precision.PrecisionPolicy()
  inputs = testing.make_inputs(config, policy)
  inputs['topk_ids'] = topk_ids(config, routing)
  image = testing.compile_layer(
    config, policy, relay=True, row_block=4, num_aic=2, num_aiv=3
  )
  plan = runtime.route(image, inputs['topk_ids'])
  accesses, _ = runtime.inspect(image, plan)
  kinds = image.tables['tasks']['kind'][accesses['task']]
  lost_kind = Kind.RELAY_PUT if name == 'dropped_tile' else Kind.RELAY
  task = int(accesses['task'][kinds == lost_kind][0])
  fault = faults.Fault(name, task)
  late = modes_lib.Modes(late_puts=True)
  with pytest.raises(runtime.WaitError, match='did not arrive') as error:
    runtime.run(image, inputs, threads=1, fault=fault, modes=late)
  assert [loser.index for loser in error.value.diagnosis.losers] == [task]
