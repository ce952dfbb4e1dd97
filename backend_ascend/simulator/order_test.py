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


def longest_path(image, took: np.ndarray, poll: float):
  """Returns (start, end) `[tasks]` of a flow whose events count tasks.

  An event is reached when all that signal it have ended, and seen a poll later.
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
      ready = [visit(w) + poll for event in events for w in writers[event]]
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
  start, end = longest_path(image, cost.fixed + cost.own, CORES['poll'])
  np.testing.assert_allclose(result.start, start, rtol=1e-12, atol=1e-18)
  np.testing.assert_allclose(result.end, end, rtol=1e-12)


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
    visible_at = last + machine['poll']
    assert result.start[t] >= visible_at
    if alone[t] and block * (number + 1) <= (ids == expert).sum():
      assert result.start[t] == pytest.approx(visible_at, rel=1e-12)
      exact += 1
    num_checked += 1
  assert num_checked > 0
  assert exact > 0 or shape != 'many_parts'
