"""What every subcommand of `hpmoe` is made of."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
import types
from typing import Any

from absl import flags

from hpmoe.parity_tests.case import flag_tables

PARITY, NO_PARITY, WRONG_REQUEST, CANDIDATE_FAILED = 0, 1, 2, 3
INTERRUPTED = 130  # What a shell says of a program that SIGINT ended.
NOT_READ = 141  # And of one whose reader went away.
LINE_EVERY_S = 30.0  # of progress, where no terminal shows each step
_SHOWN_AFTER_S = 2.0  # where one does


class UsageError(ValueError):
  """The command line was wrong."""


@dataclasses.dataclass(frozen=True)
class Command:
  """One subcommand.

  Attributes:
    name: as typed.
    define: defines its flags.
    execute: runs it with parsed flags and the arguments; returns the exit code.
    operands: the flags that arguments without a name set, in order, as in
      `hpmoe reproduce uniep`.
    compiles: whether XLA compiles an oracle for it, which is kept.
    heads: returns what its flags decide, and which; None: all in one list.
  """

  name: str
  define: Callable[[flags.FlagValues], None]
  execute: Callable[[flags.FlagValues], int]
  operands: tuple[str, ...] = ()
  compiles: bool = False
  heads: Callable[[], list[tuple[str, Sequence[str]]]] | None = None

  @property
  def texts(self) -> dict[str, Any]:
    """Its `help` in one line, `examples` of it, and `codes`: how it exits."""
    return flag_tables.read('commands')[self.name]

  def flags(self) -> flags.FlagValues:
    values = flags.FlagValues()
    self.define(values)
    return values

  def usage(self) -> str:
    values = self.flags()
    lines = [f'hpmoe {self.name}: {self.texts["help"]}', '', 'examples:']
    lines += [f'  {example}' for example in self.texts['examples']]
    lines += ['', 'options:']
    told: set[str] = set()
    for head, names in self.heads() if self.heads else [('', list(values))]:
      mine = sorted({*names} & {*values})
      again = ', '.join(f'--{name}' for name in mine if name in told)
      lines += ['', f'{head}:'] if head else []
      lines += [_wrapped(f'  as above: {again}')] if again else []
      lines += [_told(values[name]) for name in mine if name not in told]
      told |= {*mine}
    lines += [
      '',
      _wrapped(f'exit codes: {self.texts["codes"]}, 130 interrupted'),
    ]
    return '\n'.join(lines)


def _told(flag: flags.Flag) -> str:
  unset = flag.default in (None, [], '')
  default = '' if unset else f' Default: {text(flag.default)}.'
  return _wrapped(f'  --{flag.name}: {flag.help}{default}')


def _wrapped(text: str) -> str:
  return textwrap.fill(
    text,
    88,
    subsequent_indent=6 * ' ',
    break_on_hyphens=False,
    break_long_words=False,
  )


def text(value: object) -> str:
  return ','.join(map(str, value)) if isinstance(value, list) else str(value)


class _Parser(flags.ArgumentParser):
  """Parses as a row says, but what is a value already."""

  def __init__(self, row: flag_tables.Flag):
    self.row = row

  def parse(self, argument: Any) -> Any:
    return self.row.parse(argument) if isinstance(argument, str) else argument


class _Serializer(flags.ArgumentSerializer):
  """Writes what a `_Parser` reads."""

  def serialize(self, value: Any) -> str:
    return text(value)


def define(
  f: flags.FlagValues, rows: Iterable[flag_tables.Flag], **defaults: Any
) -> None:
  """Defines flags that stand as data; `defaults` of some, by name."""
  for row in rows:
    default = defaults.get(row.name, row.default)
    if row.kind is bool and not row.is_list:
      flags.DEFINE_boolean(row.name, default, row.help, flag_values=f)
      continue
    flags.DEFINE(_Parser(row), row.name, default, row.help, f, _Serializer())


def own(
  f: flags.FlagValues,
  command: str,
  words: Mapping[str, object] = types.MappingProxyType({}),
  **changes: Mapping[str, Any],
) -> None:
  """Defines what stands in commands.toml: options that set no object's field.

  Args:
    f: flags of the command.
    command: its name.
    words: what {name} stands for in their texts.
    **changes: by option, attributes of `Flag` that code decides.
  """
  texts = flag_tables.read('commands')
  said = texts[command]
  held = {n: texts['shared'][n] for n in said.get('shared', ())}
  held |= said.get('options', {})
  nothing = {name: dict(row, field='') for name, row in held.items()}
  define(f, flag_tables.build_flags(nothing, words, **changes))


def fields(
  f: flags.FlagValues, of: Iterable[flag_tables.Flag]
) -> dict[str, Any]:
  """Returns the fields that flags set, those of them that a command has."""
  mine = [row for row in of if row.field and row.name in f]
  return {row.field: row.resolve(f[row.name].value) for row in mine}


def arguments(f: flags.FlagValues, without: Sequence[str]) -> tuple[str, ...]:
  """Returns the flags that were given, as a command line."""
  given = (f[name] for name in sorted(f) if f[name].present)
  return tuple(flag.serialize() for flag in given if flag.name not in without)


def _clock(seconds: float) -> str:
  minutes, left = divmod(int(seconds), 60)
  return f'{minutes:02}:{left:02}'


@contextlib.contextmanager
def progress(total: int | None = None, estimate: bool = False):
  """Yields a function that names the step which begins.

  A terminal shows the step of what takes over 2 s, and clears it at the end.
  Elsewhere, as in a log, a line tells where it is every `LINE_EVERY_S`.

  Args:
    total: how many steps there are, at most.
    estimate: whether to tell how long the rest takes, should all steps come
      and take as long as those so far.
  """
  # The size is 80 x 24 where a terminal does not say it.
  columns = shutil.get_terminal_size().columns - 1
  shown = sys.stderr.isatty()
  begin, end = ('\r', '\x1b[K') if shown else ('', '\n')
  start = told = time.monotonic()
  count = 0

  def step(name: str) -> None:
    nonlocal told, count
    count += 1
    now = time.monotonic()
    if now - start < _SHOWN_AFTER_S if shown else now - told < LINE_EVERY_S:
      return
    told = now
    of = left = ''
    if total is not None:
      of = f'/{total}'
      if estimate:
        left = f', {_clock((now - start) / count * (total - count))} left'
    text = f'{name} {count}{of} [{_clock(now - start)}{left}]'
    text = text[:columns] if shown else text
    print(f'{begin}{text}', end=end, file=sys.stderr, flush=True)

  try:
    yield step
  finally:
    if shown:
      print(begin, end=end, file=sys.stderr, flush=True)


def write_json(path: str | None, content: object) -> None:
  """Writes data, or records of it, where a path is given."""
  if path is not None:
    from hpmoe.parity_tests.report import report_json

    plain = report_json.to_plain_data(content)
    write('json', path, json.dumps(plain, indent=2, allow_nan=False) + '\n')


# What a command could not write, told once its verdict is.
_unwritten: list[str] = []


def unwritten() -> list[str]:
  """Returns a line for each file that is missing, and forgets them."""
  lines = [*dict.fromkeys(_unwritten)]
  _unwritten.clear()
  return lines


def write(name: str, path: str, text: str) -> None:
  """Writes a file whole, or has it told that it is not: see `unwritten`.

  Args:
    name: of the flag that asked for it.
    path: of the file; one that is there stays until the new one is whole.
    text: what to write.
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
  """Writes a report of a launch that ended early, and lets the error pass."""
  from hpmoe.parity_tests.candidates import candidates

  try:
    yield
  except candidates.CandidateError as error:
    write_json(path, dict(verdict='fail', error=str(error)))
    raise


