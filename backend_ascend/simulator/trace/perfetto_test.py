"""Traces in Perfetto's own UI and trace processor, in a headless browser."""

import numpy as np
import pytest

from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.trace import chrome
from hpmoe.backend_ascend.simulator.trace import perfetto_testing
from hpmoe.backend_ascend.simulator.trace import sources
from hpmoe.backend_ascend.simulator.trace import timeline
from hpmoe.backend_ascend.simulator.trace import timeline_testing as testing
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

_TILE = ('task', 'expert', 'row_begin', 'col_begin', 'waited_us')


def ep8() -> timeline.Timeline:
  """Returns the forward pass of HyperParallel-MoE's EP8 shape, modelled."""
  config = config_lib.MoEConfig(
    num_ranks=8,
    num_tokens=4096,
    num_experts=64,
    top_k=8,
    d_model=7168,
    d_ff=2048,
    capacity=4096 * 8,
  )
  options = flow_lib.Options(
    row_block=128, col_block=256, expert_capacity=8 * 4096 * 8 // 64
  )
  policy = precision.PrecisionPolicy(storage='bfloat16')
  image = compiler.compile_forward(config, policy, options).image
  dealt = np.arange(8 * 4096 * 8, dtype=np.int32) % 64
  ids = dealt.reshape(8, 4096, 8)
  machine = machine_lib.load('ascend_a3')
  return sources.of_simulation(simulate.simulate(image, machine, ids), ids)


@pytest.mark.slow
@pytest.mark.parametrize('source', [testing.measured, testing.made_up, ep8])
def test_perfetto_shows_every_task_and_arrow(source, tmp_path):
  times = source()
  path = tmp_path / 'trace.json'
  arrows = chrome.write(path, times)
  tasks, queues = times.tasks, times.image.tables['queues']
  ranks = times.image.config.num_ranks
  with perfetto_testing.opened(path, 'rank 0') as page:
    # What the importer could not read.
    assert not page.query(
      'select name, value from stats where value > 0 and '
      "severity in ('error', 'data_loss')"
    )
    slices = page.query(
      'select pid, s.name, count(*) from slice s '
      'join thread_track t on s.track_id = t.id join thread using (utid) '
      'join process p using (upid) group by 1, 2 order by 1, 2'
    )
    (flows,) = page.query('select count(*) from flow')
    tracks = page.query(
      'select pid, count(distinct utid) from thread_track '
      'join thread using (utid) join process p using (upid) '
      'group by 1 order by 1'
    )
    columns = ', '.join(f"extract_arg(arg_set_id, 'args.{n}')" for n in _TILE)
    first = page.query(
      f'select ts, dur, {columns} from slice '
      f"where extract_arg(arg_set_id, 'args.task') = {len(tasks) - 1} limit 1"
    )[0]
  seen = {(rank, kind): int(n) for rank, kind, n in slices}
  for rank in range(ranks):
    for kind in timeline.kinds(tasks):
      mine = (tasks['rank'] == rank) & (tasks['kind'] == kind)
      got = seen.get((str(rank), kind.name.lower()), 0)
      assert got == mine.sum(), (rank, kind)
  assert int(flows[0]) == len(arrows.event)
  used = queues[queues['count'] > 0]['rank']
  for rank in range(ranks):
    assert int(dict(tracks)[str(rank)]) == (used == rank).sum()
  last = tasks[-1]
  # Perfetto's times start with the first slice.
  begin = round(times.start[-1] * 1e9) - round(times.start.min() * 1e9)
  assert int(first[0]) in (begin, round(times.start[-1] * 1e9))
  want = [len(tasks) - 1, last['expert'], last['row_begin'], last['col_begin']]
  assert [int(value) for value in first[2:6]] == want
