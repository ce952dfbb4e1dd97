"""An operator's folder, as CANN's build reads it.

An operator of CANN has a folder: `op_host` defines its arguments and the struct
that its kernel takes as tiling, `op_kernel` has the kernel.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import pathlib
import re

from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.backend_ascend.twin.intrinsics.operators import operator_declaration
from hpmoe.backend_ascend.twin.tiling import structs as tiling_structs

_CHIPS = operator_declaration.CHIPS
# How far above a folder its repository's headers are looked for.
_LEVELS = 3
# What the root of a repository has.
_ROOTS = ('.git', 'LICENSE')
# CANN installs the kernels' folders of all operators beside each other.
_BESIDE = re.compile(r'\.\./(\w+)/(.+)')
# Folders of code for others.
_OTHER_CHIPS = ('arch20', 'arch35')
_DEFAULT = re.compile(r'REGISTER_TILING_DEFAULT\s*\(\s*([\w:]+)\s*\)')
_TASK = re.compile(
  r'\bKERNEL_TASK_TYPE(?:\(\s*(?P<key>\w+)\s*,|_DEFAULT\()\s*'
  r'KERNEL_TYPE_(?P<type>\w+)\s*\)'
)
# Structs that kernels define themselves.
_DEFINED = re.compile(
  r'\b(?:struct|class)\s+(?:alignas\s*\(\w+\)\s*)?(\w+)\s*(?:final\s*)?[{:]'
)
_STRUCT_NAME = re.compile(r'\bBEGIN_TILING_DATA_DEF\s*\(\s*(\w+)\s*\)')
_WORD = re.compile(r'\b[A-Z]\w+')
_KEY = re.compile(r'\bTILING_KEY_IS\s*\(\s*(\w+)\s*\)')
_TEMPLATE_OF = re.compile(r'\bASCENDC_TPL_ARGS_DECL\s*\(\s*(\w+)')
_INCLUDED = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.M)
_CUBE = re.compile(r'\b(?:MatmulImpl|REGIST_MATMUL_OBJ|Mmad|mmad|mad)\b')
# Words of other chips, which no header for these has.
_OTHER_CHIP = re.compile(
  r"'(?:MicroAPI|Reg|Simt|RegTensor|MaskReg|LocalMemBar)'|__simt_|__VEC_SCOPE__"
)


@dataclasses.dataclass(frozen=True)
class Folder:
  """An operator's folder, as CANN's build reads it.

  Attributes:
    folder: it.
    source: the kernel's.
    kernel: its function.
    definition: of the operator, by `op_host`.
  """

  folder: pathlib.Path
  source: pathlib.Path
  kernel: operator_declaration.Signature
  definition: operator_declaration.Definition

  @functools.cached_property
  def code(self) -> str:
    """The kernel's source, without comments."""
    return operator_declaration.read_code(self.source)

  @functools.cached_property
  def templates(self) -> list[str]:
    """Operators whose template's parameters a header near the kernel lists."""
    paths = operator_declaration.list_files(
      self.source.parent, '.h', '.hpp', '.cpp'
    )
    return [
      name
      for p in paths
      for name in _TEMPLATE_OF.findall(operator_declaration.read_code(p))
    ]

  @functools.cached_property
  def structs(self) -> tiling_structs.Structs:
    host = self.folder / 'op_host'
    paths = operator_declaration.list_files(
      host if host.is_dir() else self.folder, '.h', '.hpp', '.cpp'
    )
    if paths:
      paths = [*find_includes(self, paths).files]
    # With the kernels of other operators that it includes, their structs.
    code = find_includes(
      self, [self.source], work=build_kernel.make_cache_folder()
    ).files
    kernels = '\n'.join(
      operator_declaration.read_code(p)
      for p in dict.fromkeys(
        (
          *operator_declaration.list_files(
            self.source.parent, '.h', '.hpp', '.cpp'
          ),
          *code,
        )
      )
    )
    words = frozenset(_WORD.findall(kernels))
    for above in _above(self.folder):
      if not _is_root(above):
        continue
      for name, path in _structs_below(above):
        if name in words and path not in paths:
          paths.append(path)
    own = frozenset(_DEFINED.findall(kernels))
    return tiling_structs.read(
      [operator_declaration.read_code(p) for p in paths], own
    )

  def struct(self, key: int) -> str:
    """Returns the struct that GET_TILING_DATA reads; '': none is known."""
    stem = self.source.stem.replace('_', '').lower()
    by_key = by_name = ''
    for name, struct_name in self.structs.registered.items():
      operator_name, _, number = name.rpartition('_')
      if number == str(key) and operator_name.lower() == stem:
        by_key = struct_name
      elif name.replace('_', '').lower() == stem:
        by_name = struct_name
    default = _DEFAULT.search(self.code)
    if by_key or default or by_name:
      return by_key or (default[1] if default else by_name)
    return self.structs.names[0] if len(self.structs.names) == 1 else ''

  def cores(self, key: int) -> str:
    """Returns which cores run the kernel, as its source says it."""
    kinds = {
      match['key'] or '': build_kernel.TYPES.get(match['type'], '')
      for match in _TASK.finditer(self.code)
    }
    if f'{key}' in kinds or '' in kinds:
      return kinds.get(f'{key}') or kinds['']
    texts = [
      self.code,
      *(
        operator_declaration.read_code(p)
        for p in operator_declaration.list_files(self.source.parent, '.h')
      ),
    ]
    return 'mix12' if any(_CUBE.search(text) for text in texts) else 'aiv'


