"""Every order policy gives flows that the proofs accept."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.orders import orders
from hpmoe.backend_ascend.compiler.orders import placement
from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lower_backward
from hpmoe.backend_ascend.compiler.taskflow import lower_forward
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

LOWER = {
  layout.Direction.FORWARD: lower_forward.lower_forward,
  layout.Direction.BACKWARD: lower_backward.lower_backward,
}
Form = layout.Form

# Four experts a rank, three row blocks an expert.
CONFIG = config_testing.make_config(r=2, t=12, e=8, k=4, d=8, f=4)

# Each field away from its default, and all of them.
ORDERS = [
  granularity.PUBLISHED_ORDER,
  granularity.Order(swizzle=0),
  granularity.Order(policy='list'),
  granularity.Order(policy='list', comm_share=0.5, row_order='interleaved'),
  granularity.Order(swizzle=2, lead=0),
  granularity.Order(lead=1.5, comm_share=0.5),
  granularity.Order(lag=0),
  granularity.Order(lag=0.4),
  granularity.Order(lag=1.3, swizzle=2, row_order='interleaved'),
  granularity.Order(weight_lag=2, gate_weight_lag=None),
  granularity.Order(rotate=False, expert_order='descending'),
  granularity.Order(expert_order='rotated', row_order='rotated', lead=1),
  granularity.Order(
    swizzle=2,
    lead=0.5,
    lag=0.5,
    weight_lag=None,
    gate_weight_lag=1.5,
    comm_share=0.3,
    row_order='rotated',
    expert_order='rotated',
  ),
]


def lower(direction, order=granularity.Order(), **options):
  fields = dict(row_block=4, col_block=3, num_aic=3, num_aiv=4) | options
  return LOWER[direction](
    CONFIG,
    precision.PrecisionPolicy(),
    granularity.Options(order=order, **fields),
  )


both_directions = pytest.mark.parametrize('direction', list(LOWER))


@both_directions
@pytest.mark.parametrize('grain', granularity.EVENT_GRAINS)
@pytest.mark.parametrize('order', ORDERS)
def test_every_order_is_proved(direction, grain, order):
  # Given an order that a grain allows, when a layer is compiled in it, then
  # the proofs hold, deadlock and races among them.
  if order.by_row and grain == 'expert':
    with pytest.raises(ValueError, match=r'order\.lag: expected a whole'):
      lower(direction, order, event_grain=grain)
    return
  for chain_rows in (None, 8):
    options = granularity.Options(
      grain, 4, 3, num_aic=3, num_aiv=4, chain_rows=chain_rows, order=order
    )
    image = compiler.COMPILE[direction](
      CONFIG, precision.PrecisionPolicy(), options
    )
    assert image.proof.proved
    assert image.flow.options.order == order


def test_an_order_that_is_no_order_is_refused():
  # A flow whose second GEMM stands before its first would deadlock.
  def backwards(flow):
    return placement.Placement(
      np.zeros(len(flow.tasks), int), orders.sequence(flow)[::-1]
    )

  with pytest.raises(proofs.ProofError):
    compiler.compile_forward(
      CONFIG,
      precision.PrecisionPolicy(),
      granularity.Options('row_block', 4, 3),
      scheduler=backwards,
    )


def queue_kinds(direction, order, unit, **options):
  """Returns the (kind, local expert) of rank 1's core of a unit, in order."""
  flow = lower(direction, order, num_aic=1, num_aiv=1, **options)
  placed_flow = placement.place(flow, orders.in_order(flow))
  queue = placed_flow.queues[placed_flow.queues['unit'] == unit][-1]
  tasks = placed_flow.tasks[
    placed_flow.queue_tasks[queue['begin'] : queue['begin'] + queue['count']]
  ]
  return [
    (layout.Kind(t['kind']).name.lower(), int(t['expert']) % 4) for t in tasks
  ]


def runs(names):
  """Returns the names without repetitions of the one before."""
  return [n for n, before in zip(names, [None, *names]) if n != before]


