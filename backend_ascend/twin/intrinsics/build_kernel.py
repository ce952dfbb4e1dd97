"""Compiles device source against the real headers of Ascend C, for the twin.

The headers are the user's: asc-devkit, or the `asc` folder of an installed
CANN.  compiler_builtins.h declares what the device's compiler knows by itself,
and rewrite.py makes the result call the twin.  It takes clang, which
distinguishes address spaces.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
import concurrent.futures
import dataclasses
import fcntl
import functools
import hashlib
import inspect
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess

from hpmoe.backend_ascend.twin import intrinsics
from hpmoe.backend_ascend.twin.intrinsics import rewrite
from hpmoe.backend_ascend.twin.tiling import structs as tiling_structs

_FOLDER = pathlib.Path(__file__).resolve().parent
_ROOT = _FOLDER.parents[2]
_PRELUDE = 'hpmoe_prelude.h'
_OVERLAY = 'overlay.yaml'
# Orders of instructions that flags do not order.
MODES = ('order', 'seeded', 'late')
# Headers with the whole basic API: from 9.0 on, and before.
HEADERS = (
  'include/basic_api/kernel_basic_intf.h',
  'include/basic_api/kernel_operator_intf.h',
)
CORES = {
  'vector': ('__DAV_VEC__', '__DAV_C220_VEC__'),
  'cube': ('__DAV_CUBE__', '__DAV_C220_CUBE__'),
}
FOLDERS = ('include', 'impl', '', 'include/basic_api', 'impl/basic_api')
# The oldest version that compiled all samples and operators.
_LEAST_CLANG = 14
_CLANGS = ('clang++', *(f'clang++-{n}' for n in range(20, 13, -1)))
_FLAGS = (
  *('-x', 'c++', '-std=c++17', '-w', '-ferror-limit=0', '-ffp-contract=off'),
  *('-Xclang', '-fallow-half-arguments-and-returns'),
  *('-D__NPU_ARCH__=2201', '-D__CCE_AICORE__=220'),
  # The device's compiler allows host pointers in constants of the device.
  *('-Wno-invalid-constexpr', '-fdiagnostics-print-source-range-info'),
  # The form that rewrite.py reads.
  *('-O1', '-Xclang', '-disable-llvm-passes', '-g', '-fPIC'),
)
_AS_HEADER = ('-x', 'c++-header')
_UNDECLARED = re.compile(r"use of undeclared identifier '(\w+)'")
_UNDECLARED_AT = re.compile(
  r"^(.*?):\d+:\d+:\S* error: use of undeclared identifier '(\w+)'", re.M
)
_ERROR = re.compile(r'^(.*?:\d+):\d+:\S* (?:fatal )?error: (.*)$', re.M)
# A pointer of the host's where one of global memory is expected: their compiler
# sees the host's code without address spaces, and literals in global memory.
_FAR = re.compile(
  r'^(?P<file>.*?):\d+:\d+:(?:\{[\d:-]*\})*'
  r'\{(\d+):(\d+)-(\d+):(\d+)\}: error: '
  r'(?:cannot initialize .*? of type|assigning to) (?P<wanted>.*?) '
  r'(?:with an [lr]value of|from incompatible) type (?P<given>.*)$',
  re.M,
)
_NO_CALL = re.compile(
  r'^(?P<file>.*?):\d+:\d+:\{(\d+):(\d+)-(\d+):(\d+)\}: note: candidate .*: '
  r'(?:no known conversion from (?P<given>.*) to (?P<wanted>.*) for'
  r'|cannot pass pointer to generic address space as a pointer to address '
  r"space '1' in) \d+\w+ argument",
  re.M,
)
_GLOBAL = re.compile(r'__gm__|address_space\(1\)')
_HOSTS = re.compile(r"(?!.*(?:__gm__|address_space))'[^']*[*[]")
# A class of the compiler's is assigned to in another memory: from the error to
# the place where that is written, within macros.
_ASSIGNED = re.compile(
  r"^.*: error: no viable overloaded '='$(?:\n(?!.*: note: candidate).*)*", re.M
)
_SIDES = re.compile(
  r'^(/.*?):\d+:\d+:\{(\d+):(\d+)-(\d+):(\d+)\}\{(\d+):(\d+)-(\d+):(\d+)\}: ',
  re.M,
)
# Suffixes of a user's files.
_SOURCE = re.compile(r'\.(?:asc|inl|[hc]\w*)')
# Prefixes of intrinsics that return a value.
_VALUES = ('get_', 'sbitset', 'sff', 'sflbits', 'ld_', 'bcnt', 'clz', 'conv_')
_LAUNCH = re.compile(
  r'((?:\w+::)*\w+\s*(?:<(?:[^;{}()]|\([^;{}()]*\))*?>)?)\s*'
  r'<<<([^;]*?)>>>\s*(?=\()',
  re.S,
)
_TARGETS = re.compile(r'\[(?:host|aicore)(?:, ?(?:host|aicore))*\]')
# Attributes of the device's compiler that compiler_builtins.h has words for.
_ATTRIBUTES = (
  (re.compile(r'\[\[block_local\]\]'), '__BLOCK_LOCAL__'),
  (
    re.compile(r'\[\[bisheng::core_ratio\((\d), ?(\d)\)\]\]'),
    r'__mix__(\1, \2)',
  ),
)
# Cores of one type.
_ALONE = {'aiv': ('vector',), 'aic': ('cube',)}
_TASK_TYPE = re.compile(r'\bKERNEL_TYPE_(\w+)')
TYPES = {
  'AIV_ONLY': 'aiv',
  'AIC_ONLY': 'aic',
  'MIX_AIV_1_0': 'aiv',
  'MIX_AIC_1_0': 'aic',
  'MIX_AIC_1_1': 'mix11',
  'MIX_AIC_1_2': 'mix12',
}


class BuildError(ValueError):
  """The source does not compile for the twin; names the line and why."""


@dataclasses.dataclass(frozen=True)
class Kernel:
  """Source that was compiled for the twin.

  Attributes:
    vector, cube: shared libraries with its code for each type of core.
    cores: the cores that run its kernels, if the source says it once for all;
      else ''.
    begins: whether kernels need not call InitSocState, since the source
      includes no Ascend C.
    lines: file and line of each line of the user's files with code; empty
      without coverage.
  """

  vector: pathlib.Path
  cube: pathlib.Path
  cores: str
  begins: bool
  lines: frozenset[tuple[str, int]] = frozenset()


@functools.cache
def clang() -> str:
  """Returns the compiler's name.

  Raises:
    BuildError: there is none.
  """
  override = os.environ.get('HPMOE_CLANG')
  older = ''
  for name in (override,) if override else _CLANGS:
    if not shutil.which(name):
      continue
    version = subprocess.run(
      [name, '-dumpversion'], capture_output=True, text=True
    ).stdout.strip()
    if version.partition('.')[0].isdigit() and (
      int(version.partition('.')[0]) >= _LEAST_CLANG
    ):
      return name
    older = older or f'{name} {version or "of no version"}'
  raise BuildError(
    f'expected clang++ {_LEAST_CLANG} or later (or HPMOE_CLANG), got '
    f'{older or "none"}'
  )


def headers(folder: str) -> pathlib.Path:
  """Returns a folder of Ascend C's headers.

  Raises:
    BuildError: it is none.
  """
  if not any((pathlib.Path(folder) / header).is_file() for header in HEADERS):
    raise BuildError(
      f'include: expected a folder that holds {" or ".join(HEADERS)}, got '
      f'{folder}'
    )
  return pathlib.Path(folder)


def make_cache_folder() -> pathlib.Path:
  """Makes the folder that keeps compiled kernels, and returns it."""
  cache = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  work = pathlib.Path(f'{cache}/hpmoe/twin').expanduser().resolve()
  work.mkdir(parents=True, exist_ok=True)
  return work


def _run_compiler(arguments: Sequence[str | pathlib.Path]) -> str:
  """Runs a compiler, and returns its errors; '' if it succeeds."""
  process = subprocess.run(arguments, capture_output=True, text=True)
  return process.stderr if process.returncode else ''


def _raise_errors(errors: str, source: pathlib.Path) -> None:
  if not errors:
    return
  # Lines of the copy of the headers are lines of the headers.
  errors = re.sub(r'^\S*/headers-[0-9a-f]{16}/', '', errors, flags=re.M)
  messages = [
    f'{place}: {message}' for place, message in _ERROR.findall(errors)
  ]
  text = '\n'.join(messages[:20]) or errors.strip()
  raise BuildError(f'{source} does not compile:\n{text}')


# Headers of CANN's host code that headers of kernels include.
_TEMPLATES = 'utils/tiling/template_argument.h'
_HOSTS_HEADERS = ('toolchain/slog.h', 'securec.h', 'graph/c_types.h')


def _install(target: pathlib.Path) -> None:
  """Writes the files that an installed CANN has beyond those of asc-devkit.

  `lib/` is another name of the advanced API, and `kernel_tiling.h` has its
  structs of tiling.
  """
  api = target / 'include/adv_api'
  paths = sorted(api.rglob('*tilingdata.h'))
  structs = tiling_structs.read([path.read_text() for path in paths])
  using = '\n'.join(f'using AscendC::tiling::{name};' for name in structs.names)
  tiling = target / 'kernel_tiling/kernel_tiling.h'
  tiling.parent.mkdir(exist_ok=True)
  tiling.write_text(
    '#pragma once\n#include <cstdint>\n'
    f'namespace AscendC {{\nnamespace tiling {{\n{structs.text}\n}}\n}}\n'
    f'{using}\n'
  )
  for name in _HOSTS_HEADERS:
    log = target / name
    log.parent.mkdir(exist_ok=True)
    log.write_text('// Of the host: kernels take nothing of it.\n')
  if (target / f'include/{_TEMPLATES}').is_file():
    header = target / 'ascendc/host_api/tiling/template_argument.h'
    header.parent.mkdir(parents=True)
    header.write_text(f'#include "{_TEMPLATES}"\n')
  for path in sorted(api.rglob('*.h')):
    own = path.relative_to(api)
    # Before 9.0 each header had a folder of its name, and matmul another one.
    interface = f'kernel_operator_{path.stem}_intf.h'
    names_of = [
      own,
      *(pathlib.Path(path.stem, n) for n in (path.name, interface)),
    ]
    if own.parts[0] == 'matmul':
      names_of += [pathlib.Path(path.name), pathlib.Path('matrix', own)]
    if own.stem.startswith('softmax'):
      names_of.append(pathlib.Path('softmax', path.name))
    for below in names_of:
      header = target / 'lib' / below
      if not header.exists():
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(f'#include "include/adv_api/{own}"\n')


def loosen(headers: pathlib.Path, target: pathlib.Path) -> None:
  """Copies headers, with message strings moved out of global memory.

  Only the device's compiler puts string literals there.
  """
  for part in ('include', 'impl'):
    shutil.copytree(headers / part, target / part, dirs_exist_ok=True)
  _install(target)
  literal = re.compile(r'__gm__ (const )?char\b|const __gm__ char\b')
  cast = re.compile(r'reinterpret_cast<(__gm__ const uint8_t\*)>\((\w+)\)')
  for path in target.rglob('*.h'):
    text = path.read_text(errors='surrogateescape')
    new = literal.sub(lambda match: match[0].replace('__gm__ ', ''), text)
    new = cast.sub(r'(\1)(uint64_t)\2', new)
    if new != text:
      path.write_text(new, errors='surrogateescape')


def hash_parts(*parts: object) -> str:
  """Returns a digest that names files made from `parts`."""
  return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _stamp(folder: pathlib.Path) -> list:
  return sorted((str(p), p.stat().st_mtime_ns) for p in folder.rglob('*.h'))


def install(headers: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
  """Copies headers into `work` as CANN installs them; returns the copy."""
  headers = headers.resolve()
  recipe = inspect.getsource(loosen) + inspect.getsource(_install)
  target = work / f'headers-{hash_parts(recipe, _stamp(headers))}'
  if not target.exists():
    part = target.with_suffix('.part')
    shutil.rmtree(part, ignore_errors=True)
    loosen(headers, part)
    part.rename(target)
  return target


@functools.cache
def _names() -> frozenset[str]:
  """Returns the intrinsics that the twin has."""
  process = subprocess.run([program(), 'names'], capture_output=True, text=True)
  return frozenset(process.stdout.split())


def _prelude(names: Collection[str]) -> str:
  """Returns the header that is included before a source."""
  declarations = (
    f'HPMOE_INTRINSIC({"int64_t" if n.startswith(_VALUES) else "void"}, {n})\n'
    for n in sorted(names)
  )
  return f'#include "{_FOLDER}/compiler_builtins.h"\n{"".join(declarations)}'


def replace_launches(text: str) -> str:
  """Returns source with calls in place of `kernel<<<...>>>(...)`.

  The attribute `[host, aicore]` goes: all functions are for host and cores.
  """
  output = ''
  while match := _LAUNCH.search(text) if '<<<' in text else None:
    end = find_closing(text, match.end())
    kernel, arguments = match.groups()
    operands = text[match.end() : end]
    call = f'::hpmoe_twin::Launch({arguments}).With{operands}.On({kernel})'
    rest = text.count('\n', match.start(), end) - call.count('\n')
    output += text[: match.start()] + call + '\n' * rest
    text = text[end:]
  output = _TARGETS.sub('', output + text)
  for attribute, word in _ATTRIBUTES:
    output = attribute.sub(word, output)
  return output


def find_closing(text: str, start: int) -> int:
  """Returns the index behind the match of the next parenthesis from `start`."""
  depth = 0
  for i in range(text.index('(', start), len(text)):
    depth += (text[i] == '(') - (text[i] == ')')
    if depth == 0:
      return i + 1
  return len(text)


@dataclasses.dataclass(frozen=True)
class _Setting:
  """One source, and what all of its compilations share."""

  source: pathlib.Path
  work: pathlib.Path  # of this source
  headers: pathlib.Path | None
  flags: tuple[str, ...]
  lines: set[tuple[str, int]] | None
  types: tuple[str, ...] = tuple(CORES)
  first: tuple[str, ...] = ()  # headers that it includes before all else

  def options(self, core: str) -> list[str]:
    return [
      clang(),
      *_FLAGS,
      *(f'-D{macro}' for macro in CORES[core]),
      *(f'-I{self.work}', f'-I{_ROOT}', f'-I{_FOLDER}/include'),
    ]

  @property
  def public(self) -> list[str]:
    folders = [self.headers / f for f in FOLDERS] if self.headers else []
    return [word for f in folders for word in ('-isystem', str(f))]

  def command(self, core: str, prelude: Sequence[str]) -> list[str]:
    return [
      *self.options(core),
      *prelude,
      *('-ivfsoverlay', f'{self.work}/{_OVERLAY}'),
      *('-iquote', str(self.source.parent)),
      *self.flags,
      *self.public,
      *('-S', '-emit-llvm', str(self.source)),
      *('-o', str(self.text(core))),
    ]

  def text(self, core: str) -> pathlib.Path:
    """Returns the path of the LLVM IR for a type of core."""
    return self.work / f'{core}.ll'

  def precompile(self, core: str) -> list[str]:
    """Returns options that include the prelude and `first`, precompiled once.

    Headers that do not compile yet are included as they are.
    """
    prelude = self.work / _PRELUDE
    plain = ['-include', str(prelude)]
    macros = [f for f in self.flags if f.startswith(('-D', '-U', '-include'))]
    if not self.first:
      return plain
    text = prelude.read_text()
    key = hash_parts(
      text, self.headers, self.first, macros, self.options(core)[:1]
    )
    output = self.work.parent / f'precompiled-{key}-{core}.pch'
    if not output.exists():
      whole = self.work / f'precompiled-{core}.h'
      whole.write_text(
        text + ''.join(f'#include "{name}"\n' for name in self.first)
      )
      part = output.with_suffix('.part')
      options = [*self.options(core), *macros, *self.public]
      if _run_compiler([*options, *_AS_HEADER, str(whole), '-o', str(part)]):
        return plain
      part.rename(output)
    return ['-include-pch', str(output)]


def _included(setting: _Setting) -> set[pathlib.Path]:
  """Returns the user's files that the source may include."""
  own = [pathlib.Path(f[2:]) for f in setting.flags if f.startswith('-I')]
  paths = {*setting.source.parent.glob('*')}
  paths |= {path for folder in own for path in folder.rglob('*')}
  return {
    path.resolve()
    for path in paths
    if _SOURCE.fullmatch(path.suffix) and path.is_file()
  } - {setting.source}


