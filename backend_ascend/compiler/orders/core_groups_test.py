"""Core groups give placements whose images are proved, on the cores they say.

The schedules of the A3 megakernel are tried at its 16 experts a rank and its
24 and 48 cores, on a layer that is small otherwise.
"""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.orders import core_groups
from hpmoe.backend_ascend.compiler.orders import megamoe
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.compiler.taskflow import lower_forward
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

Kind = layout.Kind
CONFIG = config_testing.make_config(r=2, t=32, e=32, k=2, d=8, f=4)
OPTIONS = granularity.Options(
  'row_block', 4, 2, num_aic=24, num_aiv=48, token_block=2, vector_rows=2
)
KNOBS = megamoe.Knobs()


def compiled(scheduler, grain='row_block') -> flow_lib.Flow:
  options = dataclasses.replace(OPTIONS, event_grain=grain)
  policy = precision.PrecisionPolicy()
  return compiler.compile_forward(CONFIG, policy, options, scheduler).flow


def cores(flow, kind, experts=None) -> set[int]:
  tasks = flow.tasks[flow.tasks['kind'] == kind]
  if experts is not None:
    tasks = tasks[np.isin(tasks['expert'] % 16, experts)]
  return set(tasks['core'].tolist())


def queue_of(flow, unit, core) -> np.ndarray:
  """Returns the tasks of a core of rank 1, in order."""
  queues = flow.queues[
    (flow.queues['rank'] == 1) & (flow.queues['core'] == core)
  ]
  row = queues[queues['unit'] == unit][0]
  entries = flow.queue_tasks[row['begin'] : row['begin'] + row['count']]
  return flow.tasks[entries]


@pytest.fixture(scope='module')
def expert_major() -> flow_lib.Flow:
  return compiled(megamoe.expert_major(2, KNOBS))


@pytest.fixture(scope='module')
def stage_major() -> flow_lib.Flow:
  return compiled(megamoe.stage_major(2, 16, 16), 'expert')


def test_groups_change_at_the_border_of_an_expert(expert_major):
  flow = expert_major
  front, back = set(range(16)), set(range(16, 24))
  assert cores(flow, Kind.GATE_UP, [0, 1]) == front | back
  assert cores(flow, Kind.GATE_UP, range(2, 16)) == front
  assert cores(flow, Kind.DOWN, range(13)) == back
  assert cores(flow, Kind.DOWN, [13, 14, 15]) == front | back


def test_each_vector_stage_has_cores_of_its_own(expert_major):
  # Of the 32 tokens the first half is combined by the 32 AIVs of dispatch and
  # SwiGLU alone, the second by all.
  flow = expert_major
  assert cores(flow, Kind.DISPATCH) == {0, 1}
  assert cores(flow, Kind.SWIGLU) == set(range(24, 40))
  assert cores(flow, Kind.RETURN) == set(range(16, 24))
  early = flow.tasks[
    (flow.tasks['kind'] == Kind.COMBINE) & (flow.tasks['row_begin'] < 16)
  ]
  assert set(early['core'].tolist()) <= {*range(16), *range(24, 40)}


def test_nothing_goes_home_before_the_named_expert(expert_major):
  queue = queue_of(expert_major, layout.Unit.AIV, 16)
  homeward = queue[queue['kind'] == Kind.RETURN]['expert'] % 16
  assert homeward[0] == KNOBS.return_after
  assert (np.diff(homeward[1:]) >= 0).all()


def test_stages_follow_one_another_on_a_cube_core(stage_major):
  queue = queue_of(stage_major, layout.Unit.AIC, 5)
  assert (np.diff(queue['kind'].astype(int)) >= 0).all()
  for kind in (Kind.GATE_UP, Kind.DOWN):
    assert (np.diff(queue[queue['kind'] == kind]['expert']) >= 0).all()


def test_a_segment_of_swiglu_runs_downwards(stage_major):
  queue = queue_of(stage_major, layout.Unit.AIV, 3)
  experts = queue[queue['kind'] == Kind.SWIGLU]['expert'] % 16
  first = experts[experts < 13]
  assert len(first) > 1
  assert (np.diff(first) <= 0).all()
  assert (experts[len(first) :] >= 13).all()


def test_gemm_tiles_walk_in_a_snake():
  # 16 column blocks: a panel of 9 goes down the row blocks, one of 7 up.
  config = dataclasses.replace(CONFIG, d_ff=16)
  options = dataclasses.replace(OPTIONS, num_aic=1)
  policy = precision.PrecisionPolicy()
  flow = lower_forward.lower_forward(config, policy, options)
  kinds = layout.select_kinds(direction=layout.Direction.FORWARD)
  stages = tuple(core_groups.Stage(kind, ((0, (0,)),)) for kind in kinds)
  order = core_groups.scheduler(stages)(flow).order
  walked = flow.tasks[order]
  walked = walked[(walked['kind'] == Kind.GATE_UP) & (walked['rank'] == 0)]
  walked = walked[walked['expert'] == 0]
  rows, last = walked['row_block'], walked['row_block'].max()
  assert list(walked['col_block'][:18]) == [*range(9), *range(9)]
  assert list(rows[:18]) == [0] * 9 + [1] * 9
  panel = walked[9 * (last + 1) :]
  assert list(panel['col_block'][:7]) == list(range(9, 16))
  assert panel['row_block'][0] == last and panel['row_block'][-1] == 0


@pytest.mark.parametrize(
  'kinds, message',
  [
    ([Kind.GATE_UP], "stages: expected one for each kind, got none of .*'swi"),
    (
      layout.select_kinds(direction=layout.Direction.FORWARD),
      'steps: expected a permutation of 16 experts',
    ),
  ],
)
def test_wrong_stages_are_refused(kinds, message):
  stages = tuple(
    core_groups.Stage(kind, ((0, (0,)),), steps=(0, 0)) for kind in kinds
  )
  with pytest.raises(ValueError, match=message):
    compiled(core_groups.scheduler(stages))
