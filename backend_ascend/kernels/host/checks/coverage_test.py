"""Coverage counts what an enumeration of all orders says there is."""

import itertools

import numpy as np
import pytest

from hpmoe.backend_ascend.kernels.host.checks import coverage
from hpmoe.backend_ascend.kernels.host.checks import modes
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.kernels.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.taskflow import happens_before
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import config as config_lib

# Two ranks, one expert each, two tokens each: puts of one row.
TINY = config_lib.MoEConfig(2, 2, 2, 1, 2, 2)
OPTIONS = dict(row_block=4, col_block=4, put_rows=1, num_aic=1, num_aiv=2)


def tiny(direction=layout.Direction.FORWARD) -> testing.Case:
  return testing.make_case(direction, TINY, **OPTIONS)


def signals_of(layer: testing.Case) -> np.ndarray:
  return runtime.inspect(layer.image, layer.routing)[1]


def reachable(image: image_lib.Image, signals):
  """Returns (before, last): pairs of tasks seen in this order, or as last.

  Over all legal orders, by the sets of tasks that may be done at some time.
  """
  tables = image.tables
  queues = [
    [int(t) for t in tables['queue_tasks'][begin : begin + count]]
    for begin, count in tables['queues'][['begin', 'count']]
  ]
  needs = {task: set() for task in range(len(tables['tasks']))}
  for task, event in happens_before.waits(image):
    needs[int(task)] |= {int(t) for t, e in signals if e == event}
  before, last = set(), set()
  states, todo = {frozenset()}, [frozenset()]
  while todo:
    done = todo.pop()
    for queue in queues:
      left = [task for task in queue if task not in done]
      if not left or not needs[left[0]] <= done:
        continue
      task = left[0]
      before |= {(other, task) for other in done}
      last |= {
        (waiter, task)
        for waiter, need in needs.items()
        if task in need and need <= done | {task}
      }
      state = done | {task}
      if state not in states:
        states.add(state)
        todo.append(state)
  return before, last


class TestAgainstAllOrders:
  @pytest.mark.parametrize('direction', layout.Direction)
  def test_pairs_and_edges_are_those_that_can_be(self, direction):
    # Given a tiny image, when every order that it allows is followed, then what
    # can be seen is just what coverage counts.
    layer = tiny(direction)
    signals = signals_of(layer)
    got = coverage.Coverage(layer.image, signals)
    before, last = reachable(layer.image, signals)
    queue = happens_before.clocks(layer.image).queue
    givers = {}
    for task, event in signals:
      givers.setdefault(int(event), set()).add(int(task))
    free = {
      pair
      for tasks in givers.values()
      for pair in itertools.combinations(sorted(tasks), 2)
      if queue[pair[0]] != queue[pair[1]] and {pair, pair[::-1]} <= before
    }
    assert got.num_pairs == len(free) > 0
    assert got.num_edges == len(last) > 0

  def test_counts_grow_to_all_there_is(self):
    # Given seeded launches, when their orders are added, then counts are those
    # of the orders themselves and reach everything that can be.
    layer = tiny()
    signals = signals_of(layer)
    got = coverage.Coverage(layer.image, signals)
    orders = set()
    for seed in range(200):
      order = runtime.run(
        layer.image,
        layer.inputs,
        threads=1,
        modes=modes.Modes(permute=seed, trace=True),
      ).order
      got.add(order)
      orders.add(order.tobytes())
      if not seed:
        assert got.num_pairs_seen == 0
        assert 0 < got.num_edges_seen < got.num_edges
    assert got.num_runs == 200
    assert got.num_orders == len(orders) > 100
    assert got.num_pairs_seen == got.num_pairs
    assert got.num_edges_seen == got.num_edges
    assert str(got) == (
      f'{len(orders)} orders in 200 runs; both orders of {got.num_pairs} of '
      f'{got.num_pairs} pairs of producers; {got.num_edges} of '
      f'{got.num_edges} producers the last to arrive'
    )

  def test_one_order_again_and_again(self):
    layer = tiny()
    got = coverage.Coverage(layer.image, signals_of(layer))
    for _ in range(3):
      got.add(np.arange(layer.num_tasks))
    assert (got.num_runs, got.num_orders, got.num_pairs_seen) == (3, 1, 0)


def test_without_a_routing_all_signals_count():
  # Given no signals, then puts of rows that this routing lacks count too.
  layer = tiny()
  some = coverage.Coverage(layer.image, signals_of(layer))
  all_that_may = coverage.Coverage(layer.image)
  assert all_that_may.num_pairs > some.num_pairs


def test_other_orders_are_refused():
  layer = tiny()
  with pytest.raises(ValueError, match=r'order: expected shape \(\d+,\)'):
    coverage.Coverage(layer.image).add(np.zeros(3, np.uint32))