def _rewrite_launches(setting: _Setting) -> dict[pathlib.Path, str]:
  """Returns the user's files that launch kernels, with calls in place."""
  files = {}
  for path in (setting.source, *sorted(_included(setting))):
    text = path.read_text(errors='surrogateescape')
    new = replace_launches(text)
    if new != text:
      files[path] = new
  return files


def _overlay(setting: _Setting, files: Mapping[pathlib.Path, str]) -> None:
  """Makes the compiler read `files` in place of the user's files."""
  roots: list[dict[str, str]] = []
  for path, text in files.items():
    copy = setting.work / f'file{len(roots)}-{path.name}'
    copy.write_text(text, errors='surrogateescape')
    roots.append(
      {'name': str(path), 'type': 'file', 'external-contents': str(copy)}
    )
  (setting.work / _OVERLAY).write_text(
    json.dumps({'version': 0, 'use-external-names': False, 'roots': roots})
  )


# Begin and end, by line and column, of one or two expressions in an error.
_Place = tuple[int, ...]


def _edits(errors: str) -> Iterator[tuple[str, _Place, str]]:
  """Yields file, place and replacement call of the expressions in errors."""
  for match in (*_FAR.finditer(errors), *_NO_CALL.finditer(errors)):
    wanted_type, given_type = match['wanted'], match['given']
    if wanted_type is None or (
      _GLOBAL.search(wanted_type) and _HOSTS.match(given_type)
    ):
      file, *place = match.groups()[:5]
      yield file, tuple(map(int, place)), 'ToDevice'
  for error in _ASSIGNED.findall(errors):
    for match in list(_SIDES.finditer(error))[-1:]:
      file, *place = match.groups()
      yield file, tuple(map(int, place)), 'Assign'


