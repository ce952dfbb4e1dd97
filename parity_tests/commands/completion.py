"""Completion of `hpmoe` command lines in bash and zsh."""

from collections.abc import Mapping
import pathlib
import re

from hpmoe.parity_tests.commands import cli
from hpmoe.reference.contract import option_fields

# `script` replaces its words that begin with @.
_SCRIPT = pathlib.Path(__file__).parents[1] / 'data/completion.sh'


def script(commands: Mapping[str, cli.Command]) -> str:
  """Returns the script that a shell evaluates."""
  values: dict[str, list[str]] = {}
  options = []
  for name, command in commands.items():
    rows = sorted(command.list_options(), key=lambda row: row.name)
    options.append(
      f"        {name}) words='{' '.join(map(_complete_name, rows))}' ;;"
    )
    for row in rows:
      if row.choices:
        words = ' '.join(word for word in row.choices if word)
        values.setdefault(words, []).append(f'{name}--{row.name}')
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


def _complete_name(row: option_fields.Option) -> str:
  return f'--{row.name}' if row.is_switch else f'--{row.name}='
