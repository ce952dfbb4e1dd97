"""Shared resources: one against its definition, several against each other."""

import itertools

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lowering_testing as lowering
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator import simulate_testing as testing
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib

FREE = 1e30  # B/s


def rates(flows, capacity, cap) -> list[float]:
  """Returns max-min fair rates of flows, by progressive filling.

  Args:
    flows: the resources that each flow needs all at once.
    capacity: of each resource.
    cap: of each flow.
  """
  rate, open_flows = [0.0] * len(flows), set(range(len(flows)))
  left = list(capacity)
  while open_flows:
    users = [sum(l in flows[f] for f in open_flows) for l in range(len(left))]
    step = min(
      [left[l] / n for l, n in enumerate(users) if n]
      + [cap[f] - rate[f] for f in open_flows]
    )
    for f in open_flows:
      rate[f] += step
      for l in flows[f]:
        left[l] -= step
    full = {
      l for l, n in enumerate(users) if n and left[l] <= 1e-9 * capacity[l]
    }
    open_flows = {
      f
      for f in open_flows
      if not full & set(flows[f]) and rate[f] < cap[f] * (1 - 1e-9)
    }
  return rate


DEMANDS = st.lists(
  st.tuples(st.floats(0, 10), st.integers(0, 3), st.floats(0.01, 50)),
  min_size=1,
  max_size=12,
)


def queue_rates(capacity, caps, trips) -> list[float]:
  """Returns rates of demands through a queue in order, by bisection.

  Args:
    capacity: of the queue.
    caps: of each demand, when nothing else is there.
    trips: s of each demand then.
  """

  def rates_after(wait):
    return [cap * trip / (trip + wait) for cap, trip in zip(caps, trips)]

  low, high = 0.0, sum(c * t for c, t in zip(caps, trips)) / capacity
  if sum(caps) <= capacity:
    return list(caps)
  for _ in range(100):
    middle = (low + high) / 2
    full = sum(rates_after(middle)) > capacity
    low, high = (middle, high) if full else (low, middle)
  return rates_after(high)


def expected_ends(demands, rates_of) -> list[float]:
  """Moves demands on one by one, at every event.

  Args:
    demands: (time, class, size), times ascending.
    rates_of: rates of the demands of some classes.
  """
  left, now, ends = {}, 0.0, [0.0] * len(demands)
  coming = list(range(len(demands)))
  while coming or left:
    active = sorted(left)
    rate = rates_of([demands[f][1] for f in active])
    end = min((now + left[f] / r for f, r in zip(active, rate)), default=np.inf)
    next_time = min(end, demands[coming[0]][0] if coming else np.inf)
    for f, r in zip(active, rate):
      left[f] -= r * (next_time - now)
    now = next_time
    for f in [f for f in left if left[f] <= 1e-9 * demands[f][2]]:
      ends[f] = now
      del left[f]
    if coming and demands[coming[0]][0] <= now:
      first = coming.pop(0)
      left[first] = demands[first][2]
  return ends


SETTINGS = hypothesis.settings(
  max_examples=60, deadline=None, derandomize=True, database=None
)


def fluid_ends(demands, capacity, caps, trips=()) -> list[float]:
  times, classes, sizes = map(list, zip(*demands))
  return _native.fluid_ends(
    capacity, list(caps), list(trips), times, classes, sizes
  )


@SETTINGS
@hypothesis.given(
  DEMANDS,
  st.floats(0.5, 20),
  st.tuples(*[st.floats(0.2, 8)] * 4),
)
def test_virtual_time_is_max_min_sharing(demands, capacity, caps):
  """Against demands that are moved on one by one, at every event."""
  demands = sorted(demands)
  expected = expected_ends(
    demands,
    lambda classes: rates(
      [[0]] * len(classes), [capacity], [caps[c] for c in classes]
    ),
  )
  ends = fluid_ends(demands, capacity, caps)
  np.testing.assert_allclose(ends, expected, rtol=1e-7)


