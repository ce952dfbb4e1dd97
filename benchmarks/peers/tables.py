"""The figures as a table: two machines are columns side by side."""

from collections.abc import Mapping
import statistics
from typing import Any

from benchmarks.peers import cases

OURS = ('ours, numpy', 'ours, JAX', 'ours, even_odd_32')
CLOCKS = ('wall', 'processor')
# Milliseconds of each peer, by case and pass.
Milliseconds = Mapping[str, Mapping[str, Mapping[str, float]]]


def medians(figures: Mapping[str, Any]) -> Milliseconds:
  """Returns what each peer took, in order."""
  found: dict[str, dict[str, dict[str, float]]] = {}
  for entry in figures['entries']:
    seconds = entry[figures['clock']]
    if seconds and entry['which'] != cases.MULTIPLY:
      row = found.setdefault(entry['case'], {}).setdefault(entry['which'], {})
      row[entry['peer']] = round(1e3 * statistics.median(seconds), 1)
  return found


def _cells(row: Mapping[str, float]) -> list[str]:
  """Returns what ours took, and the best peer."""
  mine = [f'{row[name]:g}' if name in row else '-' for name in OURS]
  best = min(
    ((ms, name) for name, ms in row.items() if name not in OURS), default=None
  )
  return [*mine, '-' if best is None else f'{best[0]:g} {best[1]}']


def table(
  machines: Mapping[str, Mapping[str, Any]],
) -> tuple[list[str], list[list[str]]]:
  """Returns columns, four a machine, and a row for each case and pass."""
  columns = ['ms', 'pass']
  rows: dict[tuple[str, str], list[str]] = {}
  for name, held in machines.items():
    columns += [f'{name}: {OURS[0]}', *OURS[1:], 'best peer']
    for case, passes in held['milliseconds'].items():
      for which in passes:
        rows.setdefault((case, which), [])
  for key, cells in rows.items():
    case, which = key
    for held in machines.values():
      cells += _cells(held['milliseconds'].get(case, {}).get(which, {}))
  return columns, [[*key, *cells] for key, cells in rows.items()]
