"""Coverage counts what an enumeration of all orders says there is."""

import dataclasses
import itertools

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import coverage
from hpmoe.backend_ascend.host.checks import modes
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing

# Two ranks, one expert each, two tokens each: puts of one row.
TINY = config_testing.make_config(r=2, t=2, e=2, k=1, d=2, f=2)
OPTIONS = dict(row_block=4, col_block=4, put_rows=1, num_aic=1, num_aiv=2)


def tiny(direction=layout.Direction.FORWARD) -> testing.Case:
  return testing.make_case(direction, TINY, **OPTIONS)


# The experts of both tokens of rank 0, then of rank 1.  Two tokens of a rank
# that go to one expert go through one queue.
ROUTINGS = ((0, 1, 0, 1), (0, 0, 0, 0), (0, 0, 1, 1), (1, 1, 0, 1))


def routed(direction: layout.Direction, experts, **options):
  """Returns (case, its signals) of a routing."""
  layer = testing.make_case(direction, TINY, **OPTIONS | options)
  ids = np.array(experts, np.int32).reshape(2, 2, 1)
  layer = dataclasses.replace(
    layer,
    inputs=layer.inputs | dict(topk_ids=ids),
    routing=runtime.route(layer.image, ids),
  )
  return layer, signals_of(layer)


def signals_of(layer: testing.Case) -> np.ndarray:
  return runtime.inspect(layer.image, layer.routing)[1]


class AllOrders:
  """What the legal orders of an image show: every step from every state.

  A state is how far each queue is, and which puts are under way: sent, as their
  queues went on, but not there.  Sets of tasks are the bits of integers.

  Attributes:
    before: by task, those that were seen to end before it.
    last: (task, one that it waits for), the latter seen as the last to end.
  """

  def __init__(self, image: image_lib.Image, signals):
    tables = image.tables
    self._queues = [
      [int(task) for task in tables['queue_tasks'][begin : begin + count]]
      for begin, count in tables['queues'][['begin', 'count']]
    ]
    self._late = np.isin(
      tables['tasks']['kind'], layout.select_kinds(*layout.PUTS)
    )
    self._needs = [0] * len(self._late)
    for task, event in happens_before.list_waits(image):
      for giver in signals[signals[:, 1] == event, 0]:
        self._needs[task] |= 1 << int(giver)
    self._waiters = [
      [w for w, need in enumerate(self._needs) if need >> task & 1]
      for task in range(len(self._late))
    ]
    self.before = [0] * len(self._late)
    self.last: set[tuple[int, int]] = set()
    self._follow()

  def ends_before(self, first: int, second: int) -> bool:
    return bool(self.before[second] >> first & 1)

  def _follow(self) -> None:
    start = ((0,) * len(self._queues), 0, 0)
    states, todo = {start}, [start]
    while todo:
      for state in self._steps(*todo.pop()):
        if state not in states:
          states.add(state)
          todo.append(state)

  def _steps(self, positions, under_way: int, done_mask: int):
    for task in range(under_way.bit_length()):
      if under_way >> task & 1:
        yield positions, under_way ^ 1 << task, self._end(task, done_mask)
    for i, queue in enumerate(self._queues):
      if (
        positions[i] == len(queue)
        or self._needs[queue[positions[i]]] & ~done_mask
      ):
        continue
      task, after = (
        queue[positions[i]],
        (*positions[:i], positions[i] + 1, *positions[i + 1 :]),
      )
      if self._late[task]:
        yield after, under_way | 1 << task, done_mask
      yield after, under_way, self._end(task, done_mask)

  def _end(self, task: int, done_mask: int) -> int:
    """Returns what is done after the end of a task."""
    self.before[task] |= done_mask
    done_mask |= 1 << task
    for waiter in self._waiters[task]:
      if not self._needs[waiter] & ~done_mask:
        self.last.add((waiter, task))
    return done_mask


class TestAgainstAllOrders:
  @pytest.mark.parametrize('experts', ROUTINGS)
  @pytest.mark.parametrize('direction', layout.Direction)
  def test_pairs_and_edges_are_those_that_can_be(self, direction, experts):
    # Given a tiny image, when every order that it allows is followed, then what
    # can be seen is just what coverage counts.
    layer, signals = routed(direction, experts)
    actual = coverage.Coverage(layer.image, signals)
    all_orders = AllOrders(layer.image, signals)
    givers = {}
    for task, event in signals:
      givers.setdefault(int(event), set()).add(int(task))
    free = {
      pair
      for tasks in givers.values()
      for pair in itertools.combinations(sorted(tasks), 2)
      if all_orders.ends_before(*pair) and all_orders.ends_before(*pair[::-1])
    }
    assert actual.num_pairs == len(free) > 0
    assert actual.num_edges == len(all_orders.last) > 0

  @pytest.mark.parametrize('relay', [False, True])
  @pytest.mark.parametrize('experts', ROUTINGS)
  @pytest.mark.parametrize('direction', layout.Direction)
  def test_counts_grow_to_all_there_is(self, direction, experts, relay):
    # Given seeded launches with puts in time and late, when their orders are
    # added, then counts are those of the orders themselves and reach everything
    # that can be.
    layer, signals = routed(direction, experts, relay=relay)
    actual = coverage.Coverage(layer.image, signals)
    orders = set()
    for seed in range(60):
      order = runtime.run(
        layer.image,
        layer.inputs,
        threads=1,
        modes=modes.Modes(permute=seed, late_puts=seed % 2 == 1, trace=True),
      ).order
      actual.add(order)
      orders.add(order.tobytes())
      if not seed:
        assert actual.num_pairs_seen == 0
        assert 0 < actual.num_edges_seen < actual.num_edges
    assert actual.num_runs == 60
    assert actual.num_orders == len(orders) > 30
    assert str(actual) == (
      f'{len(orders)} orders in 60 runs; both orders of {actual.num_pairs} of '
      f'{actual.num_pairs} pairs of producers; {actual.num_edges} of '
      f'{actual.num_edges} producers the last to arrive'
    )

  def test_one_order_again_and_again(self):
    layer = tiny()
    actual = coverage.Coverage(layer.image, signals_of(layer))
    for _ in range(3):
      actual.add(np.arange(layer.num_tasks))
    assert (actual.num_runs, actual.num_orders, actual.num_pairs_seen) == (
      3,
      1,
      0,
    )


def test_without_a_routing_all_signals_count():
  # Given no signals, then puts of rows that this routing lacks count too.
  layer = tiny()
  partial = coverage.Coverage(layer.image, signals_of(layer))
  all_that_may = coverage.Coverage(layer.image)
  assert all_that_may.num_pairs > partial.num_pairs


def test_other_orders_are_refused():
  layer = tiny()
  with pytest.raises(ValueError, match=r'order: expected shape \(\d+,\)'):
    coverage.Coverage(layer.image).add(np.zeros(3, np.uint32))