@contextlib.contextmanager
def launches_in_frameworks():
  """Has a launch that a framework reports as failed end as one of ours does."""
  import jax

  from hpmoe.parity_tests.candidates import backends
  from hpmoe.parity_tests.candidates import candidates

  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    raise candidates.CandidateError(str(error)) from error
  except jax.errors.TracerArrayConversionError as error:
    raise candidates.CandidateError(
      "moe: expected a layer of JAX's operators, which have gradients, got one "
      "of numpy's; `hpmoe compare --direction=forward` asks for none"
    ) from error
  except RuntimeError as error:
    backend = backends.load_backend()
    text = backend.find_launch_error(str(error)) if backend else None
    if text is None:
      raise
    raise candidates.CandidateError(text) from error


def warn_of_bytes(model: str, config) -> bool:
  """Says where a model of words reads bytes, and returns whether it does."""
  from hpmoe.models.train import text

  told = text.caution(model, config)
  if told:
    print(told, file=sys.stderr)
  return bool(told)


def missing(module: str) -> str | None:
  """Returns how to install a module of an extra; None: no extra has it.

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
    needed = importlib.metadata.requires('hyperparallel-moe') or ()
  except importlib.metadata.PackageNotFoundError:
    return None
  extras: dict[str, list[str]] = {}
  for line in needed:
    named = re.fullmatch(r'(.*?) *;.*extra == .(\w+).', line)
    if named:
      extras.setdefault(named[2], []).append(named[1])
  for extra, packages in extras.items():
    if any(re.match(f'{re.escape(module)}\\b', name) for name in packages):
      return (
        f'{module}: expected the extra `{extra}`, got none; {sys.executable} '
        f'-m pip install {shlex.join(packages)} installs it'
      )
  return None


def refuse(
  f: flags.FlagValues, names: Iterable[str], beside: str, why: str = ''
) -> None:
  """Refuses options that would have no effect, and so have no meaning.

  Raises:
    UsageError: one of `names` was given; it holds what it stands beside.
  """
  for name in names:
    if name in f and f[name].present:
      raise UsageError(
        f'{name}: expected none {beside}, got {text(f[name].value)}{why}'
      )


def refuse_all_but(
  f: flags.FlagValues, known_names: Collection[str], beside: str
) -> None:
  """Refuses all options but some, as `refuse` does.

  Raises:
    UsageError: another one was given.
  """
  refuse(f, [name for name in f if name not in known_names], beside)


def refuse_unwritable(f: flags.FlagValues) -> None:
  """Refuses what cannot be written before the work, not after.

  Raises:
    UsageError: a file cannot be written.
    ModuleNotFoundError: what draws a picture is missing.
  """
  for name in f:
    row = getattr(f[name].parser, 'row', None)
    path = f[name].value
    if path is None or not isinstance(row, flag_tables.Flag) or not row.writes:
      continue
    target = pathlib.Path(path)
    if target.is_dir() or not os.access(target.parent, os.W_OK):
      raise UsageError(
        f'{name}: expected a file that can be written, got {path!r}'
      )
    if row.writes == 'picture':
      import matplotlib  # noqa: F401  # type: ignore[import-untyped]


def colour() -> bool:
  return sys.stdout.isatty() and not os.environ.get('NO_COLOR')
