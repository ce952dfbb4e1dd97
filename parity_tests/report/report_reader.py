"""Reads a report of `hpmoe check --json` again."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import shares as shares_lib
from hpmoe.parity_tests.report import report_json

_FLOATS = ('worst_abs',)


def read_report(content: Mapping[str, Any]) -> check.Report:
  """Returns a report without tile maps, launches and races.

  Args:
    content: what `report_json.to_json` returned.

  Raises:
    KeyError, TypeError, ValueError: the content is no report.
  """
  first = _read_record(verdicts.Failure, content['first_failure'])
  results = tuple(
    dataclasses.replace(result, failure=first)
    if first is not None and _has_key(result, first)
    else result
    for result in map(read_result, content['stages'])
  )
  changes = content.get('changes', ())
  return check.Report(
    config=content['config'],
    results=results,
    seconds=content['seconds'],
    changes=tuple(_read_record(verdicts.Change, row) for row in changes),
    runs=content.get('runs', 1),
  )


def _has_key(result: verdicts.Result, failure: verdicts.Failure) -> bool:
  names = ('stage', 'lane', 'rule')
  return all(getattr(result, n) == getattr(failure, n) for n in names)


def _read_record(kind: type, row: Mapping[str, Any] | None) -> Any:
  """Returns a dataclass of a row's fields; None: there is no row."""
  if row is None:
    return None
  names = [field.name for field in dataclasses.fields(kind)]
  keys = {name: report_json.KEYS.get(name, name) for name in names}
  return kind(**{name: row[key] for name, key in keys.items() if key in row})


def read_result(row: Mapping[str, Any]) -> verdicts.Result:
  """Returns a comparison, without its tile maps."""
  names = [field.name for field in dataclasses.fields(verdicts.Result)]
  keys = {name: report_json.KEYS.get(name, name) for name in names}
  fields = {name: row[key] for name, key in keys.items() if key in row}
  for name in _FLOATS:
    fields[name] = float(row[name])
  for name in ('values', 'power'):
    fields[name] = {key: float(value) for key, value in row[name].items()}
  if histogram := row.get('histogram'):
    fields['histogram'] = shares_lib.Histogram(
      tuple(histogram['counts']), histogram['moved_codes'], histogram['codes']
    )
  return verdicts.Result(**fields)
