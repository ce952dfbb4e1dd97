"""When tasks start: against the longest path, and row by row."""

import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator import simulate_testing as testing
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib

A3 = machine_lib.load('ascend_a3')
# Only cores take time.
CORES = A3.with_figures(
  **dict.fromkeys(
    ('hbm', 'l2', 'die_link', 'bus_link', 'aic_read', 'aiv_read'), 1e30
  )
)
Kind = layout.Kind


def seen_after(machine: machine_lib.Machine) -> float:
  """Returns seconds from an event until others see it."""
  return machine['poll'] + machine['poll_miss'] / 2


def longest_path(image, took: np.ndarray, delay: np.ndarray):
  """Returns (start, end) `[tasks]` of a flow whose events count tasks.

  An event is reached when all that signal it have ended, and seen later: of
  each task `delay` after its end.
  """
  tables = image.tables
  tasks, signals, waits = (tables[n] for n in ('tasks', 'signals', 'waits'))
  writers = [[] for _ in tables['events']]
  _, _, before = happens_before.locate_tasks(image)
  for t, task in enumerate(tasks):
    begin = task['signal_begin']
    for signal in signals[begin : begin + task['signal_count']]:
      writers[signal['event']].append(t)
  start, end = np.zeros(len(tasks)), np.full(len(tasks), np.nan)

  def visit(t: int) -> float:
    if np.isnan(end[t]):
      begin = tasks[t]['wait_begin']
      events = waits['event'][begin : begin + tasks[t]['wait_count']]
      ready = [visit(w) + delay[w] for event in events for w in writers[event]]
      if before[t] >= 0:
        ready.append(visit(before[t]))
      start[t] = max(ready, default=0.0)
      end[t] = start[t] + took[t]
    return end[t]

  for t in range(len(tasks)):
    visit(t)
  return start, end


@pytest.mark.parametrize('direction', testing.DIRECTIONS)
@pytest.mark.parametrize('shape', testing.SHAPES)
def test_without_sharing_it_is_the_longest_path(shape, direction):
  image = testing.image_of(shape, direction=direction, grain='expert')
  ids = testing.routing_of(image)
  cost = simulate.costs(image, CORES, ids)
  result = simulate.simulate(image, CORES, ids, sharing=False)
  delay = np.full(result.end.size, seen_after(CORES))
  start, end = longest_path(image, cost.fixed + cost.own, delay)
  np.testing.assert_allclose(result.start, start, rtol=1e-12, atol=1e-18)
  np.testing.assert_allclose(result.end, end, rtol=1e-12)


@pytest.mark.parametrize('waits', [0, 1, 4])
@pytest.mark.parametrize('direction', testing.DIRECTIONS)
def test_a_word_in_flight_is_seen_when_it_is_there(direction, waits):
  # Given words that AIVs add, which take longer than most tasks, when an AIV
  # goes on meanwhile, then each event is seen a trip after the last of them;
  # where it waits for each, the trips are in its own time.
  machine = CORES.with_figures(aiv_add=1e-7, add_trip=5e-6, add_waits=waits)
  image = testing.image_of(direction=direction, grain='expert')
  ids = testing.routing_of(image)
  cost = simulate.costs(image, machine, ids)
  result = simulate.simulate(image, machine, ids, sharing=False)
  is_aiv = image.tables['tasks']['unit'] == layout.Unit.AIV
  trips = np.where(is_aiv & (waits > 0), machine['add_trip'], 0.0)
  delay = seen_after(machine) + trips
  start, end = longest_path(image, cost.fixed + cost.own, delay)
  np.testing.assert_allclose(result.start, start, rtol=1e-12, atol=1e-18)
  np.testing.assert_allclose(result.end, end, rtol=1e-12)


@pytest.mark.parametrize('relay', [False, True])
@pytest.mark.parametrize('direction', testing.DIRECTIONS)
@pytest.mark.parametrize('shape', testing.SHAPES)
def test_tasks_of_one_kind_signal_an_event(shape, direction, relay):
  """So the word that is added last is there last."""
  image = testing.image_of(shape, direction=direction, relay=relay)
  tasks, signals = image.tables['tasks'], image.tables['signals']
  kinds: dict[int, int] = {}
  for task in tasks:
    begin = task['signal_begin']
    for signal in signals[begin : begin + task['signal_count']]:
      kind = kinds.setdefault(int(signal['event']), int(task['kind']))
      assert kind == task['kind']
  assert len(set(kinds.values())) > 1