@SETTINGS
@hypothesis.given(
  DEMANDS,
  st.floats(0.5, 20),
  st.tuples(*[st.floats(0.2, 8)] * 4),
  st.tuples(*[st.floats(0.1, 10)] * 4),
)
def test_a_queue_in_order_makes_all_wait_alike(demands, capacity, caps, trips):
  """Likewise, with a wait that is found by bisection."""
  demands = sorted(demands)
  expected = expected_ends(
    demands,
    lambda classes: queue_rates(
      capacity, [caps[c] for c in classes], [trips[c] for c in classes]
    ),
  )
  ends = fluid_ends(demands, capacity, caps, trips)
  np.testing.assert_allclose(ends, expected, rtol=1e-7)


def test_a_small_window_starves_behind_a_large_one():
  # Given a queue of 1 B/s, a demand of 8 B with a window of 1 B and one of 56
  # with a window of 7 B, of trips of 1 s, when they start together, then both
  # wait 7 s for what is in the queue: 1/8 and 7/8 of it, and both end at 64 s;
  # by fair shares the small one would end at 16 s.
  demands = [(0.0, 2, 8.0), (0.0, 3, 56.0)]
  caps, trips = (1.0, 1.0, 1.0, 7.0), (1.0,) * 4
  np.testing.assert_allclose(
    fluid_ends(demands, 1.0, caps, trips), [64, 64], rtol=1e-12
  )
  np.testing.assert_allclose(
    fluid_ends(demands, 1.0, caps), [16, 64], rtol=1e-12
  )


# Only links take time, and what one AIV pushes.
LINKS_ONLY = (
  dict.fromkeys(('hbm', 'l2', 'aiv_read', 'aiv_write'), FREE)
  | dict.fromkeys(
    (
      'put_head',
      'signal',
      'poll',
      'poll_miss',
      'aiv_task',
      'node_latency',
      'far_latency',
      'die_latency',
    ),
    0,
  )
  | dict(package=1)
)


def coupled_ends(image, machine, sizes) -> np.ndarray:
  """Returns each put's end if it has one rate through all of its links.

  Args:
    image: its queues.
    machine: links, and `aiv_link` as the cap of a put.
    sizes: `[tasks]` B, 0 of what takes no time.
  """
  tables, ranks = image.tables, image.config.num_ranks
  capacity = [link.capacity for link in machine.fabric.links(ranks)]
  queues = [
    [
      int(t)
      for t in tables['queue_tasks'][q['begin'] : q['begin'] + q['count']]
      if sizes[t] > 0
    ]
    for q in tables['queues']
  ]
  tasks, left, now = tables['tasks'], {}, 0.0
  ends = np.zeros(len(tasks))
  for queue in queues:
    if queue:
      left[queue[0]] = float(sizes[queue[0]])
  after = {a: b for queue in queues for a, b in itertools.pairwise(queue)}
  while left:
    active = sorted(left)
    rate = rates(
      [
        machine.fabric.route(
          int(tasks['rank'][t]), int(tasks['peer'][t]), ranks
        ).links
        for t in active
      ],
      capacity,
      [machine['aiv_link']] * len(active),
    )
    elapsed = min(left[t] / r for t, r in zip(active, rate))
    now += elapsed
    for t, r in zip(active, rate):
      left[t] -= r * elapsed
      if left[t] <= 1e-9 * sizes[t]:
        del left[t]
        ends[t] = now
        if t in after:
          left[after[t]] = float(sizes[after[t]])
  return ends


def balanced(dims) -> np.ndarray:
  tokens = np.arange(dims['T'])[:, None] + np.arange(dims['K'])
  return np.stack([(tokens + r) % dims['E'] for r in range(dims['R'])])


def hot(dims) -> np.ndarray:
  """Every token names rank 0's experts."""
  return np.broadcast_to(
    np.arange(dims['K']), (dims['R'], dims['T'], dims['K'])
  )


