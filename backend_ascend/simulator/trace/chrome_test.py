"""The trace holds every task once and obeys the rules of the format."""

import json

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator.trace import chrome
from hpmoe.backend_ascend.simulator.trace import timeline_testing as testing


def write_trace(tmp_path, times, **options) -> dict:
  path = tmp_path / 'trace.json'
  chrome.write(path, times, **options)
  return json.loads(path.read_text())


def select_records(trace: dict, phase: str) -> list[dict]:
  return [r for r in trace['traceEvents'] if r['ph'] == phase]


def to_ns(microseconds: float) -> int:
  return round(microseconds * 1000)


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
    trace = write_trace(tmp_path, times)
    slices = select_records(trace, 'X')
    own = [s for s in slices if s['pid'] < ranks]
    assert sorted(s['args']['task'] for s in own) == list(range(len(tasks)))
    for slice_ in own:
      task = slice_['args']['task']
      row = tasks[task]
      assert slice_['name'] == layout.Kind(row['kind']).name.lower()
      assert slice_['pid'] == row['rank']
      for name in ('expert', 'row_begin', 'col_end', 'row_block', 'col_block'):
        assert slice_['args'][name] == row[name]
      assert to_ns(slice_['ts']) == round(times.start[task] * 1e9)
      assert to_ns(slice_['ts'] + slice_['dur']) == round(times.end[task] * 1e9)
      assert to_ns(slice_['args']['waited_us']) == round(
        times.wait_times[task] * 1e9
      )
    thread_tasks = [s['args']['task'] for s in slices if s['pid'] >= ranks]
    assert sorted(thread_tasks) == (
      [] if times.thread is None else list(range(len(tasks)))
    )
    # Tracks have names, and their slices do not overlap.
    tracks = {
      track(r) for r in select_records(trace, 'M') if r['name'] == 'thread_name'
    }
    by_track: dict[tuple, list] = {}
    for slice_ in slices:
      begin = to_ns(slice_['ts'])
      by_track.setdefault(track(slice_), []).append(
        (begin, begin + to_ns(slice_['dur']))
      )
    assert set(by_track) <= tracks
    assert min(tid for _, tid in tracks) == 1
    for spans in by_track.values():
      ordered = sorted(spans)
      for (_, end), (start, _) in zip(ordered, ordered[1:]):
        assert end <= start

  @testing.both_sources
  @testing.both_passes
  def test_arrows_join_slices_that_are_open(self, source, direction, tmp_path):
    times = source(direction)
    trace = write_trace(tmp_path, times)
    slices: dict[tuple, list] = {}
    for slice_ in select_records(trace, 'X'):
      slices.setdefault(track(slice_), []).append(slice_)

    def open_at(record) -> set[int]:
      instant = to_ns(record['ts'])
      return {
        s['args']['task']
        for s in slices[track(record)]
        if to_ns(s['ts']) <= instant <= to_ns(s['ts']) + to_ns(s['dur'])
      }

    starts = {r['id']: r for r in select_records(trace, 's')}
    ends = {r['id']: r for r in select_records(trace, 'f')}
    waiters = {
      (event, task) for task, event in happens_before.list_waits(times.image)
    }
    signals = {(event, task) for task, event in times.signals.tolist()}
    assert starts.keys() == ends.keys() and len(
      select_records(trace, 's')
    ) == len(starts)
    assert starts.keys() == {e for e, _ in signals} & {e for e, _ in waiters}
    for event, start in starts.items():
      end = ends[event]
      assert start['name'] == end['name'] and start['cat'] == end['cat']
      assert end['bp'] == 'e'
      assert any((event, task) in signals for task in open_at(start))
      assert any((event, task) in waiters for task in open_at(end))

  def test_most_arrows_are_those_that_were_waited_for(self, tmp_path):
    times = testing.made_up()
    all_arrows = chrome.arrows(times)
    assert all_arrows.left_out == 0
    few = chrome.arrows(times, 5)
    assert len(few.event) == 5 and few.left_out == len(all_arrows.event) - 5
    shortest_wait = times.wait_times[few.waiter].min()
    left_out = ~np.isin(all_arrows.event, few.event)
    assert shortest_wait >= times.wait_times[all_arrows.waiter[left_out]].max()
    about = write_trace(tmp_path, times, most_arrows=5)['otherData']
    assert about['arrows'] == 5 and about['arrow_rule'] == chrome.ARROW_RULE
    assert about['arrows_left_out'] == few.left_out
