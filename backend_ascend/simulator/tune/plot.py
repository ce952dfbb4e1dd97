"""A picture of a search: the model against the simulator, and the ablation."""

from collections.abc import Sequence
import os

from hpmoe.backend_ascend.simulator.tune import tuner
from hpmoe.reference.contract import plot_style


def write(
  path: str | os.PathLike,
  best: tuner.TimedSchedule,
  published: tuner.TimedSchedule,
  schedules: Sequence[tuner.TimedSchedule],
  ablation: Sequence[tuner.Ablation],
) -> None:
  """Writes a PNG.

  Args:
    path: where.
    best: what the search found.
    published: the published system's schedule.
    schedules: those that were simulated.
    ablation: what each choice is worth.

  Raises:
    OSError: the file cannot be written.
  """
  figure = plot_style.figure(9)
  left, right = figure.subplots(2, height_ratios=[5, 4])
  left.set_prop_cycle(color=plot_style.COLOURS)
  for case in best.predicted:
    left.scatter(
      [1e3 * schedule.total(case) for schedule in schedules],
      [1e3 * schedule.predicted[case] for schedule in schedules],
      s=16,
      alpha=0.6,
      label=f'{len(schedules)} schedules, {case}',
    )
    for name, schedule, mark in (
      ('published', published, 's'),
      ('tuned', best, '*'),
    ):
      left.scatter(
        [1e3 * schedule.total(case)],
        [1e3 * schedule.predicted[case]],
        s=140,
        marker=mark,
        label=f'{name}, {case}',
      )
  ends = [
    1e3 * schedule.total(case)
    for schedule in (*schedules, best)
    for case in best.predicted
  ]
  left.plot([min(ends), max(ends)], [min(ends), max(ends)], color='0.6', lw=0.8)
  left.set_xlabel('simulated, forward + backward, ms')
  left.set_ylabel('analytical model, ms')
  left.legend()
  rows = [row for row in ablation if row.gain is not None][::-1]
  right.barh(
    [f'{row.choice}: {row.option}, not {row.published_option}' for row in rows],
    [100 * (row.gain or 0) for row in rows],
    color=plot_style.COLOURS[0],
  )
  right.axvline(0, color='0.4', lw=0.8)
  right.set_xlabel('slower with the published option instead, %')
  plot_style.save(figure, path)
