"""An operator's own tiling function, run on this machine.

CANN calls it before a launch: of shapes, dtypes and attributes it computes the
tiling key, the number of blocks, the workspace and the struct that the kernel
reads.  Here it is compiled with public sources, metadef and opbase, and the
public headers of Ascend C, and run in a process of its own.
"""

from collections.abc import Mapping, Sequence
import concurrent.futures
import dataclasses
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import numpy as np

from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.backend_ascend.twin.intrinsics.operators import operator_folder

_FOLDER = pathlib.Path(__file__).resolve().parents[2] / 'tiling'
_ROOT = _FOLDER.parents[2]
# Of CANN's libraries for hosts, whose sources are not public.
_ABSENT = (
  'securec.h',
  'slog.h',
  'dlog_pub.h',
  'base/err_msg.h',
  'base/dlog_pub.h',
  'toolchain/slog.h',
  'toolchain/dlog_pub.h',
  'platform/platform_info.h',
  'platform/platform_infos_def.h',
  'platform/platform_info_def.h',
  'platform/soc_spec.h',
  'external/platform/platform_info.h',
  'graph/operator.h',
)
# What an installed CANN has by another name.
_NAMES = {
  'platform/platform_ascendc.h': 'utils/tiling/platform/platform_ascendc.h',
  'tiling/platform/platform_ascendc.h': (
    'utils/tiling/platform/platform_ascendc.h'
  ),
  'tiling/tiling_api.h': 'adv_api/tiling_api.h',
  'tiling/template_argument.h': 'utils/tiling/template_argument.h',
  'op_log.h': 'op_common/log/log.h',
}
# Folders of headers, of metadef, asc-devkit and opbase.
_FOLDERS = (
  *('', 'base', 'inc', 'pkg_inc', 'pkg_inc/common'),
  *('inc/external', 'inc/external/asc', 'inc/external/base'),
  *('inc/external/ge_common', 'include', 'include/utils', 'include/adv_api'),
  *('include/utils/tiling/platform', 'impl', 'impl/utils/tiling/platform'),
  *('include/op_common', 'include/op_common/op_host', 'pkg_inc/op_common'),
)
# Sources that tiling functions call.
_LIBRARY = (
  'base/asc/tilingdata_base_impl.cc',
  'base/asc/opdef/*.cc',
  'base/context_builder/*.cc',
  'base/runtime/*.cc',
  'base/type/*.cc',
  'base/utils/type_utils_impl.cc',
  'base/any_value.cc',
  'impl/adv_api/detail/host_log.cpp',
  'impl/adv_api/tiling/**/*.cpp',
  'impl/utils/tiling/**/*.cpp',
  'src/op_common/**/*.cpp',
)
_MACROS = ('-DNO_OPERATOR_IMPL', '-DOP_TILING_LIB')
_FLAGS = ('-std=c++17', '-w', '-O0', '-fPIC', '-DHPMOE_HOST')
# Host code that computes no tiling, or for other chips.
_OTHER = re.compile(
  r'infershape|infer_shape|fusion|_proto\b|(?:^|/)(?:arch35|op_api|config|'
  r'op_graph|tests?)(?:/|$)'
)
_ATTRIBUTE = re.compile(r'(?<![\w.])(?:this->)Attr\s*\(\s*"(\w+)"\s*\)([^;]*)')
_KIND = re.compile(
  r'\.(ListListInt|ListInt|ListFloat|ListBool|Int|Float|Bool|String)\s*\(([^)]*)\)'
)
_TYPE = re.compile(r'\bOP_ADD\s*\(\s*(\w+)')
_ERROR = re.compile(r'^(.*?:\d+):\d+: (?:fatal )?error: (.*)$', re.M)
# Numbers of CANN's dtypes.
_DTYPES = {
  'float32': 0, 'float16': 1, 'int8': 2, 'int32': 3, 'uint8': 4, 'int16': 6,
  'uint16': 7, 'uint32': 8, 'int64': 9, 'uint64': 10, 'float64': 11,
  'bool': 12, 'bfloat16': 27,
}  # fmt: skip
_FORMAT_ND = 2


