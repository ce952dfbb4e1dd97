"""`--dry_run` of the commands that run a model: what would run on an NPU.

The model computes in a process of its own, `dry_run_main.py`, whose log is read
as it comes; a table says of each operator how an NPU takes it.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields

_MAIN = 'hpmoe.parity_tests.commands.models.dry_run_main'
_MEGAKERNEL = 'the megakernel: one custom operator, of make ascend-npu'
_LAST_LINES = 20  # of a log whose process failed

# How many ran, by name, dtypes and kind.
_Counts = collections.Counter[tuple[str, tuple[str, ...], str]]


@dataclasses.dataclass(frozen=True)
class Row:
  """An operator and how an NPU takes it; None: it does not."""

  name: str
  dtypes: tuple[str, ...]
  count: int
  way: str | None


@dataclasses.dataclass(frozen=True)
class DryRunOptions(cli.JsonOptions):
  """The option of each command that can list a model's operators."""

  dry_run: bool = option_fields.option(
    False,
    "With --device=ascend, on a CPU: list the model's operators and, from "
    "MindSpore's own tables, how an NPU runs each. Only the first layers "
    'of each kind run, with zero weights.',
  )


@dataclasses.dataclass(frozen=True)
class MindSporeOptions(DryRunOptions):
  """The options of each command that loads a model for a device."""

  device: str = option_fields.option(
    'cpu',
    'Where MindSpore computes: cpu, or ascend: an NPU, with --moe=ascend '
    '(the megakernel) or framework; untested.',
    choices=('cpu', 'ascend'),
  )
  dtype: str | None = option_fields.option(
    None,
    'Round the weights to this dtype. Default: the dtype in config.json.',
    choices=('float32', 'bfloat16'),
  )


def is_requested(f: parser.Values) -> bool:
  """Returns whether the flags request a dry run.

  Raises:
    UsageError: they do, but not for an NPU.
  """
  if f.dry_run and f.device != 'ascend':
    raise cli.UsageError(
      f'dry_run: expected --device=ascend with it, got {f.device}'
    )
  return f.dry_run


def execute(
  f: parser.Values, task: str, requests: Sequence[Mapping[str, Any]]
) -> int:
  """Lists the operators of a task, and returns the exit code.

  Args:
    f: flags of the command.
    task: one of `dry_run_main.TASKS`.
    requests: its arguments, of each process.

  Raises:
    ModuleNotFoundError: MindSpore is missing.
    UsageError: the request was wrong.
  """
  from hpmoe.models.mindspore import npu_tables

  tables = npu_tables.read()
  counts: _Counts = collections.Counter()
  with cli.progress(len(requests)) as step:
    for arguments in requests:
      step('operators')
      counts |= _count_operators(task, arguments)
  rows = [
    Row(name, dtypes, count, _way(tables, name, dtypes, kind))
    for (name, dtypes, kind), count in sorted(counts.items())
  ]
  missing = [row for row in rows if row.way is None]
  version = npu_tables.version()
  content = dict(
    mindspore=version,
    verdict='fail' if missing else 'pass',
    operators=rows,
  )
  cli.write_json(f.json, content)
  print(_format_rows(rows, missing, version))
  return cli.NO_PARITY if missing else cli.PARITY


def _way(tables, name: str, dtypes: tuple[str, ...], kind: str) -> str | None:
  if kind == 'megakernel':
    return _MEGAKERNEL
  return None if kind == 'custom' else tables.way(name, dtypes)


def _format_rows(rows: list[Row], missing: list[Row], version: str) -> str:
  from hpmoe.parity_tests.report import text_table

  heading = ('operator', 'dtypes', 'count', 'an NPU takes it as')
  table = text_table.format_table(
    heading,
    [
      (r.name, ', '.join(r.dtypes), str(r.count), r.way or 'nothing known')
      for r in rows
    ],
  )
  tables = f"MindSpore {version}'s tables"
  if missing:
    operators = '; '.join(f'{r.name}({", ".join(r.dtypes)})' for r in missing)
    return f'{table}\n\nan NPU lacks, by {tables}: {operators}'
  return (
    f'{table}\n\nan NPU takes all {len(rows)}, by {tables}; of dtypes these '
    'know those of AI CPU kernels alone'
  )


def _count_operators(task: str, request_fields: Mapping[str, Any]) -> _Counts:
  """Runs a task; returns the number of calls by operator, dtypes and kind."""
  from hpmoe.models.mindspore import eager_log

  with tempfile.TemporaryDirectory() as folder:
    request = pathlib.Path(folder) / 'request.json'
    result = pathlib.Path(folder) / 'result.json'
    request.write_text(json.dumps(dict(task=task, fields=request_fields)))
    last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
      [sys.executable, '-m', _MAIN, str(request), str(result)],
      env=os.environ | eager_log.ENVIRONMENT,
      stderr=subprocess.PIPE,
      text=True,
      errors='replace',
    ) as process:
      assert process.stderr is not None
      log = eager_log.read(_keep_last(process.stderr, last))
    if process.returncode or not result.exists():
      raise cli.UsageError(_describe_failure(process.returncode, last))
    report = json.loads(result.read_text())
  if 'error' in report:
    raise cli.UsageError(report['error'])
  if not log.ran:
    raise cli.UsageError(
      'dry_run: expected operators in the log of MindSpore as in 2.10, got none'
    )
  counts: _Counts = collections.Counter()
  for row in report['operators']:
    if row['kind'] != 'primitive' or row['name'] in log.ran:
      kind = row['kind'].replace('primitive', 'function')
      counts[row['name'], tuple(row['dtypes']), kind] += row['count']
  # What the log has beside is in both if MindSpore gave it to the recorder.
  for (name, dtypes), count in log.emitted.items():
    key = name, dtypes, 'function'
    counts[key] = max(counts[key], count)
  return counts


def _keep_last(
  lines: Iterable[str], last: collections.deque[str]
) -> Iterator[str]:
  """Yields lines; keeps the last lines that are not the log's in `last`."""
  for line in lines:
    if line.strip() and not line.startswith('['):
      last.append(line.strip())
    yield line


def _describe_failure(code: int, last: Sequence[str]) -> str:
  last_line = last[-1] if last else 'nothing'
  return (
    'dry_run: expected the model to run on this machine, got exit code '
    f'{code}: {last_line}'
  )