def read(folder: pathlib.Path, kernel: str = '') -> Folder:
  """Reads an operator's folder.

  Args:
    folder: it holds op_kernel, and op_host where there is one.
    kernel: the name of its function, where there are several.

  Raises:
    OperatorError: it is none, or for other chips.
  """
  folder = folder.resolve()
  code = folder / 'op_kernel'
  if not code.is_dir():
    raise operator_declaration.OperatorError(
      f'op: expected a folder that holds op_kernel, got {folder}'
    )
  host = folder / 'op_host'
  definition = (
    operator_declaration.define(host)
    if host.is_dir()
    else operator_declaration.define(folder)
  )
  if definition.chips and not {*definition.chips} & {*_CHIPS}:
    raise operator_declaration.OperatorError(
      f'{folder.name}: expected an operator for {" or ".join(_CHIPS)}, got one '
      f'for {", ".join(sorted({*definition.chips}))}'
    )
  paths = [
    p for p in operator_declaration.list_files(code, '.cpp', '.cc', '.asc')
  ]
  paths = [p for p in paths if not {*p.parts} & {*_OTHER_CHIPS}] or paths
  own = [p for p in paths if p.stem not in definition.files] or paths
  candidates = [
    (p, s) for p in own for s in operator_declaration.list_signatures(p)
  ]
  expected = kernel or folder.name
  matches = [(p, s) for p, s in candidates if s.name == expected]
  # A kernel of this name in a file of this name comes before another chip's.
  own_name = [(p, s) for p, s in matches if p.stem == folder.name]
  sources = own_name or matches or ([] if kernel else candidates)
  if len({s.name for _, s in sources}) != 1:
    names = ', '.join(sorted({s.name for _, s in candidates})) or 'none'
    raise operator_declaration.OperatorError(
      f'kernel: expected one of op_kernel: {names}; got {expected}'
    )
  source, signature = sources[0]
  return Folder(folder, source, signature, definition)