class HostError(build_kernel.BuildError):
  """The operator's tiling function does not compile or does not run: why."""


@dataclasses.dataclass(frozen=True)
class Tiling:
  """What a tiling function computes.

  Attributes:
    key: the tiling key.
    blocks: cores, or groups of cores, that run the kernel.
    workspace: its bytes, with those that CANN keeps for itself.
    data: the struct that the kernel reads.
  """

  key: int
  blocks: int
  workspace: int
  data: bytes


@dataclasses.dataclass(frozen=True)
class Attribute:
  """One of an operator's attributes: its name, kind and default in C++."""

  name: str
  kind: str
  default: str


def read_attributes(text: str) -> list[Attribute]:
  """Returns the attributes that an operator's definition has, in order."""
  attributes: list[Attribute] = []
  for name, rest in _ATTRIBUTE.findall(text):
    if all(a.name != name for a in attributes) and (kind := _KIND.search(rest)):
      attributes.append(Attribute(name, kind[1], kind[2].strip()))
  return attributes


def _value(attribute: Attribute, values: Mapping[str, object]) -> object:
  """Returns an attribute's value: the caller's, or its default."""
  if attribute.name in values:
    return values[attribute.name]
  text = attribute.default.strip('{}').strip()
  if attribute.kind == 'String':
    return text.strip('"')
  items = [item.strip().rstrip('fF') for item in text.split(',') if item]
  numbers = list(map(_number, items))
  return numbers if attribute.kind.startswith('List') else (numbers or [0])[0]


def _number(text: str) -> float:
  """Returns a default's number; 0 for a constant of the operator's own."""
  try:
    return float({'true': '1', 'false': '0'}.get(text, text))
  except ValueError:
    return 0.0


def _line(attribute: Attribute, value: object) -> str:
  """Returns an attribute as run_tiling.cc reads it."""
  if attribute.kind == 'String':
    return f'String "{value}"'
  whole = attribute.kind in ('Int', 'Bool', 'ListInt', 'ListBool')
  numbers = np.ravel(np.asarray(value)).tolist()
  words = [str(int(n)) if whole else repr(float(n)) for n in numbers]
  if attribute.kind.startswith('List'):
    words.insert(0, str(len(words)))
  return ' '.join((attribute.kind, *words))


def describe_attributes(
  attributes: Sequence[Attribute], values: Mapping[str, object]
) -> list[str]:
  """Returns attributes as run_tiling.cc reads them, a line each.

  Args:
    attributes: of the definition.
    values: by name; one without a value has its default.

  Raises:
    HostError: there is no such attribute.
  """
  names = [a.name for a in attributes]
  unknown = [name for name in values if name not in names]
  if unknown:
    raise HostError(
      f'attributes: expected of {", ".join(names)}, got {", ".join(unknown)}'
    )
  return [_line(a, _value(a, values)) for a in attributes]


def _tensor(array, path: pathlib.Path) -> str:
  """Returns a tensor as run_tiling.cc reads it; its bytes are in a file."""
  shape = array.shape if isinstance(array.shape, Sequence) else (array.shape,)
  name = '-'
  if isinstance(array, np.ndarray):
    path.write_bytes(array.tobytes())
    name = str(path)
  dims = ' '.join(map(str, (len(shape), *shape)))
  return f'{_DTYPES[np.dtype(array.dtype).name]} {_FORMAT_ND} {dims} {name}'


def _group(arguments: Sequence, folder: pathlib.Path, first: int) -> list[str]:
  """Returns arguments, each none, one or more tensors."""
  lines = [str(len(arguments))]
  for i, argument in enumerate(arguments, first):
    several = isinstance(argument, list | tuple)
    tensors = [] if argument is None else argument if several else [argument]
    lines.append(str(len(tensors)))
    lines += [
      _tensor(t, folder / f'{i}-{j}.bin') for j, t in enumerate(tensors)
    ]
  return lines


