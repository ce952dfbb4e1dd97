"""A report as JUnit's XML, which CI systems show as tests.

A comparison of a stage in a lane is a test.  Others are that later runs give
the same bits, and that our own backend has no race.
"""

from collections.abc import Iterator
import xml.etree.ElementTree as ET

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import failure_text
from hpmoe.parity_tests.report import lane_table
from hpmoe.parity_tests.report import markup
from hpmoe.parity_tests.report import report_text

_tag = markup.make_tag
_HEAD = '<?xml version="1.0" encoding="utf-8"?>\n'


def to_junit(report: check.Report) -> str:
  """Returns the file."""
  name = f'hpmoe check {report.config["candidate"]}'
  cases = [*_list_cases(report)]
  heading = report_text.format_heading(report)
  summary = report_text.format_summary(report)
  return _format_suite(name, cases, report.seconds, f'{heading}\n{summary}')


def error_junit(name: str, error: candidates.CandidateError) -> str:
  """Returns the file of a candidate that gave no answer."""
  case = _tag(
    'testcase',
    _tag('error', str(error), message=str(error).partition('\n')[0]),
    classname='hpmoe.check',
    name='answer',
  )
  return _format_suite(f'hpmoe check {name}', [case], error.seconds, '')


def _format_suite(
  name: str, cases: list[ET.Element], seconds: float | None, text: str
) -> str:
  counts = {
    key: sum(case.find(tag) is not None for case in cases)
    for key, tag in (
      ('failures', 'failure'),
      ('errors', 'error'),
      ('skipped', 'skipped'),
    )
  }
  counts['tests'] = len(cases)
  time = f'{seconds or 0:.3f}'
  suite = _tag(
    'testsuite',
    *cases,
    _tag('system-out', text),
    name=name,
    time=time,
    **counts,
  )
  root = _tag('testsuites', suite, name=name, time=time, **counts)
  return f'{_HEAD}{markup.format_element(root)}\n'


def _list_cases(report: check.Report) -> Iterator[ET.Element]:
  lanes = lane_table.list_lanes(report)
  for stage, cells in lane_table.iterate_rows(report):
    for lane, cell in zip(lanes, cells):
      if cell.verdict:
        yield _tag(
          'testcase',
          *_describe_cell(report, stage, lane, cell),
          classname=f'hpmoe.{lane}',
          name=stage,
        )
  yield _make_case('same bits', [] if report.is_steady else report.changes)
  if report.launches:
    yield _make_case('races', report.races)


def _describe_cell(
  report: check.Report, stage: str, lane: str, cell: lane_table.Cell
) -> Iterator[ET.Element]:
  if cell.verdict == verdicts.NOT_JUDGED:
    yield _tag('skipped', message=markup.escape_text(cell.aside))
  if cell.verdict != verdicts.FAIL:
    return
  first = report.first_failure
  is_first = first is not None and (first.stage, first.lane) == (stage, lane)
  reasons = [
    f'{r.rule}: {r.reason or report_text.format_cells(r)}'
    for r in cell.results
    if r.verdict == verdicts.FAIL
  ]
  text = failure_text.format_failure(report) if is_first else '\n'.join(reasons)
  yield _tag('failure', text, message=str(cell), type='parity')


def _make_case(name: str, problems) -> ET.Element:
  lines = [str(problem) for problem in problems]
  failures = [_tag('failure', '\n'.join(lines), message=line) for line in lines]
  return _tag('testcase', *failures[:1], classname='hpmoe.runs', name=name)
