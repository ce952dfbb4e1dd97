"""The options of a command line, as a command's options say."""

import argparse
from collections.abc import Collection, Iterable, Iterator, Sequence
import dataclasses
import textwrap
from typing import Any

from hpmoe.reference.contract import messages
from hpmoe.reference.contract import option_fields


class UsageError(ValueError):
  """The command line was wrong."""


@dataclasses.dataclass
class Value:
  """What one option has.

  Attributes:
    option: the option.
    value: its value.
    present: whether the user typed it.
  """

  option: option_fields.Option
  value: Any
  present: bool = False

  def format(self) -> str:
    """Returns it as typed."""
    name = self.option.name
    if self.option.is_switch:
      return f'--{name}' if self.value else f'--no{name}'
    return f'--{name}={text(self.value)}'


class Values:
  """The values of a command's options: `f.tokens`, or `f['tokens']`.

  The former is a value, the latter a `Value`.
  """

  def __init__(self, options: Iterable[option_fields.Option]):
    self._values = {row.name: Value(row, row.default) for row in options}

  def __getattr__(self, name: str) -> Any:
    if name.startswith('_') or name not in self._values:
      raise AttributeError(f'{name}: expected an option, got none')
    return self._values[name].value

  def __getitem__(self, name: str) -> Value:
    return self._values[name]

  def __contains__(self, name: object) -> bool:
    return name in self._values

  def __iter__(self) -> Iterator[str]:
    return iter(self._values)

  def set(self, name: str, typed: str) -> None:
    """Sets an option to what was typed.

    Raises:
      UsageError: that is no value of the option.
    """
    value = self._values[name]
    try:
      value.value = value.option.parse(typed)
    except ValueError as error:
      raise UsageError(f'{name}: {error}') from error
    value.present = True


def text(value: object) -> str:
  """Returns a value as it is typed."""
  return ','.join(map(str, value)) if isinstance(value, list) else str(value)


def parse(
  options: Sequence[option_fields.Option],
  words: Sequence[str],
  operands: Sequence[str] = (),
) -> Values:
  """Returns the values of options.

  Args:
    options: those of the command.
    words: the command line.
    operands: options that words without -- set, in order.

  Raises:
    UsageError: a word is wrong.
  """
  values = Values(options)
  by_name = {row.name: row for row in options}
  parser = argparse.ArgumentParser(
    add_help=False, allow_abbrev=False, exit_on_error=False
  )
  for name in by_name:
    parser.add_argument(f'--{name}', dest=name, default=argparse.SUPPRESS)
  try:
    typed, left = parser.parse_known_args(_complete_switches(words, by_name))
  except argparse.ArgumentError as error:
    name = str(error.argument_name).removeprefix('--')
    meaning = textwrap.shorten(by_name[name].help, 150, placeholder=' ...')
    raise UsageError(
      f'{name}: expected a value, such as --{name}=VALUE, got none ({meaning})'
    ) from error
  for name, word in vars(typed).items():
    values.set(name, word)
  for name in operands:
    if left and not left[0].startswith('-') and not values[name].present:
      values.set(name, left.pop(0))
  if left:
    raise UsageError(_refuse(left[0], by_name))
  return values


def _complete_switches(
  words: Iterable[str], by_name: dict[str, option_fields.Option]
) -> list[str]:
  """Returns --name=true for --name, and --name=false for --noname."""
  names = [name for name, row in by_name.items() if row.is_switch]
  completions = {f'--no{name}': f'--{name}=false' for name in names}
  completions |= {f'--{name}': f'--{name}=true' for name in names}
  return [completions.get(word, word) for word in words]


# `check` has a preset of a layer, `plan` and `train` a model of a decoder.
_EQUIVALENT = {'preset': 'model', 'model': 'preset'}


def _refuse(word: str, names: Collection[str]) -> str:
  """Returns what was expected in place of a word."""
  if not word.startswith('-'):
    return f'arguments: expected --options only, got {word!r}'
  name = word.lstrip('-').partition('=')[0] or word
  if (equivalent := _EQUIVALENT.get(name)) in names:
    return f'{name}: expected --{equivalent}, got {word}'
  near = messages.suggest(names, name)
  return f'{name}: expected an option of this command, got {word}{near}'
