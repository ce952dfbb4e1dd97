"""The words that bash and zsh complete a command line of `hpmoe` with."""

from collections.abc import Iterator, Mapping
import pathlib
import re

from absl import flags

from hpmoe.parity_tests.case import flag_tables
from hpmoe.parity_tests.commands import cli

# Its words that begin with @ stand for what the commands have.
_SCRIPT = pathlib.Path(__file__).parents[1] / 'data/completion.sh'


def script(commands: Mapping[str, cli.Command]) -> str:
  """Returns what a shell evaluates."""
  values: dict[str, list[str]] = {}
  options = []
  for name, command in commands.items():
    known = command.flags()
    options.append(f"        {name}) words='{' '.join(_options(known))}' ;;")
    for flag, words in _choices(known):
      values.setdefault(words, []).append(f'{name}--{flag}')
  cases = [
    f"        {'|'.join(of)}) words='{words}' ;;"
    for words, of in values.items()
  ]
  meant = {
    '@values': '\n'.join(cases),
    '@options': '\n'.join(options),
    '@commands': ' '.join(commands),
  }
  text = _SCRIPT.read_text(encoding='utf-8').rstrip()
  return re.sub('|'.join(meant), lambda found: meant[found[0]], text)


def _options(known: flags.FlagValues) -> Iterator[str]:
  for name in sorted(known):
    yield f'--{name}' if known[name].boolean else f'--{name}='


def _choices(known: flags.FlagValues) -> Iterator[tuple[str, str]]:
  """Yields flags that have only some values, and these."""
  for name in sorted(known):
    row = getattr(known[name].parser, 'row', None)
    if isinstance(row, flag_tables.Flag) and row.choices:
      yield name, ' '.join(word for word in row.choices if word)
