"""One option of the command line, as data beside the object that it sets."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Flag:
  """An option.

  Attributes:
    name: as typed, after --.
    field: of the object, that it sets.
    help: what it says.
    default: its value where it is not given.
    kind: of its value: str, int, float, bool or list.
    choices: all values that it may have; empty: any.
  """

  name: str
  field: str
  help: str
  default: object = None
  kind: type = str
  choices: tuple[str, ...] = ()
