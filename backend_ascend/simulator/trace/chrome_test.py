"""The trace holds every task once and obeys the rules of the format."""

import json

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator.trace import chrome
from hpmoe.backend_ascend.simulator.trace import timeline_testing as testing


def written(tmp_path, times, **options) -> dict:
  path = tmp_path / 'trace.json'
  chrome.write(path, times, **options)
  return json.loads(path.read_text())


def of(trace: dict, phase: str) -> list[dict]:
  return [r for r in trace['traceEvents'] if r['ph'] == phase]


def ns(us: float) -> int:
  return round(us * 1000)


def track(record: dict) -> tuple[int, int]:
  return record['pid'], record['tid']


class TestWrite:
  @testing.both_sources
  @testing.both_passes
  def test_each_task_is_one_slice_of_its_worker(
    self, source, direction, tmp_path
  ):
    times = source(direction)
    tasks, ranks = times.tasks, times.image.config.num_ranks
    trace = written(tmp_path, times)
    slices = of(trace, 'X')
    own = [s for s in slices if s['pid'] < ranks]
    assert sorted(s['args']['task'] for s in own) == list(range(len(tasks)))
    for one in own:
      task = one['args']['task']
      row = tasks[task]
      assert one['name'] == layout.Kind(row['kind']).name.lower()
      assert one['pid'] == row['rank']
      for name in ('expert', 'row_begin', 'col_end', 'row_block', 'col_block'):
        assert one['args'][name] == row[name]
      assert ns(one['ts']) == round(times.start[task] * 1e9)
      assert ns(one['ts'] + one['dur']) == round(times.end[task] * 1e9)
      assert ns(one['args']['waited_us']) == round(times.waited[task] * 1e9)
    again = [s['args']['task'] for s in slices if s['pid'] >= ranks]
    assert sorted(again) == (
      [] if times.thread is None else list(range(len(tasks)))
    )
    # Tracks have names, and their slices do not overlap.
    named = {track(r) for r in of(trace, 'M') if r['name'] == 'thread_name'}
    by_track: dict[tuple, list] = {}
    for one in slices:
      at = ns(one['ts'])
      by_track.setdefault(track(one), []).append((at, at + ns(one['dur'])))
    assert set(by_track) <= named
    assert min(tid for _, tid in named) == 1
    for spans in by_track.values():
      ordered = sorted(spans)
      for (_, end), (start, _) in zip(ordered, ordered[1:]):
        assert end <= start

  @testing.both_sources
  @testing.both_passes
  def test_arrows_join_slices_that_are_open(self, source, direction, tmp_path):
    times = source(direction)
    trace = written(tmp_path, times)
    slices: dict[tuple, list] = {}
    for one in of(trace, 'X'):
      slices.setdefault(track(one), []).append(one)

    def open_at(record) -> set[int]:
      at = ns(record['ts'])
      return {
        s['args']['task']
        for s in slices[track(record)]
        if ns(s['ts']) <= at <= ns(s['ts']) + ns(s['dur'])
      }

    starts = {r['id']: r for r in of(trace, 's')}
    ends = {r['id']: r for r in of(trace, 'f')}
    waiters = {
      (event, task) for task, event in happens_before.list_waits(times.image)
    }
    signals = {(event, task) for task, event in times.signals.tolist()}
    assert starts.keys() == ends.keys() and len(of(trace, 's')) == len(starts)
    assert starts.keys() == {e for e, _ in signals} & {e for e, _ in waiters}
    for event, start in starts.items():
      end = ends[event]
      assert start['name'] == end['name'] and start['cat'] == end['cat']
      assert end['bp'] == 'e'
      assert any((event, task) in signals for task in open_at(start))
      assert any((event, task) in waiters for task in open_at(end))

  def test_most_arrows_are_those_that_were_waited_for(self, tmp_path):
    times = testing.made_up()
    every = chrome.arrows(times)
    assert every.left_out == 0
    few = chrome.arrows(times, 5)
    assert len(few.event) == 5 and few.left_out == len(every.event) - 5
    kept = times.waited[few.waiter].min()
    others = ~np.isin(every.event, few.event)
    assert kept >= times.waited[every.waiter[others]].max()
    about = written(tmp_path, times, most_arrows=5)['otherData']
    assert about['arrows'] == 5 and about['arrow_rule'] == chrome.ARROW_RULE
    assert about['arrows_left_out'] == few.left_out
