"""Makes of an operator's folder what CANN's build makes of it.

An operator of CANN has a folder: `op_host` defines its arguments and the struct
that its kernel takes as tiling, `op_kernel` has the kernel.  CANN's build
writes that struct, the macros of types, formats and the tiling key, and the
words that read the struct: so does this, for the twin.
"""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import pathlib
import re

from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.backend_ascend.twin.tiling import structs as tiling_structs

# Of a number of NumPy's: what a kernel calls it, and CANN.
DTYPES = {
  'float32': ('float', 'DT_FLOAT'),
  'float16': ('half', 'DT_FLOAT16'),
  'bfloat16': ('bfloat16_t', 'DT_BF16'),
  'int8': ('int8_t', 'DT_INT8'),
  'uint8': ('uint8_t', 'DT_UINT8'),
  'int16': ('int16_t', 'DT_INT16'),
  'uint16': ('uint16_t', 'DT_UINT16'),
  'int32': ('int32_t', 'DT_INT32'),
  'uint32': ('uint32_t', 'DT_UINT32'),
  'int64': ('int64_t', 'DT_INT64'),
  'uint64': ('uint64_t', 'DT_UINT64'),
  'float64': ('double', 'DT_DOUBLE'),
  'bool': ('bool', 'DT_BOOL'),
}
# The basic API, the advanced one and the structs of its tilings.
APIS = (
  'kernel_operator.h',
  'include/adv_api/kernel_api.h',
  'kernel_tiling/kernel_tiling.h',
)
# How far above a folder its repository's headers are looked for.
_LEVELS = 3
# What the root of a repository has.
_ROOTS = ('.git', 'LICENSE')
# CANN installs the kernels' folders of all operators beside each other.
_BESIDE = re.compile(r'\.\./(\w+)/(.+)')
# Chips whose cores the twin has.
CHIPS = ('ascend910b', 'ascend910_93')
# Folders of code for others.
_OTHER_CHIPS = ('arch20', 'arch35')
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/', re.S)
_DEFAULT = re.compile(r'REGISTER_TILING_DEFAULT\s*\(\s*([\w:]+)\s*\)')
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
_PRELUDE = """\
// Reads a struct as the scalar unit does.
namespace hpmoe_twin {
// `Whole`: the struct that T is, or is a member of.
template <typename T, typename Whole>
inline void ReadTiling(const __gm__ uint8_t* from, T* to) {
  auto* const bytes = reinterpret_cast<uint8_t*>(to);
  size_t i = 0;
  for (; i + 8 <= sizeof(T); i += 8) {
    const uint64_t word = *reinterpret_cast<const __gm__ uint64_t*>(from + i);
    __builtin_memcpy(bytes + i, &word, 8);
  }
  for (; i < sizeof(T); ++i) bytes[i] = from[i];
}
template <typename T, typename Whole = T>
struct Tiling {
  alignas(8) uint8_t bytes[sizeof(T)];
  explicit Tiling(const __gm__ uint8_t* from) {
    ReadTiling<T, Whole>(from, reinterpret_cast<T*>(bytes));
  }
  T& Value() { return *reinterpret_cast<T*>(bytes); }
};
}  // namespace hpmoe_twin
#define HPMOE_TILING(type, name, at)         \\
  ::hpmoe_twin::Tiling<type> hpmoe_of_##name( \\
      (const __gm__ uint8_t*)(at));          \\
  type& name = hpmoe_of_##name.Value()
#define GET_TILING_DATA_WITH_STRUCT(type, name, at) HPMOE_TILING(type, name, at)
#define GET_TILING_DATA_MEMBER(type, member, name, at)                       \\
  ::hpmoe_twin::Tiling<std::remove_reference_t<decltype(((type*)0)->member)>, \\
                       type>                                                 \\
      hpmoe_of_##name((const __gm__ uint8_t*)(at) +                          \\
                      __builtin_offsetof(type, member));                     \\
  auto& name = hpmoe_of_##name.Value()
#define GET_TILING_DATA_PTR_WITH_STRUCT(type, name, at) \\
  const __gm__ type* name = (const __gm__ type*)(at)
#define COPY_TILING_WITH_STRUCT(type, at, name) \\
  HPMOE_TILING(type, hpmoe_at_##name, at);      \\
  const type* name = &hpmoe_at_##name
#define COPY_TILING_WITH_ARRAY(type, count, at, name)                \\
  using HpmoeArray##name = struct { type values[count]; };           \\
  HPMOE_TILING(HpmoeArray##name, hpmoe_at_##name, at);               \\
  const type(*name)[count] = &hpmoe_at_##name.values
#define __tiling_data_ptr__ const __gm__
#define REGISTER_TILINGDATA_SIZE(type, counter)
#undef REGISTER_TILING_DEFAULT
#define REGISTER_TILING_DEFAULT(type)
#undef REGISTER_TILING_FOR_TILINGKEY
#define REGISTER_TILING_FOR_TILINGKEY(condition, type)
// A template's parameters: of each, how many bits of the key it has, and the
// values of which those bits are the number; without any, they are the value.
namespace hpmoe_twin {
struct Parameter {
  unsigned bits;
  bool numbered;
  unsigned count;
  uint64_t values[64];
};
constexpr Parameter Numbered(unsigned bits,
                             std::initializer_list<uint64_t> values) {
  const uint64_t* at = values.begin();
  Parameter out{bits, true, 0, {}};
  if (*at++ != 1) {  // ranges, and then a list
    for (uint64_t range = *at++; range > 0; --range, at += 2) {
      for (uint64_t x = at[0]; x <= at[1] && out.count < 64; ++x) {
        out.values[out.count++] = x;
      }
    }
  }
  while (at < values.end() && out.count < 64) out.values[out.count++] = *at++;
  return out;
}
template <size_t n>
constexpr uint64_t FromKey(const Parameter (&all)[n], unsigned number,
                           uint64_t key) {
  for (unsigned i = 0; i < number; ++i) key >>= all[i].bits;
  const Parameter& own = all[number];
  key &= (uint64_t{1} << own.bits) - 1;
  return own.numbered ? own.values[key] : key;
}
}  // namespace hpmoe_twin
#define ASCENDC_TPL_KERNEL
#if __has_include("utils/tiling/template_argument.h")
#include "utils/tiling/template_argument.h"
#endif
#ifndef ASCENDC_TPL_UI_LIST
#define ASCENDC_TPL_UI_RANGE 0
#define ASCENDC_TPL_UI_LIST 1
#define ASCENDC_TPL_UI_MIX 2
#endif
#undef ASCENDC_TPL_ARGS_DECL
#undef ASCENDC_TPL_UINT_DECL
#undef ASCENDC_TPL_BOOL_DECL
#undef ASCENDC_TPL_DTYPE_DECL
#undef ASCENDC_TPL_DATATYPE_DECL
#undef ASCENDC_TPL_FORMAT_DECL
#undef ASCENDC_TPL_KERNEL_TYPE_DECL
#undef ASCENDC_TPL_SEL
#define ASCENDC_TPL_ARGS_DECL(op, ...)                               \\
  constexpr ::hpmoe_twin::Parameter hpmoe_parameters_of_##op[] = {   \\
      __VA_ARGS__}
#define ASCENDC_TPL_UINT_DECL(name, bits, ...) \\
  ::hpmoe_twin::Numbered(bits, {__VA_ARGS__})
#define HPMOE_PLAIN(bits) ::hpmoe_twin::Parameter{bits, false, 0, {}}
#define ASCENDC_TPL_BOOL_DECL(name, ...) HPMOE_PLAIN(1)
#define ASCENDC_TPL_DTYPE_DECL(name, ...) HPMOE_PLAIN(8)
#define ASCENDC_TPL_DATATYPE_DECL(name, ...) HPMOE_PLAIN(8)
#define ASCENDC_TPL_FORMAT_DECL(name, ...) HPMOE_PLAIN(8)
#define ASCENDC_TPL_KERNEL_TYPE_DECL(name, ...) HPMOE_PLAIN(8)
#define ASCENDC_TPL_SEL(...)
#ifndef TILING_KEY_IS
#define TILING_KEY_IS(key) (TILING_KEY_VAR == (key))
#endif
#ifndef KERNEL_TASK_TYPE_DEFAULT
#define KERNEL_TASK_TYPE_DEFAULT(type)
#define KERNEL_TASK_TYPE(key, type)
#endif
"""