@functools.cache
def _headers_below(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
  return tuple(operator_declaration.list_files(folder, '.h', '.hpp'))


@functools.cache
def _structs_below(
  folder: pathlib.Path,
) -> tuple[tuple[str, pathlib.Path], ...]:
  """Returns the structs of tiling that headers define, and which does."""
  return tuple(
    (name, path)
    for path in _headers_below(folder)
    for name in _STRUCT_NAME.findall(path.read_text(errors='surrogateescape'))
  )


def _is_root(folder: pathlib.Path) -> bool:
  return any((folder / name).exists() for name in _ROOTS)


def _above(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a folder and those above it in its repository."""
  for above in (folder, *folder.parents[:_LEVELS]):
    if len(above.parts) < 3:
      return
    yield above
    if _is_root(above):
      return


def _find_folder(
  op: Folder, name: str, part: str, work: pathlib.Path | None
) -> pathlib.Path | None:
  """Returns the folder near an operator's from which an include is found."""
  beside = _BESIDE.fullmatch(name)
  end = f'/{beside[1]}/{part}/{beside[2]}' if beside else f'/{name}'
  for above in _above(op.folder):
    headers = [p for p in _headers_below(above) if f'{p}'.endswith(end)]
    if not headers:
      continue
    nearest = min(headers, key=lambda p: (part not in p.parts, len(p.parts)))
    folder = pathlib.Path(str(nearest)[: -len(end)])
    if not beside:
      return folder
    return _lay_out(work, beside[1], folder / beside[1] / part)
  return None


def _lay_out(
  work: pathlib.Path | None, name: str, folder: pathlib.Path
) -> pathlib.Path | None:
  """Returns a folder beside which an operator's lies, as CANN installs it."""
  if work is None:
    return None
  root = work / f'beside-{build_kernel.hash_parts(str(folder.parents[1]))}'
  (root / 'op').mkdir(parents=True, exist_ok=True)
  if not (root / name).exists():
    (root / name).symlink_to(folder, target_is_directory=True)
  return root / 'op'


@dataclasses.dataclass(frozen=True)
class Includes:
  """What sources include of their repository.

  Attributes:
    folders: whose headers they include.
    files: the headers, and the sources.
  """

  folders: tuple[pathlib.Path, ...]
  files: tuple[pathlib.Path, ...]


def find_includes(
  op: Folder,
  sources: Sequence[pathlib.Path],
  flags: Sequence[str] = (),
  public: Sequence[pathlib.Path] = (),
  work: pathlib.Path | None = None,
) -> Includes:
  """Returns what an operator's sources include of its repository.

  Args:
    op: the operator's folder.
    sources: of its kernel, or of its host code.
    flags: of the compiler: its -I come first.
    public: folders of public headers; what they have is not looked for.
    work: where folders may lie that stand for CANN's own.
  """
  part = 'op_host' if 'op_host' in sources[0].parts else 'op_kernel'
  folders_found = [*dict.fromkeys(p.parent for p in sources), op.folder]
  own = [pathlib.Path(f[2:]) for f in flags if f.startswith('-I')]
  files = {path.resolve(): None for path in sources}
  todo = [*files]
  missing: set[str] = set()
  while todo:
    path = todo.pop()
    for name in _INCLUDED.findall(operator_declaration.read_code(path)):
      if not name.endswith(('.h', '.hpp')) or name in missing:
        continue
      near = [path.parent, *own, *folders_found]
      position = next((f / name for f in near if (f / name).is_file()), None)
      resolved = position is not None or any(
        (f / name).is_file() for f in public
      )
      if not resolved and (folder := _find_folder(op, name, part, work)):
        folders_found.append(folder)
        position = folder / name
      elif not resolved:
        missing.add(name)
      if position is not None and position.resolve() not in files:
        files[position.resolve()] = None
        todo.append(position.resolve())
  return Includes(tuple(dict.fromkeys(folders_found)), tuple(files))


def begins(code: pathlib.Path) -> bool:
  """Returns whether a kernel calls nothing that readies its core.

  Operators that use no TPipe run as they are launched.

  Args:
    code: LLVM IR of the kernel.
  """
  text = code.read_text(errors='surrogateescape')
  return not re.search(r'_ZN7AscendC(?:5TPipeC[12]E|12InitSocState)', text)


def reason(error: str, op: Folder) -> str:
  """Returns what to say of a compiler's errors: one line for another chip's."""
  if match := _OTHER_CHIP.search(error):
    return (
      f'{op.folder.name}: expected code for {" or ".join(_CHIPS)}, got code '
      f'for another chip ({match[0]})'
    )
  return error


def stamp(op: Folder) -> tuple[tuple[str, int], ...]:
  """Returns the files of an operator's folder, and when they were written."""
  paths = operator_declaration.list_files(
    op.folder, '.h', '.hpp', '.cpp', '.cc', '.asc'
  )
  return tuple((str(path), path.stat().st_mtime_ns) for path in paths)


def describe(op: Folder) -> str:
  """Returns what an operator takes, a line a thing."""
  rows = [('kernel', f'{op.kernel.name} in {op.source}')]
  chips = ', '.join(dict.fromkeys(op.definition.chips))
  rows += [('chips', chips)] if chips else []
  names = [n for i, n in enumerate(op.kernel.names) if i not in op.kernel.own]
  defined = op.definition.arguments
  for i, name in enumerate(names):
    suffix = f', DTYPE_{defined[i].macro}' if i < len(defined) else ''
    rows.append((f'argument {i}', f'{name}{suffix}'))
  rows += [('tiling', name) for name in op.structs.names]
  keys = dict.fromkeys(_KEY.findall(op.code))
  rows += [('keys', ', '.join(keys))] if keys else []
  return '\n'.join(f'{role}: {text}' for role, text in rows)
