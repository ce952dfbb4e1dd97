"""A report as plain data, as `--json` writes it."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from hpmoe.parity_tests.cache import versions
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.report import json_fields
from hpmoe.reference.contract import kinds

# JSON keys of fields that have another name in Python.
KEYS = dict(
  actual='got',
  failed_tiles='failed',
  location='there',
  reason='why',
  remark='why',
  tensor_size='of',
)
# The first fields of a row, and all of a failure.
_RESULT_FIELDS = tuple(f.name for f in dataclasses.fields(verdicts.Result))[:9]
_FAILURE_FIELDS = tuple(f.name for f in dataclasses.fields(verdicts.Failure))
RESULT_KEYS = tuple(KEYS.get(name, name) for name in _RESULT_FIELDS)


def _read_result(result: verdicts.Result) -> dict[str, Any]:
  fields = json_fields.rename_fields(result, **KEYS)
  rest = ('why', 'missing', 'values', 'power', 'not_judged', 'histogram')
  return {key: fields[key] for key in (*RESULT_KEYS, *rest)}


def to_json(report: check.Report) -> dict[str, Any]:
  """Returns the whole report as plain data."""
  first = report.first_failure
  judges = [standards.get(name) for name in report.config['standards']]
  return json_fields.to_plain_data(
    dict(
      verdict=report.verdict,
      config=report.config,
      stages=[_read_result(result) for result in report.results],
      first_failure=first and json_fields.rename_fields(first, **KEYS),
      wrong_tasks=[
        json_fields.rename_fields(wrong, **KEYS) for wrong in report.wrong
      ],
      races=[dataclasses.asdict(race) for race in report.races],
      num_races=report.num_races,
      changes=[
        json_fields.rename_fields(change, **KEYS) for change in report.changes
      ],
      runs=report.runs,
      standards={
        j.name: dict(
          version=j.version,
          source=j.source,
          scope=j.scope,
          reading=j.reading,
          tolerance=dataclasses.asdict(
            j.tolerance[report.config['policy']['storage']]
          ),
          rules=[
            [r.text(report.config['policy']['storage']) for r in clause]
            for clause in j.rules
          ],
        )
        for j in judges
      },
      versions=versions.list_versions(),
      seconds=round(report.seconds, 3),
    )
  )


def error_json(
  request: check.Request, error: candidates.CandidateError
) -> dict[str, Any]:
  """Returns the report of a candidate that failed to run."""
  seconds = error.seconds
  return json_fields.to_plain_data(
    dict(
      verdict=verdicts.FAIL,
      error=str(error),
      config=_describe_case(request.case)
      | request.candidate.facts()
      | dataclasses.asdict(request.judgement),
      stages=[],
      first_failure=_describe_blocked_task(error),
      versions=versions.list_versions(),
      seconds=None if seconds is None else round(seconds, 3),
    )
  )


def _describe_case(case: case_lib.Case) -> dict[str, Any]:
  """Returns the fields of a case; of tensors, their dtypes and shapes."""
  fields = {f.name: getattr(case, f.name) for f in dataclasses.fields(case)}
  if isinstance(case.input, Mapping):
    fields['input'] = {
      name: f'{array.dtype} {list(array.shape)}'
      for name, array in case.input.items()
    }
  return fields


def _describe_blocked_task(error: candidates.CandidateError) -> dict | None:
  """Returns the task that a launch ended at, as a failure."""
  diagnosis = error.diagnosis
  if diagnosis is None or diagnosis.task is None:
    return None
  task = diagnosis.task
  keys = (KEYS.get(name, name) for name in _FAILURE_FIELDS)
  return dict.fromkeys(keys) | dict(
    stage=kinds.STAGE_OF_KIND.get(kinds.Kind[task.kind.upper()]),
    rank=task.rank,
    expert=task.expert if task.expert >= 0 else None,
    row_block=task.row_block,
    col_block=task.col_block,
    replay=error.replay,
  )