def _compare(routing: str, aivs: int, fill: float, seed: int = 0):
  """Returns (engine's total, coupled total) of the dispatch alone.

  Args:
    routing: 'balanced', 'hot' or 'random'.
    aivs: AIV of a rank.
    fill: how many times a rank's AIVs together could fill its link.
    seed: of the random routing.
  """
  flow = lowering.lower('rank_per_expert', num_aiv=aivs, put_rows=1)
  image = image_lib.load(image_lib.serialize(flow))
  machine = machine_lib.load('ascend_a3')
  machine = machine.with_figures(
    **LINKS_ONLY, aiv_link=fill * machine['bus_link'] / aivs
  )
  make_ids = dict(balanced=balanced, hot=hot).get(routing)
  ids = (
    make_ids(image.config.dims())
    if make_ids
    else testing.routing_of(image, seed)
  )
  skip = [k.name.lower() for k in layout.Kind if k != layout.Kind.DISPATCH]
  result = simulate.simulate(image, machine, ids, skip=skip)
  coupled = coupled_ends(image, machine, result.link_bytes)
  return result.total, coupled.max()


class TestWhatTheEngineLeavesOut:
  """A put flows through each link by itself; see `simulate.py`."""

  @pytest.mark.parametrize(
    'routing, fills',
    [
      ('balanced', (1, 2, 16)),
      ('hot', (1, 2, 16)),
      ('random', (1 / 8,)),  # no link is ever full
    ],
  )
  @pytest.mark.parametrize('aivs', [1, 3, 6])
  def test_nothing_where_routing_is_even_or_cores_are_the_limit(
    self, routing, fills, aivs
  ):
    for fill in fills:
      engine_total, coupled = _compare(routing, aivs, fill)
      assert engine_total == pytest.approx(coupled, rel=1e-9)

  def test_as_much_as_it_says_where_a_few_puts_collide(self):
    errors = np.array(
      [
        np.divide(*_compare('random', aivs, fill, seed)) - 1
        for aivs, fill in ((2, 2), (3, 4), (6, 4))
        for seed in range(8)
      ]
    )
    assert (errors != 0).any()
    assert errors.min() >= -0.12 and errors.max() <= 0.08
    assert abs(errors.mean()) <= 0.02


class TestConservation:
  """What the end of every run refuses."""

  BALANCED = dict(
    offered=8.0,
    served=8.0,
    busy=4.0,
    capacity=2.0,
    entered=3,
    left=3,
    total=5.0,
  )

  def test_a_server_that_served_all_is_let_go(self):
    _native.check_server(**self.BALANCED)
    _native.check_tasks(2, [1, -2, 0, -1])

  @pytest.mark.parametrize(
    'change, message',
    [
      (dict(left=2), 'expected server 3 to serve its 3 demands, got 2'),
      (dict(served=8.0 * (1 - 1e-12)), 'expected server 3 to serve 8, got 7.9'),
      (dict(served=8.0 * (1 + 1e-12)), 'expected server 3 to serve 8, got 8.0'),
      (dict(served=float('nan')), 'expected server 3 to serve 8, got nan'),
      (
        dict(offered=12.0, served=12.0),
        'expected server 3 to serve at most 10 in 5 s, got 12',
      ),
      (dict(busy=6.0), 'at most 10 in 5 s, got 8 in 6 s'),
    ],
  )
  def test_one_that_did_not_is_named(self, change, message):
    with pytest.raises(ValueError, match=message):
      _native.check_server(**self.BALANCED | change)

  @pytest.mark.parametrize(
    'moves, message',
    [
      ([0, -1], 'expected task 1 to end, got none'),
      ([0, -1, 1], 'expected task 1 to end, got none'),
      ([0, -1, 1, 1, -2], 'expected task 1 to begin once and end once'),
      ([0, -1, 1, -2, -2], 'expected task 1 to begin once and end once'),
      ([0, -1, -2], 'expected task 1 to begin once and end once'),
    ],
  )
  def test_a_task_that_did_not_run_once_is_named(self, moves, message):
    with pytest.raises(ValueError, match=message):
      _native.check_tasks(2, moves)