def _insert_call(text: str, place: _Place, call: str) -> str:
  """Returns the text with a call around the expressions of a place."""
  lines = [0, *itertools.accumulate(len(s) + 1 for s in text.split('\n'))]
  offsets = [lines[n - 1] + c - 1 for n, c in zip(place[::2], place[1::2])]
  arguments = text[offsets[0] : offsets[1]]
  if offsets[2:]:
    # Lines keep their numbers and breaks.
    arguments += text[offsets[1] : offsets[3]].replace('=', ',', 1)
  before, after = text[: offsets[0]], text[offsets[-1] :]
  return f'{before}::hpmoe_twin::{call}({arguments}){after}'


def _mend(files: dict[pathlib.Path, str], own, errors: str) -> bool:
  """Edits expressions that errors name; returns whether any was edited."""
  edits = {
    (pathlib.Path(f).resolve(), place, call)
    for f, place, call in _edits(errors)
  }
  edits = {edit for edit in edits if edit[0] in own}
  for path, place, call in sorted(edits, reverse=True):
    text = files.get(path) or path.read_text(errors='surrogateescape')
    files[path] = _insert_call(text, place, call)
  return bool(edits)


def _learn(setting: _Setting, pool: concurrent.futures.Executor) -> None:
  """Compiles to LLVM IR, and declares the intrinsics that a source uses.

  It also declares intrinsics that the twin lacks: a call of one ends the
  launch.

  Raises:
    BuildError: the source has other errors.
  """
  names = {*_names()}
  file = setting.work / _PRELUDE
  lacking_path = setting.work / 'lacking.txt'
  # Intrinsics of headers, learnt once for all sources that include them.
  common = (setting.headers or setting.work) / 'lacking.txt'
  for path in {lacking_path, common}:
    if path.exists():
      names |= {*path.read_text().split()}
  files = _rewrite_launches(setting)
  own = {setting.source, *_included(setting)}
  own_sources = frozenset(own)
  plain = ['-include', str(file)]
  if setting.headers:
    own |= {*setting.headers.rglob('*.h')}
  while True:
    file.write_text(_prelude(names))
    _overlay(setting, files)
    preludes = {core: plain for core in setting.types}
    # Edited headers are not precompiled.
    if not files.keys() - own_sources:
      preludes = dict(
        zip(setting.types, pool.map(setting.precompile, setting.types))
      )
    outputs = list(
      pool.map(
        lambda core, p=preludes: _run_compiler(setting.command(core, p[core])),
        setting.types,
      )
    )
    new = {n for s in outputs for n in _UNDECLARED.findall(s)} - names
    new = {n for n in new if re.fullmatch(r'[a-z_][a-z0-9_]*', n)}
    if not new and not _mend(files, own, ''.join(outputs)):
      for output in outputs:
        _raise_errors(output, setting.source)
      lacking_path.write_text('\n'.join(sorted(names - {*_names()})))
      return
    names |= new
    if setting.headers:
      of_headers = {
        name
        for errors in outputs
        for path_name, name in _UNDECLARED_AT.findall(errors)
        if path_name.startswith(f'{setting.headers}/')
      }
      known_names = common.read_text().split() if common.exists() else []
      common.write_text('\n'.join(sorted({*known_names, *(of_headers & new)})))


