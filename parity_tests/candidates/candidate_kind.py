"""One kind of candidate, and what an installed backend adds to the judge."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

from hpmoe.parity_tests.candidates import candidates
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class Row:
  """One kind of candidate.

  Attributes:
    kind: its class.
    flag: the flag that asks for it; None for the default kind.
    value: the value of that flag; None for any value.
    flags: flags that it understands; others are refused.
    description: what it is; messages that refuse other flags end with it.
    example: an example of a value, where any value will do.
    read_fields: returns more fields of `kind` from all parsed flags, or None.
  """

  kind: type[candidates.Candidate]
  flag: str | None
  value: str | None
  flags: tuple[str, ...]
  description: str
  example: str = 'pkg.module:function'
  read_fields: Callable[[Any], Mapping[str, Any]] | None = None

  @property
  def head(self) -> str:
    """The heading of its flags in a help text."""
    return self.option if self.flag else 'the megakernel on the host'

  def format_flag(self, flag_values: Mapping[str, Any]) -> str:
    """Returns the flag that asked for it as typed, or '' for the default."""
    return f'--{self.flag}={flag_values[self.flag]}' if self.flag else ''

  @property
  def option(self) -> str:
    """The option that asks for it."""
    return f'--{self.flag}={self.value or self.example}'

  def is_asked(self, flag_values: Mapping[str, Any]) -> bool:
    """Says whether flags ask for it."""
    if self.flag is None:
      return True
    return self.flag in flag_values and self.value in (
      None,
      flag_values[self.flag],
    )

  def make(self, fields: Mapping[str, Any]) -> candidates.Candidate:
    """Returns a candidate; fields that its kind lacks are left out."""
    names = {f.name for f in dataclasses.fields(self.kind) if f.init}
    return self.kind(**{n: v for n, v in fields.items() if n in names})


@dataclasses.dataclass(frozen=True)
class Backend:
  """What a backend adds to the judge.

  A distribution offers one as an entry point of the group `hpmoe.backends`.

  Attributes:
    rows: its kinds of candidate that flags ask for, before the user's kinds.
    last_rows: likewise, after the user's kinds.
    default: its kind of candidate where no flag asks for another.
    flags: the flags of all these kinds, in the order of help texts.
    failures: error types by which the backend says that it failed; others say
      that the request is wrong.
    find_launch_error: returns the report of a launch that a framework's error
      message contains, or None.
    find_fault_names: returns the faults that `default` can inject in a pass.
    read_schedule: returns the options of a schedule file for a layer.
  """

  rows: tuple[Row, ...]
  last_rows: tuple[Row, ...]
  default: Row
  flags: tuple[option_fields.Option, ...]
  failures: tuple[type[Exception], ...]
  find_launch_error: Callable[[str], str | None]
  find_fault_names: Callable[[Any], Sequence[str]]
  read_schedule: Callable[..., Any]