@dataclasses.dataclass(frozen=True)
class Public:
  """Public sources: metadef, opbase, and asc-devkit.

  Attributes:
    roots: of their checkouts.
    ascendc: asc-devkit's headers, as an installed CANN has them.
    work: where what is compiled may lie.
  """

  roots: tuple[pathlib.Path, ...]
  ascendc: pathlib.Path
  work: pathlib.Path

  @property
  def folders(self) -> list[pathlib.Path]:
    own = [r / f for r in self.roots for f in _FOLDERS if (r / f).is_dir()]
    return [self.stubs, _ROOT, *own, self.ascendc]

  @property
  def stubs(self) -> pathlib.Path:
    return self.work / 'absent'

  def options(self) -> list[str]:
    return [
      _compiler(),
      *_FLAGS,
      *_MACROS,
      *(f'-I{folder}' for folder in self.folders),
    ]

  def library(self) -> pathlib.Path:
    """Returns the program that runs tiling functions, built once.

    Raises:
      HostError: it does not compile.
    """
    own = [_FOLDER / name for name in ('run_tiling.cc', 'host_library.h')]
    texts = [path.read_text() for path in own]
    key = build_kernel.hash_parts(*texts, _ABSENT, _NAMES)
    output = self.work / f'run_tiling-{key}'
    if output.exists():
      return output
    for name in (*_ABSENT, *_NAMES):
      path, other = self.stubs / name, _NAMES.get(name, str(own[1]))
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(f'#include "{other}"\n')
    sources = [
      path
      for root in self.roots
      for pattern in _LIBRARY
      for path in sorted(root.glob(pattern))
      if 'hccl' not in path.parts
    ]
    options, folder = self.options(), self.work / 'objects'
    objects, _ = compile_sources(sources, options, folder, own[1:])
    main, errors = compile_sources(own[:1], options, self.work, own[1:])
    if not main:
      raise HostError(f'host: metadef does not compile: {errors}')
    shared = self.work / 'libhost.so'
    _link([*objects, '-shared', '-o', shared])
    _link(
      [
        *main,
        shared,
        f'-Wl,-rpath,{self.work}',
        '-rdynamic',
        '-ldl',
        '-Wl,--allow-shlib-undefined',
        '-o',
        output,
      ]
    )
    return output


def _compiler() -> str:
  """Returns what compiles hosts' code: CANN's own is GCC."""
  return os.environ.get('CXX') or shutil.which('g++') or build_kernel.clang()


def _link(words: Sequence[object]) -> None:
  command = [_compiler(), '-Wl,-z,lazy', *map(str, words)]
  process = subprocess.run(command, capture_output=True, text=True)
  if process.returncode:
    raise HostError(f'host: {process.stderr.splitlines()[-1]}')


def compile_sources(
  sources: Sequence[pathlib.Path],
  options: Sequence[str],
  work: pathlib.Path,
  headers: Sequence[pathlib.Path] = (),
) -> tuple[list[pathlib.Path], str]:
  """Returns objects of the sources that compile, and the first error.

  Args:
    sources: C++ files.
    options: the compiler and its flags.
    work: where objects are kept; each is made once.
    headers: files that sources include; if one changes, objects are made anew.
  """
  work.mkdir(parents=True, exist_ok=True)
  stamps = [(str(path), path.stat().st_mtime_ns) for path in headers]

  def compile_one(source: pathlib.Path) -> tuple[pathlib.Path, str]:
    stamp = source.stat().st_mtime_ns
    key = build_kernel.hash_parts(str(source), stamp, stamps, options)
    output = work / f'{source.stem}-{key}.o'
    if output.exists():
      return output, ''
    process = subprocess.run(
      [*options, '-c', str(source), '-o', str(output)],
      capture_output=True,
      text=True,
    )
    errors = _ERROR.findall(process.stderr)
    return output, ': '.join(errors[0]) if errors else ''

  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    pairs = list(pool.map(compile_one, sources))
  first = next((error for _, error in pairs if error), '')
  return [o for o, _ in pairs if o.exists()], first


