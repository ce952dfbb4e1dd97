"""A report as annotations of GitHub's workflows: lines that a log shows apart.

    ::error file=kernel.py,line=12,title=hpmoe check: y fails::first failure ...

A line goes to the definition of the candidate, where its text is at hand.
"""

import os
import pathlib

from hpmoe.parity_tests.candidates import find_function
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import failure_text
from hpmoe.parity_tests.report import report_text


def format_annotations(report: check.Report) -> str:
  """Returns a line for the first failure, each other failing stage, or a pass.

  GitHub shows ten of a kind for each step of a job.
  """
  name = report.config['candidate']
  first = report.first_failure
  if report.verdict == verdicts.PASS:
    summary = report_text.format_summary(report)
    return _format_line('notice', name, 'parity holds', summary)
  stages = verdicts.ordered(
    r.stage for r in report.results if r.verdict == verdicts.FAIL
  )
  lines = []
  if first is None:
    outcome = report_text.format_outcome(report)
    lines.append(_format_line('error', name, 'parity fails', outcome))
  else:
    text = failure_text.format_location(report)
    lines.append(_format_line('error', name, f'{first.stage} fails', text))
    stages.remove(first.stage)
  for stage in stages[:_MOST_LINES]:
    lanes = [
      r.lane
      for r in report.results
      if r.stage == stage and r.verdict == verdicts.FAIL
    ]
    text = f'in {", ".join(dict.fromkeys(lanes))}'
    lines.append(_format_line('error', name, f'{stage} fails too', text))
  return '\n'.join(lines)


_MOST_LINES = 8


def format_error(name: str, error: Exception) -> str:
  """Returns a line for a candidate that gave no answer."""
  return _format_line('error', name, 'no answer', str(error))


def _format_line(kind: str, name: str, title: str, text: str) -> str:
  properties = {**_find_place(name), 'title': f'hpmoe check: {title}'}
  listed_properties = ','.join(
    f'{key}={_escape_property(str(value))}' for key, value in properties.items()
  )
  return f'::{kind} {listed_properties}::{_escape_data(text)}'


def _find_place(name: str) -> dict[str, object]:
  """Returns the file and line of a candidate's definition, if it has them."""
  try:
    source = find_function.find_source(name)
  except ValueError:
    return {}
  if source is None:
    return {}
  # GitHub knows files by their path in the repository.
  top = os.environ.get('GITHUB_WORKSPACE') or os.getcwd()
  file = pathlib.Path(os.path.realpath(source.file))
  try:
    file = file.relative_to(os.path.realpath(top))
  except ValueError:
    return {}
  return dict(file=file.as_posix(), line=source.line)


def _escape_data(text: str) -> str:
  for character, code in (('%', '%25'), ('\r', '%0D'), ('\n', '%0A')):
    text = text.replace(character, code)
  return text


def _escape_property(text: str) -> str:
  return _escape_data(text).replace(':', '%3A').replace(',', '%2C')
