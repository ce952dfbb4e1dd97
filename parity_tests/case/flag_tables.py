"""One option of the command line, as data beside the object that it sets."""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import math
import pathlib
import tomllib
import types
from typing import Any


@dataclasses.dataclass(frozen=True)
class Flag:
  """An option.

  Attributes:
    name: as typed, after --.
    field: of the object, that it sets; '': of none.
    help: what it says.
    default: its value where it is not given.
    kind: str, int, float, bool, or what else makes a value of a word.
    choices: all values that it may have, perhaps with what they mean; empty:
      any.
    least, most: of a number.
    many: whether it is a list.
    only: the one pass that it is for; '': both.
    writes: 'file' or 'picture', of a path where one is written; '': none.
  """

  name: str
  field: str
  help: str
  default: Any = None
  kind: Callable[[str], Any] = str
  choices: tuple[str, ...] | Mapping[str, Any] = ()
  least: float = -math.inf
  most: float = math.inf
  many: bool = False
  only: str = ''
  writes: str = ''

  def but(self, **changes: Any) -> 'Flag':
    """Returns the option with other attributes."""
    return dataclasses.replace(self, **changes)

  def listed(self, default: Iterable[Any]) -> 'Flag':
    """Returns it as a list."""
    text, _, _ = self.help.partition(' Default:')
    return self.but(default=[*default], help=f'{text} A list.', many=True)

  def parse(self, text: str) -> Any:
    """Returns the value that a text means.

    Raises:
      ValueError: it means none; says what was expected and what came.
    """
    if not self.many:
      return self._value(text)
    words = [word.strip() for word in text.split(',') if word.strip()]
    if self.choices and not words:
      raise ValueError(f'expected some of {[*self.choices]}, got none')
    return list(dict.fromkeys(map(self._value, words)))

  def _value(self, word: str) -> Any:
    try:
      value = self.kind(word)
    except ValueError as error:
      expected = _NUMBERS.get(self.kind, str(error))
      raise ValueError(f'expected {expected}, got {word!r}') from error
    if self.choices and value not in self.choices:
      some = 'some' if self.many else 'one'
      raise ValueError(f'expected {some} of {[*self.choices]}, got {word!r}')
    if self.kind in _NUMBERS and not self.least <= value <= self.most:
      to = f'{self.least} to {self.most}'
      among = f'at least {self.least}' if self.most == math.inf else to
      raise ValueError(f'expected {among}, got {word}')
    return value

  def meant(self, value: Any) -> Any:
    """Returns what the object is told: a choice by its meaning, no lists."""
    if isinstance(value, list):
      return tuple(map(self.meant, value))
    return self.choices[value] if isinstance(self.choices, Mapping) else value


_NUMBERS: dict[Callable, str] = {int: 'an integer', float: 'a number'}


def seconds(word: str) -> float:
  """Returns a time that a wait may take; a kind.

  Raises:
    ValueError: it is none.
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


def table(
  name: str,
  words: Mapping[str, object] = types.MappingProxyType({}),
  **changes: Mapping[str, Any],
) -> tuple[Flag, ...]:
  """Returns the options of a table of options.toml; see `rows`."""
  return rows(read('options')[name], words, **changes)


def rows(
  held: Mapping[str, Mapping[str, Any]],
  words: Mapping[str, object] = types.MappingProxyType({}),
  **changes: Mapping[str, Any],
) -> tuple[Flag, ...]:
  """Returns options that are data.

  Args:
    held: attributes of `Flag` by name; `field` is the name if it is not there,
      the kind that of the default.
    words: what {word} stands for in their texts.
    **changes: by option, attributes that code decides.
  """
  return tuple(
    _row(name, words, **{'field': name, **row, **changes.get(name, {})})
    for name, row in held.items()
  )


def _row(
  name, words, *, help, default=None, kind='', choices=(), **more
) -> Flag:
  for word, value in words.items():
    help = help.replace(f'{{{word}}}', str(value))
  # None and lists are of text.
  made = _KINDS.get(kind or type(default).__name__, str)
  made = kind if callable(kind) else made
  if not isinstance(choices, Mapping):
    choices = tuple(choices)
  return Flag(
    name, help=help, default=default, kind=made, choices=choices, **more
  )


def some(rows: Iterable[Flag], *names: str) -> list[Flag]:
  """Returns the options of those names, in that order."""
  by_name = {row.name: row for row in rows}
  return [by_name[name] for name in names]