def add_words(count: int, add: float, trip: float, waits: int) -> float:
  """Returns seconds of an AIV that adds words, one after the other."""
  now, arrivals = 0.0, []
  for i in range(count):
    if waits and i >= waits:
      now = max(now, arrivals[i - waits])
    now += add
    arrivals.append(now + trip)
    if not waits:
      now = arrivals[-1]
  return now


@pytest.mark.parametrize('waits', range(6))
@pytest.mark.parametrize('trip', [0, 1e-7, 2.5e-7, 1e-6])
def test_an_aiv_waits_for_a_word_when_its_place_is_needed(trip, waits):
  # Given AIV tasks with several signals, then they take what words in a ring
  # of places take, and those of AICs what signals do.
  add = 1e-7
  machine = A3.with_figures(aiv_add=add, add_trip=trip, add_waits=waits)
  image = testing.image_of('rank_per_expert', direction='backward')
  ids = testing.routing_of(image)
  before, after = (simulate.costs(image, m, ids).fixed for m in (A3, machine))
  tasks = image.tables['tasks']
  is_aiv = tasks['unit'] == layout.Unit.AIV
  counts = tasks['signal_count'].astype(int)
  assert counts[is_aiv].max() > 1
  signals = counts * A3['signal']
  words = np.array([add_words(n, add, trip, waits) for n in counts])
  want = before - np.where(is_aiv, signals - words, 0)
  np.testing.assert_allclose(after, want, rtol=1e-9, atol=1e-15)


def landings(image, ids):
  """Yields (put, expert, row of it) of every row that is dispatched."""
  routing = _native.Routing(image, ids)
  dims = image.config.dims()
  local = dims['E'] // dims['R']
  counts = np.cumsum(routing.counts, axis=0) - routing.counts
  puts = {Kind.DISPATCH, Kind.DISPATCH_GRAD}
  for t, task in enumerate(image.tables['tasks']):
    if task['kind'] not in puts:
      continue
    source, expert = int(task['rank']), int(task['expert'])
    assert task['peer'] == expert // local
    rows = min(int(task['row_end']), int(routing.counts[source, expert]))
    for row in range(int(task['row_begin']), rows):
      yield t, expert, int(counts[source, expert]) + row


@pytest.mark.parametrize('sharing', [True, False])
@pytest.mark.parametrize('direction', testing.DIRECTIONS)
@pytest.mark.parametrize('shape', testing.SHAPES)
def test_a_row_block_is_read_when_its_last_row_is_there_and_not_later(
  shape, direction, sharing
):
  """With a core for each task nothing else holds a reader back."""
  image = testing.image_of(shape, direction=direction, num_aic=500, num_aiv=500)
  machine = A3.with_figures(aic=500, aiv=500)
  ids = testing.routing_of(image)
  result = simulate.simulate(image, machine, ids, sharing=sharing)
  block = image.options.row_block
  arrival_times: dict[tuple[int, int], float] = {}
  for put, expert, row in landings(image, ids):
    block_key = expert, row // block
    arrival_times[block_key] = max(
      arrival_times.get(block_key, 0.0), result.end[put]
    )
  reader = {
    layout.Direction.FORWARD: Kind.GATE_UP,
    layout.Direction.BACKWARD: Kind.DOWN_GRAD,
  }[image.direction]
  tables = image.tables
  queue, _, _ = happens_before.locate_tasks(image)
  alone = tables['queues']['count'][queue] == 1
  num_checked = exact = 0
  for t in np.flatnonzero(tables['tasks']['kind'] == reader):
    expert, number = (tables['tasks'][t][n] for n in ('expert', 'row_block'))
    last = arrival_times.get((int(expert), int(number)))
    if last is None:  # it has no rows
      continue
    visible_at = last + seen_after(machine)
    assert result.start[t] >= visible_at
    if alone[t] and block * (number + 1) <= (ids == expert).sum():
      assert result.start[t] == pytest.approx(visible_at, rel=1e-12)
      exact += 1
    num_checked += 1
  assert num_checked > 0
  assert exact > 0 or shape != 'many_parts'
