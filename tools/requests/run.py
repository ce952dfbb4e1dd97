"""Runs the fixed requests of the judge, and writes what came of each.

Example, in any environment that has the judge:

    python tools/requests/run.py --out=outcomes.json

Two environments on one machine must write the same file: figures are in it.
`--outcomes_only` leaves figures out, which differ between versions of JAX.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import pathlib
import re
import sys
import tempfile
import tomllib

_FOLDER = pathlib.Path(__file__).resolve().parent
# What differs from run to run, and names what was installed.
_VOLATILE = ('seconds', 'versions', 'sources')
_FIGURES = ('verdict', 'stage', 'lane', 'failed', 'tiles', 'where', 'pattern')


def read_requests() -> list[str]:
  """Returns the command lines, with {k} and {out} in them."""
  text = (_FOLDER / 'requests.toml').read_text(encoding='utf-8')
  return tomllib.loads(text)['requests']


def run_request(line: str, folder: pathlib.Path) -> dict:
  """Returns the exit code, the output and the report of one command line.

  Args:
    line: a request of requests.toml.
    folder: for what requests write.
  """
  from hpmoe.parity_tests.commands import main

  words = line.format(k=_FOLDER / 'kernels.py', out=folder).split()
  report = folder / 'report.json'
  report.unlink(missing_ok=True)
  if words[0] != 'export':
    words.append(f'--json={report}')
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    code = main.main(words)
  errors = [row for row in err.getvalue().splitlines() if ': ' in row]
  outcome = dict(
    request=line,
    code=code,
    output=_normalise(out.getvalue(), folder),
    error=_normalise(errors[-1] if code >= 2 and errors else '', folder),
    report=_read_report(report, folder),
  )
  if words[0] == 'export' and code == 0:
    outcome['files'] = _digest(pathlib.Path(words[-1].partition('=')[2]))
  return outcome


def _normalise(text: str, folder: pathlib.Path) -> str:
  """Returns a text without seconds and paths of this machine."""
  for path, name in ((folder, '{out}'), (_FOLDER, '{here}')):
    text = text.replace(str(path), name)
  return re.sub(r'\b\d+(\.\d+)? s\b', 'S s', text)


def _read_report(path: pathlib.Path, folder: pathlib.Path):
  if not path.exists():
    return None
  plain = json.loads(_normalise(path.read_text(encoding='utf-8'), folder))
  return _drop_volatile(plain)


def _drop_volatile(value):
  if isinstance(value, dict):
    return {
      k: _drop_volatile(v) for k, v in value.items() if k not in _VOLATILE
    }
  if isinstance(value, list):
    return [_drop_volatile(v) for v in value]
  return value


def _digest(folder: pathlib.Path) -> dict[str, str]:
  """Returns a digest of the tensors that an export wrote, by file."""
  return {
    path.relative_to(folder).as_posix(): hashlib.sha256(
      path.read_bytes()
    ).hexdigest()[:16]
    for path in sorted(folder.rglob('*'))
    if path.suffix in ('.safetensors', '.npz', '.bin')
  }


def summarise(outcome: dict) -> dict:
  """Returns the part of an outcome that no version of JAX or numpy changes."""
  report = outcome['report'] or {}
  short = dict(request=outcome['request'], code=outcome['code'])
  if outcome['error']:
    short['error'] = outcome['error'].partition(':')[0]
  if 'verdict' in report:
    short['verdict'] = report['verdict']
  if isinstance(report.get('stages'), list):
    short['rows'] = [
      ' '.join(str(row[n]) for n in ('stage', 'lane', 'verdict'))
      for row in report['stages']
    ]
  first = report.get('first_failure')
  if first:
    short['first'] = f'{first["stage"]} {first["lane"]}'
  if outcome.get('files'):
    short['files'] = sorted(outcome['files'])
  return short


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--out', required=True, help='the file to write')
  parser.add_argument('--outcomes_only', action='store_true')
  arguments = parser.parse_args()
  outcomes = []
  with tempfile.TemporaryDirectory() as folder:
    os.environ.setdefault('HPMOE_CACHE', f'{folder}/cache')
    for line in read_requests():
      outcome = run_request(line, pathlib.Path(folder))
      outcomes.append(
        summarise(outcome) if arguments.outcomes_only else outcome
      )
      print(outcome['code'], line, file=sys.stderr, flush=True)
  text = json.dumps(outcomes, indent=1) + '\n'
  pathlib.Path(arguments.out).write_text(text, encoding='utf-8')


if __name__ == '__main__':
  main()
