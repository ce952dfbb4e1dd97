"""The one printer of tables."""

from collections.abc import Mapping, Sequence
import re
from typing import Any

# Figures stand to the right, words to the left.
_FIGURE = re.compile(r'-|nan|[-+]?inf|[-+]?[\d.,]+(e[-+]\d+)?%?')


def format_rows(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns the table of at least one row, each a cell by its column's name."""
  return format_table([*rows[0]], [[*map(str, row.values())] for row in rows])


def format_table(
  heading: Sequence[str],
  rows: Sequence[Sequence[str]],
  colours: Sequence[str] | None = None,
) -> str:
  """Returns a line for each row under a heading, in columns.

  Args:
    heading: names of the columns.
    rows: cells, as many as there are names.
    colours: for each row an escape sequence that colours it, or ''.
  """
  columns = list(zip(heading, *rows))
  widths = [max(map(len, column)) for column in columns]
  right = [bool(rows) and all(map(_FIGURE.fullmatch, c[1:])) for c in columns]

  def line(cells: Sequence[str]) -> str:
    aligned = [
      c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right)
    ]
    return '  '.join(aligned).rstrip()

  lines = [line(row) for row in rows]
  for i, colour in enumerate(colours or ()):
    if colour:
      lines[i] = f'{colour}{lines[i]}\x1b[0m'
  return '\n'.join([line(heading), line(['-' * w for w in widths]), *lines])
