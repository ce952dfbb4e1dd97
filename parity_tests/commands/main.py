"""The `hpmoe` command.

Exit codes: 0 parity holds, 1 it fails, 2 the request was wrong, 3 the candidate
crashed, hung or could not run, 130 interrupted.
"""

import atexit
from collections.abc import Callable, Sequence
import contextlib
import ctypes
import io
import math
import os
import signal
import sys
import time

from hpmoe.parity_tests import plugins
from hpmoe.parity_tests.case import data_tables
from hpmoe.parity_tests.commands import check_command
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import export_command
from hpmoe.parity_tests.commands import invariance_command
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.parity_tests.commands import report_command
from hpmoe.parity_tests.commands import shrink_command
from hpmoe.parity_tests.commands.models import compare_command
from hpmoe.parity_tests.commands.models import convert_command
from hpmoe.parity_tests.commands.models import generate_command
from hpmoe.parity_tests.commands.models import train_command
from hpmoe.reference.contract import messages

# The judge's own commands, by the purpose that they serve.
_OWN_COMMANDS = {
  'verify': (
    check_command.COMMAND,
    export_command.COMMAND,
    invariance_command.COMMAND,
  ),
  'find the cause, and test the checks': (
    shrink_command.COMMAND,
    report_command.COMMAND,
  ),
  'schedule and simulate': (),
  'models': (
    train_command.COMMAND,
    generate_command.COMMAND,
    compare_command.COMMAND,
    convert_command.COMMAND,
  ),
}


def _load_groups() -> dict[str, tuple[cli.Command, ...]]:
  """Returns all commands by purpose, with those of installed backends."""
  groups = dict(_OWN_COMMANDS)
  for extension in plugins.load_plugins(plugins.COMMANDS):
    for purpose, commands in extension.items():
      groups[purpose] = (*groups.get(purpose, ()), *commands)
  return {purpose: commands for purpose, commands in groups.items() if commands}


_GROUPS = _load_groups()
COMMANDS = {
  command.name: command for commands in _GROUPS.values() for command in commands
}

# Old names of commands, which work until 1.0.
_RENAMED = {'law': 'determinism'}

# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def usage() -> str:
  lines = ['hpmoe: verifies fused mixture-of-experts kernels']
  width = max(map(len, COMMANDS))
  for group, commands in _GROUPS.items():
    lines += ['', f'{group}:']
    for command in commands:
      lines.append(f'  hpmoe {command.name:<{width}}  {command.texts["help"]}')
      lines.append(f'      {command.texts["examples"][0]}')
  lines += [
    '',
    'hpmoe COMMAND --help lists the options of a command, '
    'hpmoe --version prints the version.',
    'bash and zsh complete them after eval "$(hpmoe completion)".',
  ]
  return '\n'.join(lines)


def main(arguments: Sequence[str]) -> int:
  """Runs a command line (without the program's name); returns its exit code."""
  if arguments and arguments[0] == '--version':
    from hpmoe.parity_tests.cache import versions

    print(f'hpmoe {versions.installed_version("hyperparallel-moe")}')
    return cli.PARITY
  if arguments and arguments[0] == 'completion':
    from hpmoe.parity_tests.commands import completion

    print(completion.script(COMMANDS))
    return cli.PARITY
  if not arguments or arguments[0] in ('--help', '-h', 'help'):
    print(usage())
    return cli.PARITY if arguments else cli.WRONG_REQUEST
  name, rest = arguments[0], arguments[1:]
  if name in _RENAMED:
    print(
      f'hpmoe {name}: this command is now called hpmoe {_RENAMED[name]}',
      file=sys.stderr,
    )
    name = _RENAMED[name]
  command_names = data_tables.read('commands').keys()
  if name in command_names - COMMANDS.keys():
    print(f'hpmoe {plugins.explain_missing(name)}', file=sys.stderr)
    return cli.WRONG_REQUEST
  if name not in COMMANDS:
    expected = messages.refuse_choice(COMMANDS, name)
    print(f'hpmoe: command: {expected}', file=sys.stderr)
    return cli.WRONG_REQUEST
  command = COMMANDS[name]
  if {'--help', '-h', '--helpfull'} & set(rest):
    print(command.usage())
    return cli.PARITY
  code = _guarded(command, rest)
  missing = cli.unwritten()
  for line in missing:
    print(f'hpmoe {name}: {line}', file=sys.stderr)
  return cli.WRONG_REQUEST if missing and code == cli.PARITY else code