def _compile(setting: _Setting, core: str) -> tuple[pathlib.Path, bool]:
  """Returns the code for a type of core, and whether it has no Ascend C."""
  text = setting.text(core)
  module_text = text.read_text(errors='surrogateescape')
  try:
    rewritten = rewrite.rewrite(
      module_text,
      _user(setting),
      (str(_FOLDER), str(setting.work.parent)),
      setting.lines,
    )
  except rewrite.RewriteError as error:
    raise BuildError(str(error)) from None
  text.write_text(rewritten, errors='surrogateescape')
  library = setting.work / f'{core}.so'
  part = library.with_suffix('.part')
  hidden = setting.work / 'hidden.map'
  hidden.write_text('{ local: __start_*; __stop_*; };\n')
  _raise_errors(
    _run_compiler(
      [
        *(clang(), '-w', '-O0', '-fPIC', '-shared', text, '-o', part),
        # Section symbols are no kernels.
        f'-Wl,--version-script={hidden}',
        # run_program has functions of the same names, from our own headers.
        '-Wl,-Bsymbolic',
      ]
    ),
    setting.source,
  )
  # Another process may have the old library open.
  part.rename(library)
  return library, '_ZN7AscendC' not in rewritten


def _user(setting: _Setting) -> tuple[str, ...]:
  """Returns the folders whose lines errors name: the source's and its -I."""
  own = (f[2:] for f in setting.flags if f.startswith('-I'))
  return (str(setting.source.parent), *map(os.path.abspath, own))


