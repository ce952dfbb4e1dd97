"""Shared parts of all subcommands of `hpmoe`."""

from collections.abc import Callable, Collection, Iterable, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import sys
import textwrap
import time
from typing import Any

from hpmoe.parity_tests.case import data_tables
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields

PARITY, NO_PARITY, WRONG_REQUEST, CANDIDATE_FAILED = 0, 1, 2, 3
# By what a check, or a check of many shapes, amounts to.
EXIT_CODES = {
  'pass': PARITY,
  'fail': NO_PARITY,
  'not tried': WRONG_REQUEST,
  'crash': CANDIDATE_FAILED,
}
INTERRUPTED = 130  # a shell's exit code of a program that SIGINT ended
NOT_READ = 141  # a shell's exit code of a program that SIGPIPE ended
LINE_EVERY_S = 30.0  # between lines of progress in a log
_SHOWN_AFTER_S = 2.0  # before a terminal shows progress


UsageError = parser.UsageError
text = parser.text


@dataclasses.dataclass(frozen=True)
class JsonOptions:
  """The option of each command that writes a report."""

  json: str | None = option_fields.option(
    None,
    'Write the report here.',
    writes='file',
  )


@dataclasses.dataclass(frozen=True)
class Command:
  """One subcommand.

  Attributes:
    name: as typed.
    list_options: function that returns its options.
    execute: function that runs it with parsed options, and returns the exit
      code.
    operands: the options that positional arguments set, in order, as in
      `hpmoe reproduce uniep`.
    compiles: whether XLA compiles an oracle for it, which is cached.
    heads: function that returns headings of the help text, each with its
      options; None: one list of all.
  """

  name: str
  list_options: Callable[[], Sequence[option_fields.Option]]
  execute: Callable[[parser.Values], int]
  operands: tuple[str, ...] = ()
  compiles: bool = False
  heads: Callable[[], list[tuple[str, Sequence[str]]]] | None = None

  @property
  def texts(self) -> dict[str, Any]:
    """Its `help` in one line, its `examples`, and `codes`, its exit codes."""
    return data_tables.read('commands')[self.name]

  def parse(self, words: Sequence[str]) -> parser.Values:
    """Returns the options that words set.

    Raises:
      UsageError: a word is wrong.
    """
    return parser.parse(self.list_options(), words, self.operands)

  def usage(self) -> str:
    rows = {row.name: row for row in self.list_options()}
    lines = [f'hpmoe {self.name}: {self.texts["help"]}', '', 'examples:']
    lines += [f'  {example}' for example in self.texts['examples']]
    lines += ['', 'options:']
    explained_names: set[str] = set()
    for head, names in self.heads() if self.heads else [('', list(rows))]:
      names_here = sorted({*names} & {*rows})
      repeated_names = ', '.join(
        f'--{name}' for name in names_here if name in explained_names
      )
      lines += ['', f'{head}:'] if head else []
      lines += (
        [_wrap(f'  as above: {repeated_names}')] if repeated_names else []
      )
      lines += [
        _format_option(rows[name])
        for name in names_here
        if name not in explained_names
      ]
      explained_names |= {*names_here}
    lines += ['', _wrap(f'exit codes: {self.texts["codes"]}, 130 interrupted')]
    return '\n'.join(lines)


def _format_option(row: option_fields.Option) -> str:
  unset = row.default in (None, [], '')
  default = '' if unset else f' Default: {text(row.default)}.'
  return _wrap(f'  --{row.name}: {row.help}{default}')


def _wrap(text: str) -> str:
  return textwrap.fill(
    text,
    88,
    subsequent_indent=6 * ' ',
    break_on_hyphens=False,
    break_long_words=False,
  )


def fields(
  f: parser.Values, rows: Iterable[option_fields.Option]
) -> dict[str, Any]:
  """Returns the fields that options set, of the rows that the command has."""
  return {
    row.field: f[row.name].option.resolve(f[row.name].value)
    for row in rows
    if row.name in f
  }


def arguments(f: parser.Values, exclude: Sequence[str]) -> tuple[str, ...]:
  """Returns the options that the user set, as a command line."""
  return tuple(
    f[name].format()
    for name in sorted(f)
    if f[name].present and name not in exclude
  )


def _clock(seconds: float) -> str:
  minutes, left = divmod(int(seconds), 60)
  return f'{minutes:02}:{left:02}'


@contextlib.contextmanager
def progress(total: int | None = None, estimate: bool = False):
  """Yields a function to call with the name of each step as it begins.

  A terminal shows the current step after 2 s, and clears it at the end.  A log
  gets a line of progress every `LINE_EVERY_S`.

  Args:
    total: the expected number of steps.  It is not shown once there are more:
      a layer whose kernel chose other experts is judged a second time.
    estimate: whether to show the time left, from the mean time of a step.
  """
  # 80 x 24 if the terminal does not report its size.
  columns = shutil.get_terminal_size().columns - 1
  is_terminal = sys.stderr.isatty()
  begin, end = ('\r', '\x1b[K') if is_terminal else ('', '\n')
  start = last_line_s = time.monotonic()
  count = 0

  def step(name: str) -> None:
    nonlocal last_line_s, count
    count += 1
    now = time.monotonic()
    if (
      now - start < _SHOWN_AFTER_S
      if is_terminal
      else now - last_line_s < LINE_EVERY_S
    ):
      return
    last_line_s = now
    total_text = left = ''
    if total is not None and count <= total:
      total_text = f'/{total}'
      if estimate:
        left = f', {_clock((now - start) / count * (total - count))} left'
    text = f'{name} {count}{total_text} [{_clock(now - start)}{left}]'
    text = text[:columns] if is_terminal else text
    print(f'{begin}{text}', end=end, file=sys.stderr, flush=True)

  try:
    yield step
  finally:
    if is_terminal:
      print(begin, end=end, file=sys.stderr, flush=True)


