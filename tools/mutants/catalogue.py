"""The catalogue of mutants: realistic bugs, as data.

`data/*.toml` holds one table for each mutant, whose key is its name.  A place
is a piece of text that stands exactly once in its file, so that it survives
moved lines; `catalogue_test.py` asserts that it does.
"""

import dataclasses
import pathlib
import tomllib

DATA = pathlib.Path(__file__).parent / 'data'


@dataclasses.dataclass(frozen=True)
class Mutant:
  """One bug that can be planted.

  Attributes:
    name: of the table.
    file: path from the root of the tree.
    find: a text that stands once in the file.
    change: what replaces it.
    imitates: the mistake that people make, or the published bug.
    stage: the tensor at which a check must find it; for a flow that is
      refused or does not end, a word that the message must hold.
    elsewhere: why it is found at another place than that, where it must be.
    tile: fields of the first failure, with the values that they must have.
    guard: a test file, for what both sides of a check share: no lane can see
      that.  The others have the test beside their file, if no check sees them.
    equivalent: why no output can change, for a mutant that must survive.
    kind: what part of the tree it is in; the name of its file of data.
  """

  name: str
  file: str
  find: str
  change: str
  imitates: str
  stage: str = ''
  elsewhere: str = ''
  tile: dict[str, int] = dataclasses.field(default_factory=dict)
  guard: str = ''
  equivalent: str = ''
  kind: str = ''

  def __post_init__(self):
    for field in ('file', 'find', 'imitates'):
      if not getattr(self, field):
        raise ValueError(f'{self.name}: {field}: expected a text, got none')
    if self.find == self.change:
      raise ValueError(f'{self.name}: change: expected another text than find')
    if bool(self.stage) == bool(self.equivalent or self.guard):
      raise ValueError(
        f'{self.name}: stage: expected one, or why it is equivalent, or a guard'
      )

  def plant(self, text: str) -> str:
    """Returns the file's text with the bug.

    Raises:
      ValueError: the place is not there, or more than once.
    """
    count = text.count(self.find)
    if count != 1:
      raise ValueError(
        f'{self.name}: find: expected once in {self.file}, got {count} times'
      )
    return text.replace(self.find, self.change)


def load(folder: pathlib.Path = DATA) -> tuple[Mutant, ...]:
  """Returns all mutants, file by file.

  Raises:
    ValueError: a name stands in two files, or a table is not a mutant.
  """
  mutants: dict[str, Mutant] = {}
  for path in sorted(folder.glob('*.toml')):
    for name, fields in tomllib.loads(path.read_text()).items():
      if name in mutants:
        raise ValueError(f'{path.name}: {name}: expected one of that name')
      try:
        mutants[name] = Mutant(name, kind=path.stem, **fields)
      except TypeError as error:
        raise ValueError(f'{path.name}: {name}: {error}') from error
  return tuple(mutants.values())