def kinds_in_turn(direction, order, unit, grain) -> list[str]:
  queue = queue_kinds(direction, order, unit, event_grain=grain)
  return runs([kind for kind, _ in queue])


def test_published_queues_go_operator_by_operator():
  kinds = [
    kinds_in_turn(direction, granularity.PUBLISHED_ORDER, unit, 'expert')
    for direction in LOWER
    for unit in layout.Unit
  ]
  assert kinds == [
    ['gate_up', 'down'],
    ['dispatch', 'swiglu', 'return', 'combine'],
    ['down_weight_grad', 'down_grad'] * 4
    + ['gate_up_grad', 'gate_up_weight_grad'],
    ['dispatch_grad', 'swiglu_grad', 'return_grad', 'combine_grad']
    + ['topk_weight_grad'],
  ]


def test_a_lag_below_one_takes_turns_by_row_block():
  order, forward = granularity.Order(lag=0.4), layout.Direction.FORWARD
  kinds = kinds_in_turn(forward, order, layout.Unit.AIC, 'row_block')
  assert kinds.count('gate_up') > 4


@pytest.mark.parametrize(
  'expert_order, experts',
  [
    ('ascending', [0, 1, 2, 3]),
    ('descending', [3, 2, 1, 0]),
    ('rotated', [1, 2, 3, 0]),
  ],
)
def test_experts_come_in_the_order_asked_for(expert_order, experts):
  queue = queue_kinds(
    layout.Direction.FORWARD,
    granularity.Order(expert_order=expert_order, lag=None),
    layout.Unit.AIC,
  )
  assert runs([e for kind, e in queue if kind == 'gate_up']) == experts


def test_puts_have_cores_of_their_own():
  flow = lower(layout.Direction.FORWARD, granularity.Order(comm_share=0.25))
  core = orders.in_order(flow).core
  form = np.array([layout.FORM_OF_KIND[k] for k in flow.tasks['kind']])
  puts = (form == Form.SLICE_PUT) | (form == Form.HOME_PUT)
  vector = (flow.tasks['unit'] == layout.Unit.AIV) & ~puts
  assert set(core[puts]) == {0}
  assert set(core[vector]) == {1, 2, 3}


@pytest.mark.parametrize('rotate, first', [(True, [0, 1]), (False, [0, 0])])
def test_puts_start_with_another_destination_of_each_rank(rotate, first):
  flow = lower(layout.Direction.FORWARD, granularity.Order(rotate=rotate))
  order = orders.sequence(flow)
  tasks = flow.tasks[order]
  puts = tasks[tasks['kind'] == layout.Kind.DISPATCH]
  assert [puts[puts['rank'] == r]['peer'][0] for r in range(2)] == first


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(policy='best'), r'order\.policy: expected one of'),
    (dict(lead=-1), r'order\.lead: expected a number'),
    (dict(lag='1'), r'order\.lag: expected a number'),
    (dict(comm_share=1), r'order\.comm_share: expected a number in \[0, 1\)'),
    (dict(swizzle=1.5), r'order\.swizzle: expected an integer'),
    (dict(weight_lag=float('nan')), r'order\.weight_lag: expected a number'),
  ],
)
def test_a_wrong_order_is_refused(change, message):
  with pytest.raises(ValueError, match=message):
    granularity.Order(**change)


@both_directions
@pytest.mark.parametrize('lead, ahead', [(None, 2), (2.0, 2), (4.0, 3)])
def test_relayed_rows_are_copied_experts_ahead(direction, lead, ahead):
  # Given an order, when a core's copies of an expert's relayed rows are sought,
  # then they stand before what it does for the expert so many before.
  queue = queue_kinds(
    direction, granularity.Order(lead=lead), layout.Unit.AIV, relay=True
  )
  copy, vector = {
    'forward': ('relay', 'swiglu'),
    'backward': ('relay_grad', 'swiglu_grad'),
  }[direction.name.lower()]
  for expert in range(ahead, 4):
    position = queue.index((copy, expert))
    assert position < queue.index((vector, expert - ahead))
    # And no earlier than they need to.
    assert expert == ahead or position > queue.index(
      (vector, expert - ahead - 1)
    )
