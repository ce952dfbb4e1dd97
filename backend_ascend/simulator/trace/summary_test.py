"""Sums of a launch against the same by counting seconds."""

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime_testing
from hpmoe.backend_ascend.simulator.trace import summary
from hpmoe.backend_ascend.simulator.trace import timeline
from hpmoe.backend_ascend.simulator.trace import timeline_testing as testing


def seconds_of(start, end, total: int) -> np.ndarray:
  """Returns whether any interval covers each whole second."""
  is_covered = np.zeros(total, bool)
  for a, b in zip(start.astype(int), end.astype(int)):
    is_covered[a:b] = True
  return is_covered


class TestUncovered:
  def test_is_what_counting_gives(self):
    generator = runtime_testing.rng('uncovered')
    for number in range(100):
      sizes = divmod(number, 10)  # none to nine of each
      (a, b), (c, d) = (
        np.sort(generator.integers(0, 30, (2, size)), axis=0) for size in sizes
      )
      own_seconds, other_seconds = seconds_of(a, b, 30), seconds_of(c, d, 30)
      actual = summary.uncovered(
        summary.merge_intervals(a.astype(float), b.astype(float)),
        summary.merge_intervals(c.astype(float), d.astype(float)),
      )
      assert actual == (own_seconds & ~other_seconds).sum()


class TestSummarise:
  @testing.both_sources
  @testing.both_passes
  def test_units_stages_and_path_add_up(self, source, direction):
    times = source(direction)
    result = summary.summarise(times)
    took = (times.end - times.start).sum()
    units = {unit.name: unit for unit in result.units}
    np.testing.assert_allclose(sum(s.busy for s in result.stages), took)
    np.testing.assert_allclose(
      units['AIC'].seconds + units['AIV'].seconds, took
    )
    assert sum(s.tasks for s in result.stages) == result.tasks
    on_path = sum(s.on_path for s in result.stages)
    np.testing.assert_allclose(on_path + result.between, result.total)
    assert result.between >= -1e-12
    assert all(
      0 <= u.lowest <= u.utilisation <= u.highest <= 1 for u in result.units
    )

  @testing.both_passes
  def test_exposed_is_what_counting_gives(self, direction):
    times = testing.made_up(direction)
    tasks, total = times.tasks, int(times.total)
    puts = timeline.is_put(tasks)
    rows = []
    for rank in range(times.image.config.num_ranks):
      put, gemm, other = (
        seconds_of(times.start[mask], times.end[mask], total)
        for mask in (
          (tasks['rank'] == rank) & puts,
          (tasks['rank'] == rank) & (tasks['unit'] == layout.Unit.AIC),
          (tasks['rank'] == rank) & ~puts,
        )
      )
      rows.append([put.sum(), (put & ~gemm).sum(), (put & ~other).sum()])
    puts_run, without_gemm, without_compute = np.mean(rows, axis=0)
    result = summary.measure_exposed_puts(times)
    assert result.puts == puts_run
    assert result.without_gemm == without_gemm
    assert result.without_compute == without_compute
    assert result.worst == rows[result.worst_rank][1] == max(r[1] for r in rows)
