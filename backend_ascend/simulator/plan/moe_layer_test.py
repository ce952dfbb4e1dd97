"""A few ranks stand for a group: the same work, and the same bytes on links."""

import dataclasses

import pytest

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.plan import collectives
from hpmoe.backend_ascend.simulator.plan import moe_layer

Layer = moe_layer.Layer
# Four nodes of an A2, two packages over nodes of an A3.
LAYER = Layer(64, 8, 512, 256, 32, 64, fused=False)


@pytest.fixture(name='a2', scope='module')
def _a2():
  return machine_lib.load('ascend_a2')


@pytest.mark.parametrize(
  'changes, copies',
  [
    # Each row for itself: of 32 ranks 7 are near and 24 far.
    ({}, (8 * 7 / 32, 8 * 24 / 32)),
    # Once to each node: three copies instead of six, and 7/8 of all eight rows
    # inside of nodes.
    (dict(exchange='nodes'), (7, 3)),
    # Of two nodes that a token may go to 3/4 are others.
    (dict(exchange='nodes', nodes=2), (7, 1.5)),
    (dict(exchange='nodes', ranks=8), (7,)),
  ],
)
def test_copies_of_a_token_leave_its_rank(a2, changes, copies):
  assert (
    moe_layer.count_sent(a2, dataclasses.replace(LAYER, **changes)) == copies
  )


@pytest.mark.parametrize('name', ['ascend_a2', 'ascend_a3'])
@pytest.mark.parametrize('few', [4, 8])
def test_few_ranks_compute_what_all_do(name, few):
  # Given the experts, tokens and puts of a rank of 32, when rows move at once,
  # then a layer takes the same time on a few.
  machine = machine_lib.load(name)
  whole = moe_layer.simulate_few(machine, LAYER, 32)
  small_group = moe_layer.simulate_few(machine, LAYER, few)
  for pass_, other in zip(whole, small_group):
    assert other.compute == pytest.approx(pass_.compute, rel=1e-9)


@pytest.mark.parametrize('exchange', moe_layer.EXCHANGES)
@pytest.mark.parametrize('name', ['ascend_a2', 'ascend_a3', 'hopper'])
def test_links_of_few_take_as_long(name, exchange):
  # Given even routing, when a rank of a few sends what leaves it over each
  # class of links, then each is busy as long as in the whole group.
  machine = machine_lib.load(name)
  layer = dataclasses.replace(LAYER, exchange=exchange)
  few = moe_layer.stand_in(machine, layer, 4)
  traffic = collectives.on_links(
    machine, moe_layer.count_sent(machine, layer), layer.ranks
  )
  for name, copies in traffic.items():
    busy = layer.top_k * 3 / 4 / collectives.link_rate(few, name)
    assert busy == pytest.approx(copies / collectives.link_rate(machine, name))


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('ranks', [1, 2, 32])
@pytest.mark.parametrize('exchange', moe_layer.EXCHANGES)
def test_no_layer_is_faster_than_its_roofline(a2, fused, ranks, exchange):
  layer = dataclasses.replace(
    LAYER, ranks=ranks, fused=fused, exchange=exchange
  )
  for bound, pass_ in zip(
    moe_layer.Roofline(a2)(layer), moe_layer.Timer(a2)(layer)
  ):
    assert bound.compute <= pass_.compute
    whole = pass_.compute + pass_.exchange
    assert bound.compute + bound.exchange <= whole * (1 + 1e-9)


def test_a_layer_runs_once(a2):
  messages = []
  timer = moe_layer.Timer(a2, messages.append)
  assert timer(LAYER) is timer(LAYER)
  assert len(messages) == 1 and len(timer.times) == 1