def build(
  source: pathlib.Path,
  headers: pathlib.Path | None,
  work: pathlib.Path,
  flags: Sequence[str] = (),
  *,
  coverage: bool = False,
  cores: str = '',
  first: Sequence[str] = (),
) -> Kernel:
  """Compiles one source, as it is.

  Args:
    source: kernels, and the program that launches them, if it has one.
    headers: a folder that holds one of HEADERS; None: the source needs none.
    work: folder that keeps files from one call to the next.
    flags: flags of the compiler: -D, -I.
    coverage: whether lines are counted when they run.
    cores: the cores that run all of its kernels, if known: code for others is
      not compiled.
    first: headers that the source includes before it defines anything: they
      are precompiled once for all sources.

  Raises:
    BuildError: it does not compile; names the lines, names and constructs.
  """
  source = source.resolve()
  text = source.read_text()
  digest = hash_parts(str(source), headers, coverage, cores, *flags)
  own = work / f'{source.stem}-{digest}'
  own.mkdir(parents=True, exist_ok=True)
  with (
    open(work / 'lock', 'w') as lock,
    concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
  ):
    fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time in `work`
    loose = install(headers.resolve(), work) if headers else None
    lines: set[tuple[str, int]] | None = set() if coverage else None
    types = _ALONE.get(cores, tuple(CORES))
    setting = _Setting(
      source, own, loose, tuple(flags), lines, types, tuple(first)
    )
    _learn(setting, pool)
    libraries = dict(
      zip(types, pool.map(lambda c: _compile(setting, c), types))
    )
  task_types = {TYPES.get(kind, '') for kind in _TASK_TYPE.findall(text)}
  cores = cores or (task_types.pop() if len(task_types) == 1 else '')
  code = [library for library, _ in libraries.values()]
  return Kernel(
    code[0],
    code[-1],
    cores,
    all(b for _, b in libraries.values()),
    frozenset(lines or ()),
  )


