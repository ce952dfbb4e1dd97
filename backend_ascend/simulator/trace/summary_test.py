"""Sums of a launch against the same by counting seconds."""

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime_testing
from hpmoe.backend_ascend.simulator.trace import summary
from hpmoe.backend_ascend.simulator.trace import timeline
from hpmoe.backend_ascend.simulator.trace import timeline_testing as testing


def seconds_of(start, end, total: int) -> np.ndarray:
  """Returns whether any interval covers each whole second."""
  covered = np.zeros(total, bool)
  for a, b in zip(start.astype(int), end.astype(int)):
    covered[a:b] = True
  return covered


class TestUncovered:
  def test_is_what_counting_gives(self):
    generator = runtime_testing.rng('uncovered')
    for number in range(100):
      sizes = divmod(number, 10)  # none to nine of each
      (a, b), (c, d) = (
        np.sort(generator.integers(0, 30, (2, size)), axis=0) for size in sizes
      )
      mine, others = seconds_of(a, b, 30), seconds_of(c, d, 30)
      got = summary.uncovered(
        summary.merge_intervals(a.astype(float), b.astype(float)),
        summary.merge_intervals(c.astype(float), d.astype(float)),
      )
      assert got == (mine & ~others).sum()


class TestSummarise:
  @testing.both_sources
  @testing.both_passes
  def test_units_stages_and_path_add_up(self, source, direction):
    times = source(direction)
    found = summary.summarise(times)
    took = (times.end - times.start).sum()
    units = {unit.name: unit for unit in found.units}
    np.testing.assert_allclose(sum(s.busy for s in found.stages), took)
    np.testing.assert_allclose(
      units['AIC'].seconds + units['AIV'].seconds, took
    )
    assert sum(s.tasks for s in found.stages) == found.tasks
    on_path = sum(s.on_path for s in found.stages)
    np.testing.assert_allclose(on_path + found.between, found.total)
    assert found.between >= -1e-12
    assert all(
      0 <= u.least <= u.utilisation <= u.most <= 1 for u in found.units
    )

  @testing.both_passes
  def test_exposed_is_what_counting_gives(self, direction):
    times = testing.made_up(direction)
    tasks, total = times.tasks, int(times.total)
    puts = timeline.is_put(tasks)
    rows = []
    for rank in range(times.image.config.num_ranks):
      sent, gemm, other = (
        seconds_of(times.start[mine], times.end[mine], total)
        for mine in (
          (tasks['rank'] == rank) & puts,
          (tasks['rank'] == rank) & (tasks['unit'] == layout.Unit.AIC),
          (tasks['rank'] == rank) & ~puts,
        )
      )
      rows.append([sent.sum(), (sent & ~gemm).sum(), (sent & ~other).sum()])
    puts_run, without_gemm, without_compute = np.mean(rows, axis=0)
    found = summary.exposed(times)
    assert found.puts == puts_run
    assert found.without_gemm == without_gemm
    assert found.without_compute == without_compute
    assert found.worst == rows[found.worst_rank][1] == max(r[1] for r in rows)
