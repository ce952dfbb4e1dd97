"""The figures as markdown."""

from collections.abc import Mapping
import statistics
from typing import Any

from benchmarks.peers import cases

Figures = Mapping[str, Any]
OURS = 'ours'
CLOCKS = ('wall', 'processor')


def medians(figures: Figures) -> dict[tuple[str, str], dict[str, float]]:
  """Returns milliseconds of each peer, by (case, pass), in order."""
  found: dict[tuple[str, str], dict[str, float]] = {}
  for entry in figures['entries']:
    seconds = entry[figures['clock']]
    if seconds and entry['which'] != cases.MULTIPLY:
      row = found.setdefault((entry['case'], entry['which']), {})
      row[entry['peer']] = 1e3 * statistics.median(seconds)
  return found


def spread(figures: Figures) -> float:
  """Returns the median of what the quartiles lie apart, of the median."""
  apart = []
  for entry in figures['entries']:
    seconds = entry[figures['clock']]
    if len(seconds) > 3:
      low, middle, high = statistics.quantiles(seconds, n=4)
      apart.append((high - low) / middle)
  return statistics.median(apart) if apart else float('nan')


def rates(figures: Figures, case: str, which: str) -> dict[str, float]:
  """Returns operations a second of each peer that was timed."""
  return {
    entry['peer']: entry['operations'] / statistics.median(seconds)
    for entry in figures['entries']
    if (entry['case'], entry['which']) == (case, which)
    and (seconds := entry[figures['clock']])
  }


def share_of_squares(figures: Figures, case: str, which: str) -> str:
  """Returns the rates of ours over that of the best product of two squares."""
  best = max(rates(figures, case, cases.MULTIPLY).values(), default=None)
  if best is None:
    return '-'
  mine = rates(figures, case, which).items()
  shares = [f'{r / best:.0%}' for n, r in mine if n.startswith(OURS)]
  return ', '.join(shares) or '-'


def best_ours_and_theirs(row: Mapping[str, float]) -> tuple[float, float]:
  """Returns the least time of ours and of the others, infinite if none."""
  mine = [v for n, v in row.items() if n.startswith(OURS)]
  others = [v for n, v in row.items() if not n.startswith(OURS)]
  return min(mine, default=float('inf')), min(others, default=float('inf'))


def times_as_fast(row: Mapping[str, float]) -> str:
  """Returns the best peer's time over that of each of ours."""
  _, theirs = best_ours_and_theirs(row)
  mine = [v for n, v in row.items() if n.startswith(OURS)]
  return ', '.join(f'{theirs / value:.2f}' for value in mine) or '-'


def markdown(figures: Figures) -> str:
  """Returns machine, versions and a table: a row for each case and pass."""
  rows = medians(figures)
  peers = list(dict.fromkeys(n for row in rows.values() for n in row))
  about = figures['machine']
  lines = [
    f'{about["cpu"]}, {about["cores"]} cores, load {about["load"]} at the '
    f'start; {about["system"]}, Python {about["python"]}. Medians of '
    f'{figures["rounds"]} interleaved rounds in ms, {figures["clock"]} time; '
    'the quartiles of a row lie '
    f'{spread(figures):.0%} of it apart (median over the table).',
    '',
    ', '.join(f'{n} {v}' for n, v in sorted(figures['versions'].items())) + '.',
    '',
    f'| case | pass | {" | ".join(peers)} | best peer over ours | rate of ours '
    'over that of the best sgemm 2048^3 |',
    f'|---|---|{"---|" * (len(peers) + 2)}',
  ]
  for (case, which), row in rows.items():
    cells = [f'{row[n]:.1f}' if n in row else '-' for n in peers]
    lines.append(
      f'| {case} | {which} | {" | ".join(cells)} | '
      f'{times_as_fast(row)} | '
      f'{share_of_squares(figures, case, which)} |'
    )
  return '\n'.join(lines) + '\n'
