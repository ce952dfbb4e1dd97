"""Measured figures as data, and the tables of pages that are made of them.

A file of `FIGURES` is one table.  In a page it stands between

    <!-- figures: NAME -->
    <!-- end -->

and is written there by `make docs`: python -m hpmoe.tools.docs.figures.
"""

from collections.abc import Sequence
import datetime
import functools
import json
import os
import pathlib
import platform
import re
import subprocess
import tomllib
from typing import Any

from absl import flags

from hpmoe.tools import import_graph

KEEP = flags.DEFINE_bool(
  'keep', False, 'Write benchmarks/figures, and the pages that show them.'
)

ROOT = import_graph.ROOT
FIGURES = ROOT / 'benchmarks/figures'
# Of a run whose values no processor and no load can change.
ANY = 'any'
# What is known of a run; where it has a name, columns say it.
RUN = ('command', 'commit', 'date', 'processor', 'load')
_PLACE = re.compile(
  r'^<!-- figures: (?P<name>\w+) -->\n.*?^<!-- end -->$', re.M | re.S
)


def pages(root: pathlib.Path = ROOT) -> list[pathlib.Path]:
  """Returns the pages for users: README and docs/."""
  return [root / 'README.md', *sorted((root / 'docs').glob('*.md'))]


def load(name: str) -> dict[str, Any]:
  """Returns a file of figures."""
  return json.loads((FIGURES / f'{name}.json').read_text('utf-8'))


def run(command: str, load: str = '') -> dict[str, str]:
  """Describes a run on this machine, now: command, commit, processor, load."""
  process = subprocess.run(
    ['git', 'rev-parse', '--short', 'HEAD'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  busy = f'load {os.getloadavg()[0]:.1f}'
  return dict(
    command=command,
    commit=process.stdout.strip() or 'unknown',
    date=str(datetime.date.today()),
    processor=f'{processor()}, {os.cpu_count()} cores',
    load=load or busy,
  )


def processor() -> str:
  """Returns the name of this machine's processor."""
  cpu_info = pathlib.Path('/proc/cpuinfo')
  for line in cpu_info.read_text().splitlines() if cpu_info.exists() else ():
    if line.startswith('model name'):
      return line.partition(': ')[2]
  return platform.machine()


def write(
  name: str,
  columns: Sequence[str],
  rows: Sequence[Sequence[object]],
  runs: Sequence[dict[str, str]],
  **extra: Any,
) -> None:
  """Writes a file of figures, and updates the pages that show it.

  Args:
    name: of the file.
    columns: heads of the table.
    rows: cells of the table, as pages show them.
    runs: results of `run`; if there are several, each has a `name`.
    **extra: further fields of the file, which no page shows.
  """
  data = dict(runs=list(runs), columns=list(columns), rows=rows, **extra)
  text = json.dumps(data, indent=1, ensure_ascii=False)
  FIGURES.mkdir(exist_ok=True)
  (FIGURES / f'{name}.json').write_text(text + '\n', 'utf-8')
  fill()


def fill() -> None:
  """Writes the tables of every page."""
  for path in pages():
    path.write_text(fill_page(path.read_text('utf-8')), 'utf-8')


def fill_page(page: str) -> str:
  """Returns a page with its tables updated from the figures."""

  def table_of(match: re.Match[str]) -> str:
    name = match['name']
    if not (FIGURES / f'{name}.json').exists():
      return match[0]  # a marker that waits for its first figures
    return f'<!-- figures: {name} -->\n{table(load(name))}<!-- end -->'

  return _PLACE.sub(table_of, page)


def list_shown(page: str) -> list[str]:
  """Returns the names of the figures that a page shows."""
  return [match['name'] for match in _PLACE.finditer(page)]


def table(data: dict[str, Any]) -> str:
  """Returns figures as a table, and a line for each command that made them."""
  rows = [data['columns'], ['---'] * len(data['columns']), *data['rows']]
  lines = [f'|{"|".join(_cell(cell) for cell in row)}|' for row in rows]
  return '\n'.join([*lines, '', *_sources(data['runs']), ''])


def _cell(cell: object) -> str:
  return str(cell).replace('|', '\\|')


def _sources(runs: Sequence[dict[str, str]]) -> list[str]:
  """Returns a line for each command, with the times at which it ran."""
  of_command: dict[str, list[dict[str, str]]] = {}
  for run in runs:
    name = f'{run["name"]}: ' if 'name' in run else ''
    suffix = ', only' if is_gone(run['command']) else ''
    of_command.setdefault(f'{name}`{run["command"]}`{suffix}', []).append(run)
  return [
    f'{command} at {_format_time(command_runs)}.'
    for command, command_runs in of_command.items()
  ]


@functools.cache
def _commands() -> frozenset[str]:
  path = ROOT / 'parity_tests/data/commands.toml'
  return frozenset(tomllib.loads(path.read_text()))


def is_gone(command: str) -> bool:
  """Returns whether this tree lacks a module or subcommand that it runs."""
  if {*re.findall(r'\b(?:hpmoe|main) ([a-z]+)', command)} - _commands():
    return True
  modules = re.findall(r'\b((?:hpmoe|benchmarks)\.[\w.]+)', command)
  paths = (m.removeprefix('hpmoe.').replace('.', '/') for m in modules)
  return not all(
    (ROOT / f'{path}.py').exists() or (ROOT / path).is_dir() for path in paths
  )


def _format_time(runs: Sequence[dict[str, str]]) -> str:
  if len(runs) == 1:
    values = (runs[0][name] for name in RUN[1:])
    return ', '.join(value for value in values if value != ANY)
  dates = sorted(run['date'] for run in runs)
  return f'{len(runs)} commits, {dates[0]} to {dates[-1]}: each in the file'


if __name__ == '__main__':
  fill()