def _use_cache(command: cli.Command) -> contextlib.AbstractContextManager[None]:
  if not command.compiles:
    return contextlib.nullcontext()
  from hpmoe.parity_tests.cache import cache_folder
  from hpmoe.parity_tests.cache import programs

  programs.hide_accelerators()
  folder, process = cache_folder.find_folder(), os.getpid()

  def tell() -> None:
    # A terminal shows each step; a fork belongs to the same command.
    if not sys.stderr.isatty() and os.getpid() == process:
      once = 'once' if folder else 'each time: HPMOE_CACHE=off or JAX keeps it'
      print(
        f'hpmoe {command.name}: compiling the oracle for this layer, a minute '
        f'or two on a busy machine, {once}',
        file=sys.stderr,
        flush=True,
      )

  return cache_folder.use_cache(folder, tell)


def _guarded(command: cli.Command, arguments: Sequence[str]) -> int:
  def tell(text: object) -> None:
    print(f'hpmoe {command.name}: {_one_line(text)}', file=sys.stderr)

  parsed = None
  try:
    parsed = command.parse(arguments)
    cli.refuse_unwritable(parsed)
    with _use_cache(command):
      return command.execute(parsed)
  except ValueError as error:
    message = str(error)
    if parsed is not None:
      message = layer_flags.blame_schedule(parsed, message)
      message = _name_option(message, parsed)
    tell(message)
    return cli.WRONG_REQUEST
  except ModuleNotFoundError as error:
    text = cli.missing(str(error.name))
    if text is None:
      raise
    tell(text)
    return cli.WRONG_REQUEST
  except BrokenPipeError:
    raise
  except OSError as error:
    tell(f'{error.filename}: expected a file to use, got {error.strerror}')
    return cli.WRONG_REQUEST
  except RuntimeError as error:
    from hpmoe.parity_tests.candidates import backends
    from hpmoe.parity_tests.candidates import candidates

    backend = backends.load_backend()
    failures = backend.failures if backend else ()
    if not isinstance(error, (candidates.CandidateError, *failures)):
      raise
    tell(error)
    return cli.CANDIDATE_FAILED
  except KeyboardInterrupt:
    tell('interrupted')
    return cli.INTERRUPTED


def _name_option(message: str, f: parser.Values) -> str:
  """Returns an error message that names the option in place of its field.

  A library names the field of an object: deadline_s, or num_tokens of a layer,
  or layouts of a plan, which has several.
  """
  name, colon, rest = message.partition(':')
  options = {f[option].option.field: option for option in f}
  for form in ('num_{}', '{}s'):
    options |= {form.format(option): option for option in f}
  options |= {option: option for option in f}
  return options.get(name, name) + colon + rest


def _one_line(text: object) -> str:
  return ' '.join(str(text).split())


def _keep_memory() -> None:
  """Lets glibc keep freed memory, as lanes allocate the same sizes again.

  Otherwise the operating system first zeros the pages of each large array.
  """
  with contextlib.suppress(OSError, AttributeError):
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 512 << 20)


def _interrupter(grace_s: float = 1.0) -> Callable[..., None]:
  """Returns a handler of signals that raises KeyboardInterrupt.

  `timeout` sends two signals at once: the second must not interrupt the
  clean-up.
  """
  last = -math.inf

  def interrupt(number, frame) -> None:
    del number, frame
    nonlocal last
    since, last = time.monotonic() - last, time.monotonic()
    if since > grace_s:
      raise KeyboardInterrupt

  return interrupt


def run() -> None:
  """Entry point of `hpmoe`."""
  _keep_memory()
  # As Ctrl-C: child processes end, and temporary files are removed.
  interrupt = _interrupter()
  for signal_number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(signal_number) == signal.SIG_DFL:  # not under nohup
      signal.signal(signal_number, interrupt)
  # A terminal that lacks a mark of the table gets a question mark.
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors='replace')
  try:
    code = main(sys.argv[1:])
    sys.stdout.flush()
  except BrokenPipeError:  # `hpmoe check | head` has read enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    code = cli.NOT_READ
  if code != cli.INTERRUPTED:  # after an interrupt, JAX's threads may crash
    atexit._run_exitfuncs()
  sys.stdout.flush()
  sys.stderr.flush()
  # Python's own exit takes longer: it deallocates all modules.
  os._exit(code)


if __name__ == '__main__':
  run()
