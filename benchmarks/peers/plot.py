"""The figures as a picture."""

import pathlib

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

from benchmarks.peers import tables  # noqa: E402


def draw(figures: tables.Figures, path: pathlib.Path) -> None:
  """Draws, for each case and pass, every peer's time over the best of ours."""
  rows = tables.medians(figures)
  peers = list(dict.fromkeys(n for row in rows.values() for n in row))
  fig, axes = plt.subplots(figsize=(8, 0.6 + 0.45 * len(rows)))
  for number, name in enumerate(peers):
    at, times = [], []
    for place, row in enumerate(rows.values()):
      mine, _ = tables.best_ours_and_theirs(row)
      if name in row:
        at.append(-place)
        times.append(row[name] / mine)
    is_ours = name.startswith(tables.OURS)
    axes.scatter(
      times,
      at,
      label=name,
      color='black' if is_ours else f'C{number % 10}',
      marker='|' if is_ours else 'o',
      s=90 if is_ours else 25,
    )
  axes.axvline(1, color='grey', linewidth=0.5)
  axes.set_xscale('log', base=2)
  axes.set_yticks([-i for i in range(len(rows))], [' '.join(k) for k in rows])
  axes.set_xlabel('time over the best of ours (left of 1: faster than ours)')
  axes.legend(fontsize=7, loc='center left', bbox_to_anchor=(1, 0.5))
  fig.tight_layout()
  fig.savefig(path, dpi=120)
  plt.close(fig)
