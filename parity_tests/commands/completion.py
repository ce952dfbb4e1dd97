"""Completion of `hpmoe` command lines in bash and zsh."""

from collections.abc import Iterator, Mapping
import pathlib
import re

from absl import flags

from hpmoe.parity_tests.case import flag_tables
from hpmoe.parity_tests.commands import cli

# `script` replaces its words that begin with @.
_SCRIPT = pathlib.Path(__file__).parents[1] / 'data/completion.sh'


def script(commands: Mapping[str, cli.Command]) -> str:
  """Returns the script that a shell evaluates."""
  values: dict[str, list[str]] = {}
  options = []
  for name, command in commands.items():
    command_flags = command.flags()
    options.append(
      f"        {name}) words='{' '.join(_options(command_flags))}' ;;"
    )
    for flag, words in _choices(command_flags):
      values.setdefault(words, []).append(f'{name}--{flag}')
  cases = [
    f"        {'|'.join(options_of_words)}) words='{words}' ;;"
    for words, options_of_words in values.items()
  ]
  replacements = {
    '@values': '\n'.join(cases),
    '@options': '\n'.join(options),
    '@commands': ' '.join(commands),
  }
  text = _SCRIPT.read_text(encoding='utf-8').rstrip()
  return re.sub(
    '|'.join(replacements), lambda match: replacements[match[0]], text
  )


def _options(command_flags: flags.FlagValues) -> Iterator[str]:
  for name in sorted(command_flags):
    yield f'--{name}' if command_flags[name].boolean else f'--{name}='


def _choices(command_flags: flags.FlagValues) -> Iterator[tuple[str, str]]:
  """Yields the flags that have choices, with these."""
  for name in sorted(command_flags):
    row = getattr(command_flags[name].parser, 'row', None)
    if isinstance(row, flag_tables.Flag) and row.choices:
      yield name, ' '.join(word for word in row.choices if word)
