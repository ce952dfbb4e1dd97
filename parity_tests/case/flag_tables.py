"""Options of the command line as data, each with the field that it sets."""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import math
import pathlib
import tomllib
import types
from typing import Any

from hpmoe.reference.contract import messages


@dataclasses.dataclass(frozen=True)
class Flag:
  """An option.

  Attributes:
    name: as typed, after --.
    field: the field that it sets; '': none.
    help: its help text.
    default: its value if it is not set.
    kind: str, int, float, bool, or another function from a word to a value.
    choices: all values that it may have, perhaps with their meanings; empty:
      any.
    minimum, maximum: of a number.
    is_list: whether it is a list.
    direction: the only pass that it applies to; '': both.
    writes: 'file' or 'picture' if it is a path to write; '': it is not.
  """

  name: str
  field: str
  help: str
  default: Any = None
  kind: Callable[[str], Any] = str
  choices: tuple[str, ...] | Mapping[str, Any] = ()
  minimum: float = -math.inf
  maximum: float = math.inf
  is_list: bool = False
  direction: str = ''
  writes: str = ''

  def replace(self, **changes: Any) -> 'Flag':
    """Returns the option with other attributes."""
    return dataclasses.replace(self, **changes)

  def as_list(self, default: Iterable[Any]) -> 'Flag':
    """Returns it as a list."""
    text, _, _ = self.help.partition(' Default:')
    return self.replace(
      default=[*default], help=f'{text} A list.', is_list=True
    )

  def parse(self, text: str) -> Any:
    """Returns the value of a text.

    Raises:
      ValueError: the text is no value; says what was expected and what came.
    """
    if not self.is_list:
      return self._value(text)
    words = [word.strip() for word in text.split(',') if word.strip()]
    if self.choices and not words:
      choices = messages.name_choices(self.choices, text)
      raise ValueError(f'expected some of {choices}, got none')
    return list(dict.fromkeys(map(self._value, words)))

  def _value(self, word: str) -> Any:
    try:
      value = self.kind(word)
    except ValueError as error:
      expected = _NUMBERS.get(self.kind, str(error))
      near = messages.suggest(getattr(error, 'choices', ()), word)
      raise ValueError(f'expected {expected}, got {word!r}{near}') from error
    if self.choices and value not in self.choices:
      quantity = 'some of' if self.is_list else 'one of'
      choices = filter(None, self.choices)
      raise ValueError(messages.refuse_choice(choices, word, quantity=quantity))
    if self.kind in _NUMBERS and not self.minimum <= value <= self.maximum:
      span = f'{self.minimum} to {self.maximum}'
      among = f'at least {self.minimum}' if self.maximum == math.inf else span
      raise ValueError(f'expected {among}, got {word}')
    return value

  def resolve(self, value: Any) -> Any:
    """Returns the field's value: the meaning of a choice, lists as tuples."""
    if isinstance(value, list):
      return tuple(map(self.resolve, value))
    return self.choices[value] if isinstance(self.choices, Mapping) else value


_NUMBERS: dict[Callable, str] = {int: 'an integer', float: 'a number'}


def seconds(word: str) -> float:
  """Returns a timeout in seconds; a `Flag.kind`.

  Raises:
    ValueError: the word is no positive number.
  """
  try:
    value = float(word)
  except ValueError:
    raise ValueError('a number') from None
  if not 0 < value < math.inf:
    raise ValueError('seconds, more than 0')
  return value


_KINDS: dict[str, Callable] = dict(
  str=str, int=int, float=float, bool=bool, seconds=seconds
)
_DATA = pathlib.Path(__file__).parents[1] / 'data'


@functools.cache
def read(name: str) -> dict[str, dict[str, Any]]:
  """Returns the tables of a file of `data/`."""
  return tomllib.loads((_DATA / f'{name}.toml').read_text(encoding='utf-8'))


def read_flags(
  name: str,
  words: Mapping[str, object] = types.MappingProxyType({}),
  **changes: Mapping[str, Any],
) -> tuple[Flag, ...]:
  """Returns the options of a table of options.toml; see `build_flags`."""
  return build_flags(read('options')[name], words, **changes)


def build_flags(
  options: Mapping[str, Mapping[str, Any]],
  /,
  words: Mapping[str, object] = types.MappingProxyType({}),
  **changes: Mapping[str, Any],
) -> tuple[Flag, ...]:
  """Returns options from data.

  Args:
    options: attributes of `Flag` by name; the default of `field` is the name,
      that of `kind` the type of the default value.
    words: values of the {word}s in their texts.
    **changes: by option, attributes that replace those of the data.
  """
  return tuple(
    _build_flag(name, words, **{'field': name, **row, **changes.get(name, {})})
    for name, row in options.items()
  )


# Fields of a flag that have another key in tables: key -> field.
_FIELDS = dict(
  many='is_list', only='direction', least='minimum', most='maximum'
)


def _build_flag(
  name, words, *, help, default=None, kind='', choices=(), **others_by_key
) -> Flag:
  for word, value in words.items():
    help = help.replace(f'{{{word}}}', str(value))
  # Flags whose default is None or a list are texts.
  parser = _KINDS.get(kind or type(default).__name__, str)
  if callable(kind):
    parser = kind
  if not isinstance(choices, Mapping):
    choices = tuple(choices)
  fields = {_FIELDS.get(k, k): value for k, value in others_by_key.items()}
  return Flag(
    name, help=help, default=default, kind=parser, choices=choices, **fields
  )


def select(rows: Iterable[Flag], *names: str) -> list[Flag]:
  """Returns the options of those names, in that order."""
  by_name = {row.name: row for row in rows}
  return [by_name[name] for name in names]
