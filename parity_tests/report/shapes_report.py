"""What `hpmoe check --shapes` prints, its JSON, and what that says again."""

from collections.abc import Mapping, Sequence
import json
import pathlib
from typing import Any

from hpmoe.parity_tests.judge import shapes
from hpmoe.parity_tests.report import report_json
from hpmoe.parity_tests.report import report_reader
from hpmoe.parity_tests.report import report_text
from hpmoe.parity_tests.report import text_table

_FIRST = 'first_failing'


def format_table(rows: Sequence[shapes.Row]) -> str:
  """Returns a line for each shape: its verdict, and why."""
  heading = ('shape', 'verdict', 'first failure')
  return text_table.format_table(heading, shapes.format_rows(rows))


def to_json(rows: Sequence[shapes.Row]) -> dict[str, Any]:
  """Returns all rows, and the report of the first shape that fails."""
  first = shapes.find_first_failing(rows)
  report = None
  if first is not None and first.report is not None:
    report = dict(shape=first.says, report=report_json.to_json(first.report))
  return shapes.to_json(rows) | {_FIRST: report}


def read_text(path: str) -> tuple[str, str]:
  """Returns the text of a report in a file, and what it amounts to.

  Args:
    path: what `hpmoe check --json` wrote, with or without --shapes.

  Raises:
    ValueError: it is no such file.
  """
  message = f'{path}: expected a report of `hpmoe check --json={path}`'
  try:
    content = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
    if 'shapes' in content:
      return _format_shapes(content)
    if error := content.get('error'):
      return f'no answer: {error}', shapes.CRASH
    report = report_reader.read_report(content)
    return report_text.format_saved(report), report.verdict
  except OSError as error:
    raise ValueError(f'{message}, got {error.strerror}') from error
  except KeyError as error:
    raise ValueError(f'{message}, got a file without {error}') from error
  except (ValueError, TypeError, AttributeError) as error:
    raise ValueError(f'{message}, got {type(error).__name__}') from error


def _format_shapes(content: Mapping[str, Any]) -> tuple[str, str]:
  rows = shapes.from_json(content)
  parts = [format_table(rows)]
  if first := content[_FIRST]:
    report = report_reader.read_report(first['report'])
    parts += [f'{first["shape"]}:', report_text.format_saved(report)]
  parts.append(shapes.format_summary(rows))
  return '\n\n'.join(parts), shapes.find_outcome(rows)
