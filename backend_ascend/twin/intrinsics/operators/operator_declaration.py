"""What an operator's sources declare: its arguments, its chips, its kernels."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import pathlib
import re

from hpmoe.backend_ascend.twin.intrinsics import build_kernel

# Chips whose cores the twin has.
CHIPS = ('ascend910b', 'ascend910_93')
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/', re.S)
_ARGUMENT = re.compile(
  r'(?<![\w.])(?:this->)(Input|Output)\s*\(\s*"(\w+)"\s*\)(?=([^;]*))'
)
_CONFIG = re.compile(r'AddConfig\s*\(\s*"(\w+)"')
_FILE = re.compile(r'"opFile\.value"\s*,\s*"(\w+)"')
_TEMPLATE = re.compile(r'\btemplate\s*<([^{};]*)>\s*(?:extern\s+"C"\s*)?$')
_KERNEL = re.compile(
  r'\b__global__\b(?P<words>[^;{}()]*?)\b(?P<name>\w+)\s*'
  r'\((?P<parameters>[^(){};]*)\)\s*\{'
)


class OperatorError(build_kernel.BuildError):
  """The folder is no operator that the twin can run: why, in one line."""


def read_code(path: pathlib.Path) -> str:
  """Returns a file's text without its comments."""
  return _COMMENT.sub(' ', path.read_text(errors='surrogateescape'))


def list_files(folder: pathlib.Path, *endings: str) -> list[pathlib.Path]:
  return sorted(p for p in folder.rglob('*') if p.suffix in endings)


@dataclasses.dataclass(frozen=True)
class Argument:
  """One of an operator's inputs and outputs.

  Attributes:
    name: in the definition.
    macro: what the names of its macros end in.
    dynamic: it is a list of tensors.
    output: it is one of the outputs.
  """

  name: str
  macro: str
  dynamic: bool
  output: bool


@dataclasses.dataclass(frozen=True)
class Definition:
  """What `op_host` says of an operator.

  Attributes:
    arguments: inputs and outputs, in order.
    chips: it is built for; empty where nothing is said.
    files: kernels' sources that a chip has for itself.
    text: what is said.
  """

  arguments: tuple[Argument, ...]
  chips: tuple[str, ...]
  files: frozenset[str]
  text: str = ''


def define(folder: pathlib.Path) -> Definition:
  """Returns what the definition in an operator's folder says."""
  texts = [read_code(p) for p in list_files(folder, '.cpp', '.cc')]
  text = '\n'.join(t for t in texts if 'OP_ADD' in t)
  arguments: list[Argument] = []
  for kind, name, rest in _ARGUMENT.findall(text):
    macro = name.upper()
    if kind == 'Output' and any(a.macro == macro for a in arguments):
      macro += '_REF'
    if all(a.macro != macro for a in arguments):
      arguments.append(
        Argument(name, macro, 'DYNAMIC' in rest, kind == 'Output')
      )
  return Definition(
    tuple(arguments),
    tuple(_CONFIG.findall(text)),
    frozenset(_FILE.findall(text)),
    text,
  )


@dataclasses.dataclass(frozen=True)
class Signature:
  """A kernel as its source declares it.

  Attributes:
    name: of the function.
    parameters: each as it is written.
    template: types of its template's parameters.
  """

  name: str
  parameters: tuple[str, ...]
  template: tuple[str, ...]

  def position(self, *words: str) -> int | None:
    """Returns which parameter's name has one of the words, or None."""
    for i, name in enumerate(self.names):
      plain = name.lower().replace('_', '')
      if any(word in plain for word in words):
        return i
    return None

  @functools.cached_property
  def names(self) -> tuple[str, ...]:
    return tuple(re.findall(r'\w+', p)[-1] for p in self.parameters)

  @functools.cached_property
  def own(self) -> dict[int, str]:
    """What the twin passes itself, by position."""
    position = {
      'workspace': self.position('workspace', 'userws'),
      'tiling': self.position('tiling'),
    }
    return {i: role for role, i in position.items() if i is not None}

  def complete(
    self, arguments: Sequence[object], own: Mapping[str, object]
  ) -> list[object]:
    """Returns arguments for all parameters.

    Args:
      arguments: without those of `own`.
      own: workspace and tiling.

    Raises:
      OperatorError: it takes another number of them.
    """
    names = [n for i, n in enumerate(self.names) if i not in self.own]
    if len(names) != len(arguments):
      raise OperatorError(
        f'{self.name}: expected {len(names)} arguments ({", ".join(names)}), '
        f'got {len(arguments)}'
      )
    rest = iter(arguments)
    return [
      own[self.own[i]] if i in self.own else next(rest)
      for i in range(len(self.names))
    ]


def list_signatures(path: pathlib.Path) -> Iterator[Signature]:
  text = read_code(path)
  for match in _KERNEL.finditer(text):
    parameters = [' '.join(p.split()) for p in match['parameters'].split(',')]
    before = _TEMPLATE.search(text[: match.start()].rstrip())
    types = before[1].split(',') if before else []
    yield Signature(
      match['name'],
      tuple(p for p in parameters if p),
      tuple(' '.join(t.split('=')[0].split()[:-1]) for t in types),
    )