def _sources(op: operator_folder.Folder) -> list[pathlib.Path]:
  """Returns an operator's host sources that may compute its tiling."""
  host = op.folder / 'op_host'
  return [
    path
    for path in sorted(host.rglob('*.cpp'))
    if not _OTHER.search(str(path.relative_to(host)))
  ]


def _companions(files: Sequence[pathlib.Path]) -> list[pathlib.Path]:
  """Returns sources that implement headers, beside them."""
  headers = (path for path in files if path.suffix in ('.h', '.hpp'))
  sources = (path.with_suffix('.cpp') for path in headers)
  return [path for path in sources if path.is_file()]


def run(
  op: operator_folder.Folder,
  arguments: Sequence,
  attributes: Mapping[str, object],
  public: Public,
) -> Tiling:
  """Runs an operator's tiling function.

  Args:
    op: the operator's folder.
    arguments: inputs and outputs as its definition has them: arrays, what has a
      shape and a dtype, lists of such, or None.
    attributes: by name; one without a value has its default.
    public: sources to compile with.

  Raises:
    HostError: it does not compile, or fails: its first error.
  """
  public.work.mkdir(parents=True, exist_ok=True)
  with open(public.work / 'lock', 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    program = public.library()
    library, error = _build(op, public)
  text = op.definition.text
  # Macros of a repository's own may define it.
  camel = ''.join(word.capitalize() for word in op.folder.name.split('_'))
  names = _TYPE.findall(text) or [camel]
  lines = describe_attributes(read_attributes(text), attributes)
  inputs = sum(not a.output for a in op.definition.arguments)
  if not op.definition.arguments:
    inputs = _count_inputs(arguments)
  with tempfile.TemporaryDirectory(prefix='hpmoe-tiling-') as folder:
    work = pathlib.Path(folder)
    lines = [
      f'"{names[0]}"',
      *_group(arguments[:inputs], work, 0),
      *_group(arguments[inputs:], work, inputs),
      str(len(lines)),
      *lines,
    ]
    process = subprocess.run(
      [program, library], input='\n'.join(lines), capture_output=True, text=True
    )
  words = dict(
    line.split(' ', 1) for line in process.stdout.splitlines() if ' ' in line
  )
  if process.returncode or 'tiling' not in words:
    lines = process.stderr.strip().splitlines() or [f'{process.returncode}']
    raise HostError(
      f'{op.folder.name}: its tiling: {lines[-1][:200]}'
      + (f' ({error[:200]})' if error else '')
    )
  return Tiling(
    int(words['key']),
    int(words['blocks']),
    int(words['workspace']),
    bytes.fromhex(words['tiling']),
  )


def _count_inputs(arguments: Sequence) -> int:
  """Returns how many arguments come before those that hold no values."""
  count = len(arguments)
  while count:
    last = arguments[count - 1]
    last = last[0] if isinstance(last, list | tuple) and last else last
    if last is None or isinstance(last, np.ndarray):
      break
    count -= 1
  return count


def _build(
  op: operator_folder.Folder, public: Public
) -> tuple[pathlib.Path, str]:
  """Returns the operator's host code as a library, and a first error."""
  sources = _sources(op)
  if not sources:
    raise HostError(f'{op.folder.name}: expected sources in op_host, got none')
  near = operator_folder.find_includes(op, sources, (), public.folders)
  options = [*public.options(), *(f'-I{folder}' for folder in near.folders)]
  todo = [*dict.fromkeys((*sources, *_companions(near.files)))]
  objects, error = compile_sources(
    todo, options, public.work / op.folder.name, near.files
  )
  key = build_kernel.hash_parts(*map(str, objects))
  output = public.work / op.folder.name / f'{key}.so'
  if not output.exists():
    _link([*objects, '-shared', '-o', output])
  return output, error