def write_json(path: str | None, content: object) -> None:
  """Writes data as JSON, unless the path is None."""
  if path is not None:
    from hpmoe.parity_tests.report import json_fields

    plain = json_fields.to_plain_data(content)
    write('json', path, json.dumps(plain, indent=2, allow_nan=False) + '\n')


# Messages about files that could not be written; printed after the verdict.
_unwritten: list[str] = []


def unwritten() -> list[str]:
  """Returns a message for each file that was not written, and clears them."""
  lines = [*dict.fromkeys(_unwritten)]
  _unwritten.clear()
  return lines


def write(name: str, path: str, text: str) -> None:
  """Writes a file whole; `unwritten` returns a message if that fails.

  Args:
    name: of the flag that asked for it.
    path: of the file; an old file stays until the new one is complete.
    text: the content.
  """
  target = pathlib.Path(os.path.realpath(path))
  whole = target
  if target.is_file() or not target.exists():
    whole = target.with_name(f'.{target.name}.{os.getpid()}')
  try:
    with open(whole, 'w', encoding='utf-8') as file:
      file.write(text)
      if whole is not target:
        file.flush()
        os.fsync(file.fileno())
    if whole is not target:
      whole.replace(target)
  except OSError as error:
    if whole is not target:
      whole.unlink(missing_ok=True)
    _unwritten.append(
      f'{name}: expected room for a report in {path}, got {error.strerror}: it '
      'is not written'
    )


@contextlib.contextmanager
def failure_reported(path: str | None):
  """Writes a report if the candidate fails, and raises the error again."""
  from hpmoe.parity_tests.candidates import candidates

  try:
    yield
  except candidates.CandidateError as error:
    write_json(path, dict(verdict='fail', error=str(error)))
    raise


@contextlib.contextmanager
def launches_in_frameworks():
  """Converts a framework's error about a failed launch to a CandidateError."""
  import jax

  from hpmoe.parity_tests.candidates import backends
  from hpmoe.parity_tests.candidates import candidates

  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    raise candidates.CandidateError(str(error)) from error
  except jax.errors.TracerArrayConversionError as error:
    raise candidates.CandidateError(
      'moe: expected a layer of JAX operators, which have gradients, got one '
      'in numpy; `hpmoe compare --direction=forward` needs no gradients'
    ) from error
  except RuntimeError as error:
    backend = backends.load_backend()
    text = backend.find_launch_error(str(error)) if backend else None
    if text is None:
      raise
    raise candidates.CandidateError(text) from error


def name_models() -> str:
  """Returns the names of the included configurations of models."""
  from hpmoe.models import config

  return ', '.join(config.names())


def warn_of_bytes(model: str, config) -> bool:
  """Warns if a model of words reads bytes; returns whether it does."""
  from hpmoe.models.train import text

  warning = text.caution(model, config)
  if warning:
    print(warning, file=sys.stderr)
  return bool(warning)


def missing(module: str) -> str | None:
  """Returns how to install a module of an extra, or None if no extra has it.

  Args:
    module: its full name.
  """
  import importlib.metadata  # Takes long, and few commands need it.
  import re

  from hpmoe.parity_tests import plugins

  if module.startswith('hpmoe.backend_ascend'):
    return plugins.explain_missing(module)
  module = module.partition('.')[0]
  try:
    requirements = importlib.metadata.requires('hyperparallel-moe') or ()
  except importlib.metadata.PackageNotFoundError:
    return None
  extras: dict[str, list[str]] = {}
  for line in requirements:
    match = re.fullmatch(r'(.*?) *;.*extra == .(\w+).', line)
    if match:
      extras.setdefault(match[2], []).append(match[1])
  for extra, packages in extras.items():
    if any(re.match(f'{re.escape(module)}\\b', name) for name in packages):
      return (
        f'{module}: expected the extra `{extra}`, got none; {sys.executable} '
        f'-m pip install {shlex.join(packages)} installs it'
      )
  return None


def refuse(
  f: parser.Values, names: Iterable[str], beside: str, reason: str = ''
) -> None:
  """Refuses options that would have no effect.

  Args:
    f: all flags.
    names: the options to refuse.
    beside: what makes them ineffective, for the message.
    reason: the end of the message.

  Raises:
    UsageError: the user set one of `names`.
  """
  for name in names:
    if name in f and f[name].present:
      raise UsageError(
        f'{name}: expected none {beside}, got {text(f[name].value)}{reason}'
      )


def refuse_all_but(
  f: parser.Values, known_names: Collection[str], beside: str
) -> None:
  """Refuses all options but some, as `refuse` does.

  Raises:
    UsageError: the user set another option.
  """
  refuse(f, [name for name in f if name not in known_names], beside)


def refuse_unwritable(f: parser.Values) -> None:
  """Refuses paths that cannot be written, before the work begins.

  Raises:
    UsageError: a file cannot be written.
    ModuleNotFoundError: the library that draws pictures is missing.
  """
  for name in f:
    writes, path = f[name].option.writes, f[name].value
    if path is None or not writes:
      continue
    target = pathlib.Path(path)
    if target.is_dir() or not os.access(target.parent, os.W_OK):
      raise UsageError(
        f'{name}: expected a file that can be written, got {path!r}'
      )
    if writes == 'picture':
      import matplotlib  # noqa: F401  # type: ignore[import-untyped]


def colour() -> bool:
  return sys.stdout.isatty() and not os.environ.get('NO_COLOR')