class OperatorError(build_kernel.BuildError):
  """The folder is no operator that the twin can run: why, in one line."""


def _code(path: pathlib.Path) -> str:
  """Returns a file's text without its comments."""
  return _COMMENT.sub(' ', path.read_text(errors='surrogateescape'))


def _files(folder: pathlib.Path, *endings: str) -> list[pathlib.Path]:
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
  texts = [_code(p) for p in _files(folder, '.cpp', '.cc')]
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


def _signatures(path: pathlib.Path) -> Iterator[Signature]:
  text = _code(path)
  for match in _KERNEL.finditer(text):
    parameters = [' '.join(p.split()) for p in match['parameters'].split(',')]
    before = _TEMPLATE.search(text[: match.start()].rstrip())
    types = before[1].split(',') if before else []
    yield Signature(
      match['name'],
      tuple(p for p in parameters if p),
      tuple(' '.join(t.split('=')[0].split()[:-1]) for t in types),
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
  kernel: Signature
  definition: Definition

  @functools.cached_property
  def code(self) -> str:
    """The kernel's source, without comments."""
    return _code(self.source)

  @functools.cached_property
  def templates(self) -> list[str]:
    """Operators whose template's parameters a header near the kernel lists."""
    paths = _files(self.source.parent, '.h', '.hpp', '.cpp')
    return [name for p in paths for name in _TEMPLATE_OF.findall(_code(p))]

  @functools.cached_property
  def structs(self) -> tiling_structs.Structs:
    host = self.folder / 'op_host'
    paths = _files(host if host.is_dir() else self.folder, '.h', '.hpp', '.cpp')
    if paths:
      paths = [*find_includes(self, paths).files]
    # With the kernels of other operators that it includes, their structs.
    code = find_includes(
      self, [self.source], work=build_kernel.make_cache_folder()
    ).files
    kernels = '\n'.join(
      _code(p)
      for p in dict.fromkeys(
        (*_files(self.source.parent, '.h', '.hpp', '.cpp'), *code)
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
    return tiling_structs.read([_code(p) for p in paths], own)

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
    texts = [self.code, *(_code(p) for p in _files(self.source.parent, '.h'))]
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
    raise OperatorError(
      f'op: expected a folder that holds op_kernel, got {folder}'
    )
  host = folder / 'op_host'
  definition = define(host) if host.is_dir() else define(folder)
  if definition.chips and not {*definition.chips} & {*CHIPS}:
    raise OperatorError(
      f'{folder.name}: expected an operator for {" or ".join(CHIPS)}, got one '
      f'for {", ".join(sorted({*definition.chips}))}'
    )
  paths = [p for p in _files(code, '.cpp', '.cc', '.asc')]
  paths = [p for p in paths if not {*p.parts} & {*_OTHER_CHIPS}] or paths
  own = [p for p in paths if p.stem not in definition.files] or paths
  candidates = [(p, s) for p in own for s in _signatures(p)]
  expected = kernel or folder.name
  matches = [(p, s) for p, s in candidates if s.name == expected]
  # A kernel of this name in a file of this name comes before another chip's.
  own_name = [(p, s) for p, s in matches if p.stem == folder.name]
  sources = own_name or matches or ([] if kernel else candidates)
  if len({s.name for _, s in sources}) != 1:
    names = ', '.join(sorted({s.name for _, s in candidates})) or 'none'
    raise OperatorError(
      f'kernel: expected one of op_kernel: {names}; got {expected}'
    )
  source, signature = sources[0]
  return Folder(folder, source, signature, definition)


@functools.cache
def _headers_below(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
  return tuple(_files(folder, '.h', '.hpp'))


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
    for name in _INCLUDED.findall(_code(path)):
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


def write(
  op: Folder,
  *,
  key: int,
  dtypes: Mapping[str, str],
  formats: Mapping[str, str],
  template: Sequence[str] = (),
  bare: bool = False,
) -> str:
  """Returns the source that is compiled: macros, structs and the kernel.

  Its kernel is `as_built::` the kernel's name.

  Args:
    op: the operator's folder.
    key: TILING_KEY_IS(key) holds.
    dtypes: of arguments, by their macros' ends: names of DTYPES.
    formats: of arguments, likewise: ND, FRACTAL_NZ.
    template: arguments of the kernel's template.
    bare: without headers of Ascend C.

  Raises:
    OperatorError: it is no dtype, or a template's arguments are missing.
  """
  lines = [] if bare else [f'#include "{name}"' for name in APIS]
  if op.kernel.template and not template:
    template = _arguments(op, key)
  lines += ['#undef TILING_KEY_VAR', f'#define TILING_KEY_VAR {key}UL']
  for name, dtype in dtypes.items():
    if dtype not in DTYPES:
      raise OperatorError(
        f'dtypes: expected one of {", ".join(DTYPES)} for {name}, got {dtype}'
      )
    scalar, code = DTYPES[dtype]
    lines += [
      f'#define DTYPE_{name} {scalar}',
      f'#define ORIG_DTYPE_{name} {code}',
      f'#define FORMAT_{name} FORMAT_{formats.get(name, "ND")}',
    ]
  struct = op.struct(key)
  lines += [_PRELUDE, op.structs.text]
  lines.append(
    f'#define GET_TILING_DATA(name, at) HPMOE_TILING({struct}, name, at)'
  )
  lines.append(f'#include "{op.source}"')
  lines.append(_entry(op.kernel, template, bare))
  return '\n'.join((*lines, ''))


def _arguments(op: Folder, key: int) -> list[str]:
  """Returns a template's arguments, which a tiling key has the bits of.

  Raises:
    OperatorError: no ASCENDC_TPL_ARGS_DECL says which.
  """
  names = op.templates
  if not names:
    raise OperatorError(
      f'template: expected arguments of the template {op.kernel.name}, got none'
    )
  stem = op.kernel.name.replace('_', '').lower()
  name = next((n for n in names if n.lower() == stem), names[0])
  table = f'hpmoe_parameters_of_{name}'
  values = [
    f'::hpmoe_twin::FromKey({table}, {i}, {key}ULL)'
    for i in range(len(op.kernel.template))
  ]
  return [
    f'TypeFromId<int({value})>::type'
    if kind in ('typename', 'class')
    else f'({kind})({value})'
    for kind, value in zip(op.kernel.template, values)
  ]


def _entry(kernel: Signature, template: Sequence[str], bare: bool) -> str:
  """Returns what CANN's build calls a kernel by."""
  parameters = ', '.join(kernel.parameters)
  arguments = ', '.join(kernel.names)
  position = kernel.position('workspace', 'userws')
  space = ''
  if position is not None and not bare:
    space = f'  AscendC::SetSysWorkspaceForce({kernel.names[position]});\n'
  name = f'{kernel.name}<{", ".join(template)}>' if template else kernel.name
  return (
    f'namespace as_built {{\n__global__ void {kernel.name}({parameters}) {{\n'
    f'{space}  ::{name}({arguments});\n}}\n}}  // namespace as_built'
  )


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
      f'{op.folder.name}: expected code for {" or ".join(CHIPS)}, got code for '
      f'another chip ({match[0]})'
    )
  return error


def stamp(op: Folder) -> tuple[tuple[str, int], ...]:
  """Returns the files of an operator's folder, and when they were written."""
  paths = _files(op.folder, '.h', '.hpp', '.cpp', '.cc', '.asc')
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