def program() -> pathlib.Path:
  """Returns the program that runs kernels, which the package's build made.

  Raises:
    BuildError: it was not.
  """
  # An editable install has two folders: the sources' and the built files'.
  for folder in intrinsics.__path__:
    path = pathlib.Path(folder) / 'run_program'
    if path.is_file():
      return path
  raise BuildError(
    'expected run_program beside build_kernel: build the package'
  )


def command(kernel: Kernel, **options: object) -> list[str]:
  """Returns the command that runs a kernel; options are run_program.cc's."""
  defaults = dict(
    vector=kernel.vector,
    cube=kernel.cube,
    cores=kernel.cores,
    begins=int(kernel.begins),
  )
  return [
    str(program()),
    *(f'{k}={v}' for k, v in (defaults | options).items()),
  ]


def lcov(kernel: Kernel, line_counts: str) -> str:
  """Returns coverage by line in the format of lcov.

  Args:
    kernel: built with `coverage`.
    line_counts: the output of a run with option `coverage`.
  """
  counts = dict.fromkeys(kernel.lines, 0)
  for line in line_counts.splitlines():
    count, number, file = line.split(' ', 2)
    counts[file, int(number)] += int(count)
  out = []
  for file in sorted({file for file, _ in counts}):
    lines = sorted((n, c) for (f, n), c in counts.items() if f == file)
    out += ['TN:', f'SF:{file}', *(f'DA:{n},{c}' for n, c in lines)]
    out += [f'LF:{len(lines)}', f'LH:{sum(c > 0 for _, c in lines)}']
    out.append('end_of_record')
  return '\n'.join((*out, ''))
