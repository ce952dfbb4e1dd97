"""Which tasks are guilty where values and races point to several."""

import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.host.checks import modes
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import task_names
from hpmoe.parity_tests.ascend import image_launch
from hpmoe.parity_tests.judge import isolated_replay
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

CONFIG = config_testing.make_config(r=2, t=9, e=4, k=2, d=16, f=8)
IDS = np.tile(np.array([0, 3], np.int32), (2, 9, 1))


def _name(index: int, kind: str = 'down', col_block: int = 0):
  return task_names.TaskName(index, kind, 0, 0, 0, col_block)


def _wrong(index: int, lane: str = 'exact', bad: int = 3, **place):
  return isolated_replay.WrongTask(
    'forward', _name(index, **place), (lane,), 'expert_out', bad, 8
  )


def _race(first, second, blame, kind='write-read'):
  return modes.Race(
    first, second, 'activation', 0, (0, 1), (0, 1), kind, 'missing', blame
  )


def test_a_task_lists_its_lanes_once_with_the_most_elements():
  guilty_tasks = isolated_replay.find_guilty_tasks(
    [_wrong(7), _wrong(4, 'bounded', 1), _wrong(4, 'exact', 2)], (), 'forward'
  )
  assert [(w.task.index, w.lanes, w.bad) for w in guilty_tasks] == [
    (4, ('bounded', 'exact'), 2),
    (7, ('exact',), 3),
  ]


def test_a_reader_after_an_early_signal_is_not_guilty():
  early = _race(_name(2, 'swiglu'), _name(4), _name(2, 'swiglu'))
  guilty_tasks = isolated_replay.find_guilty_tasks(
    [_wrong(4), _wrong(7)], [early], 'forward'
  )
  assert [w.task.index for w in guilty_tasks] == [2, 7]
  assert guilty_tasks[0].lanes == ('races',) and not guilty_tasks[0].bad


def test_a_task_that_did_not_wait_is_guilty_once():
  late = _race(_name(2, 'swiglu'), _name(4), _name(4))
  guilty_tasks = isolated_replay.find_guilty_tasks(
    [_wrong(4)], [late, late], 'forward'
  )
  assert [(w.task.index, w.lanes, w.bad) for w in guilty_tasks] == [
    (4, ('exact', 'races'), 3)
  ]
  assert 'race on activation' in str(guilty_tasks[0])


def test_links_of_a_chain_are_one_task_and_other_tiles_are_not():
  kind = 'down_weight_grad'
  early = _race(_name(2, 'swiglu'), _name(4, kind), _name(2, 'swiglu'))
  unordered = _race(_name(3), _name(10, kind, 1), _name(10, kind, 1))
  guilty_tasks = isolated_replay.find_guilty_tasks(
    [_wrong(6, kind=kind), _wrong(12, kind=kind, col_block=1)],
    [early, unordered],
    'backward',
  )
  # Of the first chain nobody; of the second one the link that raced.
  assert [w.task.index for w in guilty_tasks] == [2, 10]
  assert (
    guilty_tasks[1].lanes == ('exact', 'races') and guilty_tasks[1].bad == 3
  )


def test_every_element_of_a_row_that_exists_has_one_writer():
  image = compiler.compile_forward(
    CONFIG,
    precision.PrecisionPolicy(),
    granularity.Options(row_block=8, col_block=8, num_aic=2, num_aiv=2),
  ).image
  rows = CONFIG.num_rows
  bad = {
    'gate_up': np.zeros((2, rows, 16), bool),
    'y': np.zeros((2, 9, 16), bool),
  }
  bad['gate_up'][1, 8, 7:9] = bad['y'][0, 8, 15] = True

  plan = runtime.route(image, IDS)
  wrong_tasks = image_launch.find_wrong_tasks(image, plan, 'exact', bad)

  # Rank 1 has the 18 rows of expert 3: blocks of 8, two columns of tiles.
  assert [
    (w.task.kind, w.task.rank, w.task.row_block, w.task.col_block, w.bad)
    for w in wrong_tasks
  ] == [
    ('gate_up', 1, 1, 0, 1),
    ('gate_up', 1, 1, 1, 1),
    ('combine', 0, 1, 0, 1),
  ]
  assert [w.elements for w in wrong_tasks] == [64, 64, 16]

  # The mask of a task has the elements that it writes, and no others.
  tasks = np.zeros(400, bool)
  tasks[wrong_tasks[0].task.index] = True
  masks = image_launch.mask_written_elements(image, plan, tasks, bad)
  assert masks['gate_up'][1, 8:16, :8].all()
  assert masks['gate_up'].sum() == 64 and not masks['y'].any()
  assert dataclasses.asdict(wrong_tasks[0])['direction'] == 'forward'
