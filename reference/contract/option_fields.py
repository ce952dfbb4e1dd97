"""Options: fields of dataclasses that carry their help, type and choices.

`option` declares such a field.  The API and the JSON of a report have the
field; `list_options` returns the options of a dataclass, from which the command
line derives its flags.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import math
import types
import typing
from typing import Any

from hpmoe.reference.contract import messages

Choices = tuple[Any, ...] | Mapping[str, Any]
_KEY = 'option'
_FIELD = object()  # the default of the command line is that of the field


@dataclasses.dataclass(frozen=True)
class Option:
  """An option.

  Attributes:
    name: as typed, after --.
    field: the field that it sets.
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
  choices: Choices = ()
  minimum: float = -math.inf
  maximum: float = math.inf
  is_list: bool = False
  direction: str = ''
  writes: str = ''

  def replace(self, **changes: Any) -> 'Option':
    """Returns the option with other attributes."""
    return dataclasses.replace(self, **changes)

  def as_list(self, default: Iterable[Any]) -> 'Option':
    """Returns it as a list."""
    text, _, _ = self.help.partition(' Default:')
    return self.replace(
      default=[*default], help=f'{text} A list.', is_list=True
    )

  @property
  def is_switch(self) -> bool:
    """Whether it is typed without a value."""
    return self.kind is bool and not self.is_list

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
      value = _parse_bool(word) if self.kind is bool else self.kind(word)
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
_BOOLS = dict.fromkeys(('true', 't', '1'), True)
_BOOLS |= dict.fromkeys(('false', 'f', '0'), False)


def _parse_bool(word: str) -> bool:
  if word.lower() not in _BOOLS:
    raise ValueError('true or false')
  return _BOOLS[word.lower()]


def parse_seconds(word: str) -> float:
  """Returns a timeout in seconds; an `Option.kind`.

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


def option(
  default: Any,
  help: str | Callable[[], str],
  *,
  flag: str = '',
  typed: Any = _FIELD,
  choices: Choices | Callable[[], Choices] = (),
  kind: Callable[[str], Any] | None = None,
  **attributes: Any,
) -> Any:
  """Returns a field of a dataclass that is an option.

  Args:
    default: of the field; dataclasses.MISSING: it needs a value.
    help: its help text.
    flag: its name on the command line; '': the field's.
    typed: the default on the command line, if it is not the field's.
    choices: see `Option`.
    kind: see `Option`; None: the type of the field.
    **attributes: further attributes of `Option`.

  A function in place of `help` or `choices` returns it when options are listed.
  """
  declaration = dict(
    help=help,
    name=flag,
    default=typed,
    choices=choices,
    kind=kind,
    **attributes,
  )
  return dataclasses.field(default=default, metadata={_KEY: declaration})


def share(group: type, name: str, default: Any = _FIELD) -> Any:
  """Returns a field that is the option of another dataclass's field.

  Args:
    group: the other dataclass.
    name: of its field.
    default: of the new field, if it is not the same.
  """
  (field,) = (f for f in dataclasses.fields(group) if f.name == name)
  return dataclasses.field(
    default=field.default if default is _FIELD else default,
    metadata=field.metadata,
  )


def is_option(field: dataclasses.Field) -> bool:
  """Says whether a field is an option."""
  return _KEY in field.metadata


def list_options(*groups: type) -> tuple[Option, ...]:
  """Returns the options of dataclasses; of equal names, the first."""
  rows = (
    _build_option(field)
    for group in groups
    for field in dataclasses.fields(group)
    if is_option(field)
  )
  by_name: dict[str, Option] = {}
  for row in rows:
    by_name.setdefault(row.name, row)
  return tuple(by_name.values())


def _build_option(field: dataclasses.Field) -> Option:
  declaration = dict(field.metadata[_KEY])
  is_list, kind = _read_type(field.type)
  for key in ('help', 'choices'):
    if callable(declaration[key]):
      declaration[key] = declaration[key]()
  default = declaration.pop('default')
  default = field.default if default is _FIELD else default
  if isinstance(default, tuple):
    default = [*default]
  if default is dataclasses.MISSING:
    default = None
  return Option(
    **declaration
    | dict(
      name=declaration['name'] or field.name,
      field=field.name,
      default=default,
      kind=declaration['kind'] or kind,
      is_list=is_list,
    )
  )


def _read_type(annotation: Any) -> tuple[bool, Callable[[str], Any]]:
  """Returns whether a field has a list, and the type of its values.

  Of a union, as in `int | None`, the first type counts.  Other types than those
  of numbers and bools are typed as text.
  """
  if isinstance(annotation, types.UnionType):
    annotation = typing.get_args(annotation)[0]
  if typing.get_origin(annotation) is tuple:
    return True, _read_type(typing.get_args(annotation)[0])[1]
  return False, annotation if annotation in (int, float, bool) else str


def select(rows: Iterable[Option], *names: str) -> list[Option]:
  """Returns the options of those names, in that order."""
  by_name = {row.name: row for row in rows}
  return [by_name[name] for name in names]


def replace_defaults(rows: Iterable[Option], **defaults: Any) -> list[Option]:
  """Returns options, some of them with another default."""
  return [
    row.replace(default=defaults.get(row.name, row.default)) for row in rows
  ]
