"""Compiles device source against the real headers of Ascend C, for the twin.

The headers are the user's: asc-devkit, or the `asc` folder of an installed
CANN.  device.h stands for what their compiler knows by itself, rewrite.py has
the result call the twin.  Clang alone can: it tells address spaces apart.
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

_HERE = pathlib.Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]
_PRELUDE = 'hpmoe_prelude.h'
_OVERLAY = 'overlay.yaml'
# Orders of what flags leave open.
MODES = ('order', 'seeded', 'late')
# All of the basic API, from 9.0 on and before.
HEADERS = (
  'include/basic_api/kernel_basic_intf.h',
  'include/basic_api/kernel_operator_intf.h',
)
CORES = {
  'vector': ('__DAV_VEC__', '__DAV_C220_VEC__'),
  'cube': ('__DAV_CUBE__', '__DAV_C220_CUBE__'),
}
FOLDERS = ('include', 'impl', '', 'include/basic_api', 'impl/basic_api')
# The least that has compiled all samples and operators.
_LEAST_CLANG = 14
_CLANGS = ('clang++', *(f'clang++-{n}' for n in range(20, 13, -1)))
_FLAGS = (
  *('-x', 'c++', '-std=c++17', '-w', '-ferror-limit=0', '-ffp-contract=off'),
  *('-Xclang', '-fallow-half-arguments-and-returns'),
  *('-D__NPU_ARCH__=2201', '-D__CCE_AICORE__=220'),
  # Their compiler has pointers of the host's in constants of the device's.
  *('-Wno-invalid-constexpr', '-fdiagnostics-print-source-range-info'),
  # What rewrite.py reads.
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
# How the names of a user's files end.
_SOURCE = re.compile(r'\.(?:asc|inl|[hc]\w*)')
# What begins the names of intrinsics that give a value.
_VALUES = ('get_', 'sbitset', 'sff', 'sflbits', 'ld_', 'bcnt', 'clz', 'conv_')
_LAUNCH = re.compile(
  r'((?:\w+::)*\w+\s*(?:<(?:[^;{}()]|\([^;{}()]*\))*?>)?)\s*'
  r'<<<([^;]*?)>>>\s*(?=\()',
  re.S,
)
_WHERE = re.compile(r'\[(?:host|aicore)(?:, ?(?:host|aicore))*\]')
# Attributes of the device's compiler that device.h has words for.
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


class Refused(ValueError):
  """The source does not compile for the twin: what, and in which line."""


@dataclasses.dataclass(frozen=True)
class Kernel:
  """Source that was compiled for the twin.

  Attributes:
    vector, cube: its code for each type of core, shared libraries.
    cores: which cores run its kernels, where their source says so once for all;
      empty otherwise.
    begins: its kernels need not call InitSocState: it includes no Ascend C.
    lines: where the user's files have code, file and line; empty where none
      were asked for.
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
    Refused: there is none.
  """
  named = os.environ.get('HPMOE_CLANG')
  older = ''
  for name in (named,) if named else _CLANGS:
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
  raise Refused(
    f'expected clang++ {_LEAST_CLANG} or later (or HPMOE_CLANG), got '
    f'{older or "none"}'
  )


def headers(folder: str) -> pathlib.Path:
  """Returns a folder of Ascend C's headers.

  Raises:
    Refused: it is none.
  """
  if not any((pathlib.Path(folder) / header).is_file() for header in HEADERS):
    raise Refused(
      f'include: expected a folder that holds {" or ".join(HEADERS)}, got '
      f'{folder}'
    )
  return pathlib.Path(folder)


def kept() -> pathlib.Path:
  """Returns the folder where what was compiled stays."""
  cache = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  work = pathlib.Path(f'{cache}/hpmoe/twin').expanduser().resolve()
  work.mkdir(parents=True, exist_ok=True)
  return work


def _said(arguments: Sequence[str | pathlib.Path]) -> str:
  """Runs a compiler; returns its errors."""
  done = subprocess.run(arguments, capture_output=True, text=True)
  return done.stderr if done.returncode else ''


def _refuse(said: str, source: pathlib.Path) -> None:
  if not said:
    return
  # Lines of the copy of the headers are lines of the headers.
  said = re.sub(r'^\S*/headers-[0-9a-f]{16}/', '', said, flags=re.M)
  told = [f'{at}: {what}' for at, what in _ERROR.findall(said)]
  shown = '\n'.join(told[:20]) or said.strip()
  raise Refused(f'{source} does not compile:\n{shown}')


# Headers of CANN's host code that headers of kernels include.
_HOSTS_HEADERS = ('toolchain/slog.h', 'securec.h')


def _install(to: pathlib.Path) -> None:
  """Writes what an installed CANN has beside the headers of asc-devkit.

  `lib/` is another name of the advanced API, and `kernel_tiling.h` is made of
  its structs of tiling.
  """
  api = to / 'include/adv_api'
  paths = sorted(api.rglob('*tilingdata.h'))
  structs = tiling_structs.read([path.read_text() for path in paths])
  using = '\n'.join(f'using AscendC::tiling::{name};' for name in structs.names)
  tiling = to / 'kernel_tiling/kernel_tiling.h'
  tiling.parent.mkdir(exist_ok=True)
  tiling.write_text(
    '#pragma once\n#include <cstdint>\n'
    f'namespace AscendC {{\nnamespace tiling {{\n{structs.text}\n}}\n}}\n'
    f'{using}\n'
  )
  for name in _HOSTS_HEADERS:
    log = to / name
    log.parent.mkdir(exist_ok=True)
    log.write_text('// Of the host: kernels take nothing of it.\n')
  for path in sorted(api.rglob('*.h')):
    own = path.relative_to(api)
    # Before 9.0 each had a folder of its own name, matrix/matmul one more.
    names_of = [own, pathlib.Path(path.stem, path.name)]
    if own.parts[0] == 'matmul':
      names_of += [pathlib.Path(path.name), pathlib.Path('matrix', own)]
    if own.stem.startswith('softmax'):
      names_of.append(pathlib.Path('softmax', path.name))
    for below in names_of:
      header = to / 'lib' / below
      if not header.exists():
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(f'#include "include/adv_api/{own}"\n')


def loosen(headers: pathlib.Path, to: pathlib.Path) -> None:
  """Copies headers, their message strings out of global memory.

  String literals lie there for the device's compiler only.
  """
  for part in ('include', 'impl'):
    shutil.copytree(headers / part, to / part, dirs_exist_ok=True)
  _install(to)
  literal = re.compile(r'__gm__ (const )?char\b|const __gm__ char\b')
  cast = re.compile(r'reinterpret_cast<(__gm__ const uint8_t\*)>\((\w+)\)')
  for path in to.rglob('*.h'):
    text = path.read_text(errors='surrogateescape')
    new = literal.sub(lambda found: found[0].replace('__gm__ ', ''), text)
    new = cast.sub(r'(\1)(uint64_t)\2', new)
    if new != text:
      path.write_text(new, errors='surrogateescape')


def hashed(*parts: object) -> str:
  """Returns what names files of `parts`."""
  return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _stamp(folder: pathlib.Path) -> list:
  return sorted((str(p), p.stat().st_mtime_ns) for p in folder.rglob('*.h'))


def install(headers: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
  """Returns the copy of headers in `work`, as an installed CANN has them."""
  headers = headers.resolve()
  how = inspect.getsource(loosen) + inspect.getsource(_install)
  to = work / f'headers-{hashed(how, _stamp(headers))}'
  if not to.exists():
    part = to.with_suffix('.part')
    shutil.rmtree(part, ignore_errors=True)
    loosen(headers, part)
    part.rename(to)
  return to


@functools.cache
def _names() -> frozenset[str]:
  """Returns the intrinsics that the twin has."""
  said = subprocess.run([program(), 'names'], capture_output=True, text=True)
  return frozenset(said.stdout.split())


def _prelude(names: Collection[str]) -> str:
  """Returns what a source is compiled after."""
  declared = (
    f'HPMOE_INTRINSIC({"int64_t" if n.startswith(_VALUES) else "void"}, {n})\n'
    for n in sorted(names)
  )
  return f'#include "{_HERE}/device.h"\n{"".join(declared)}'


def launches(text: str) -> str:
  """Returns source whose `kernel<<<...>>>(...)` are calls.

  Functions are of the host and of all cores, `[host, aicore]` or not.
  """
  done = ''
  while found := _LAUNCH.search(text) if '<<<' in text else None:
    end = closing(text, found.end())
    kernel, how = found.groups()
    call = (
      f'::hpmoe_twin::Launch({how}).With{text[found.end() : end]}.On({kernel})'
    )
    rest = text.count('\n', found.start(), end) - call.count('\n')
    done += text[: found.start()] + call + '\n' * rest
    text = text[end:]
  done = _WHERE.sub('', done + text)
  for attribute, word in _ATTRIBUTES:
    done = attribute.sub(word, done)
  return done


def closing(text: str, at: int) -> int:
  """Returns one past the parenthesis that closes the next one from `at` on."""
  depth = 0
  for i in range(text.index('(', at), len(text)):
    depth += (text[i] == '(') - (text[i] == ')')
    if depth == 0:
      return i + 1
  return len(text)


@dataclasses.dataclass(frozen=True)
class _Setting:
  """One source as all of its compilations see it."""

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
      *(f'-I{self.work}', f'-I{_ROOT}', f'-I{_HERE}/include'),
    ]

  @property
  def public(self) -> list[str]:
    theirs = [self.headers / f for f in FOLDERS] if self.headers else []
    return [word for f in theirs for word in ('-isystem', str(f))]

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
    """Where the LLVM IR of a type of core lies."""
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
    key = hashed(text, self.headers, self.first, macros, self.options(core)[:1])
    output = self.work.parent / f'precompiled-{key}-{core}.pch'
    if not output.exists():
      whole = self.work / f'precompiled-{core}.h'
      whole.write_text(
        text + ''.join(f'#include "{name}"\n' for name in self.first)
      )
      part = output.with_suffix('.part')
      options = [*self.options(core), *macros, *self.public]
      if _said([*options, *_AS_HEADER, str(whole), '-o', str(part)]):
        return plain
      part.rename(output)
    return ['-include-pch', str(output)]


def _included(setting: _Setting) -> set[pathlib.Path]:
  """Returns the user's files that the source may include."""
  own = [pathlib.Path(f[2:]) for f in setting.flags if f.startswith('-I')]
  seen = {*setting.source.parent.glob('*')}
  seen |= {path for folder in own for path in folder.rglob('*')}
  return {
    path.resolve()
    for path in seen
    if _SOURCE.fullmatch(path.suffix) and path.is_file()
  } - {setting.source}


def _changed(setting: _Setting) -> dict[pathlib.Path, str]:
  """Returns the user's files that launch, as they are compiled."""
  files = {}
  for path in (setting.source, *sorted(_included(setting))):
    text = path.read_text(errors='surrogateescape')
    new = launches(text)
    if new != text:
      files[path] = new
  return files


def _overlay(setting: _Setting, files: Mapping[pathlib.Path, str]) -> None:
  """Has the user's files be compiled as `files` has them."""
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


# What errors name: lines and columns, from and to, of one or two expressions.
_Place = tuple[int, ...]


def _edits(said: str) -> Iterator[tuple[str, _Place, str]]:
  """Yields file and place of what errors name, and the call for it."""
  for found in (*_FAR.finditer(said), *_NO_CALL.finditer(said)):
    wanted, given = found['wanted'], found['given']
    if wanted is None or (_GLOBAL.search(wanted) and _HOSTS.match(given)):
      file, *place = found.groups()[:5]
      yield file, tuple(map(int, place)), 'ToDevice'
  for error in _ASSIGNED.findall(said):
    for found in list(_SIDES.finditer(error))[-1:]:
      file, *place = found.groups()
      yield file, tuple(map(int, place)), 'Assign'


def _called(text: str, place: _Place, call: str) -> str:
  """Returns a text in which what a place names are a call's arguments."""
  lines = [0, *itertools.accumulate(len(s) + 1 for s in text.split('\n'))]
  at = [lines[n - 1] + c - 1 for n, c in zip(place[::2], place[1::2])]
  given = text[at[0] : at[1]]
  if at[2:]:
    # Lines keep their numbers, and go on where they did.
    given += text[at[1] : at[3]].replace('=', ',', 1)
  return f'{text[: at[0]]}::hpmoe_twin::{call}({given}){text[at[-1] :]}'


def _mended(files: dict[pathlib.Path, str], own, said: str) -> bool:
  """Writes what errors name as the device needs it; returns whether it did."""
  edits = {
    (pathlib.Path(f).resolve(), at, call) for f, at, call in _edits(said)
  }
  edits = {edit for edit in edits if edit[0] in own}
  for path, place, call in sorted(edits, reverse=True):
    text = files.get(path) or path.read_text(errors='surrogateescape')
    files[path] = _called(text, place, call)
  return bool(edits)


def _learn(setting: _Setting, pool: concurrent.futures.Executor) -> None:
  """Compiles to LLVM IR; declares the intrinsics that a source reaches.

  Says what else is wrong.  Those that the twin lacks are declared, too: who
  calls one ends the launch.
  """
  names = {*_names()}
  file = setting.work / _PRELUDE
  known = setting.work / 'lacking.txt'
  # Of headers, whatever includes them: found once for all sources.
  common = (setting.headers or setting.work) / 'lacking.txt'
  for path in {known, common}:
    if path.exists():
      names |= {*path.read_text().split()}
  files = _changed(setting)
  own = {setting.source, *_included(setting)}
  own_sources = frozenset(own)
  plain = ['-include', str(file)]
  if setting.headers:
    own |= {*setting.headers.rglob('*.h')}
  while True:
    file.write_text(_prelude(names))
    _overlay(setting, files)
    preludes = {core: plain for core in setting.types}
    # Of headers that are changed nothing is precompiled.
    if not files.keys() - own_sources:
      preludes = dict(
        zip(setting.types, pool.map(setting.precompile, setting.types))
      )
    said = list(
      pool.map(
        lambda core, p=preludes: _said(setting.command(core, p[core])),
        setting.types,
      )
    )
    new = {n for s in said for n in _UNDECLARED.findall(s)} - names
    new = {n for n in new if re.fullmatch(r'[a-z_][a-z0-9_]*', n)}
    if not new and not _mended(files, own, ''.join(said)):
      for one in said:
        _refuse(one, setting.source)
      known.write_text('\n'.join(sorted(names - {*_names()})))
      return
    names |= new
    if setting.headers:
      of_headers = {
        name
        for errors in said
        for path_name, name in _UNDECLARED_AT.findall(errors)
        if path_name.startswith(f'{setting.headers}/')
      }
      known_names = common.read_text().split() if common.exists() else []
      common.write_text('\n'.join(sorted({*known_names, *(of_headers & new)})))


def _compile(setting: _Setting, core: str) -> tuple[pathlib.Path, bool]:
  """Returns a type of core's code, and whether it is without Ascend C."""
  text = setting.text(core)
  written = text.read_text(errors='surrogateescape')
  try:
    changed = rewrite.rewrite(
      written,
      _user(setting),
      (str(_HERE), str(setting.work.parent)),
      setting.lines,
    )
  except rewrite.Refused as error:
    raise Refused(str(error)) from None
  text.write_text(changed, errors='surrogateescape')
  library = setting.work / f'{core}.so'
  part = library.with_suffix('.part')
  hidden = setting.work / 'hidden.map'
  hidden.write_text('{ local: __start_*; __stop_*; };\n')
  _refuse(
    _said(
      [
        *(clang(), '-w', '-O0', '-fPIC', '-shared', text, '-o', part),
        # A section's name is no kernel's.
        f'-Wl,--version-script={hidden}',
        # Who runs it has functions of these names over our own headers.
        '-Wl,-Bsymbolic',
      ]
    ),
    setting.source,
  )
  # Another process may have it open.
  part.rename(library)
  return library, '_ZN7AscendC' not in changed


def _user(setting: _Setting) -> tuple[str, ...]:
  """Folders whose lines errors name: the source's, and its own -I."""
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
    headers: a folder that holds one of HEADERS; None: source brings its own.
    work: where files may lie, from one call to the next.
    flags: of the compiler: -D, -I.
    coverage: its lines are counted as they run.
    cores: which run all of its kernels, where that is known: code for others is
      not compiled.
    first: headers that the source includes before it defines anything: they
      are compiled once for all sources.

  Raises:
    Refused: it does not compile; which names and constructs, in which lines.
  """
  source = source.resolve()
  text = source.read_text()
  own = (
    work
    / f'{source.stem}-{hashed(str(source), headers, coverage, cores, *flags)}'
  )
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
    made = dict(zip(types, pool.map(lambda c: _compile(setting, c), types)))
  said = {TYPES.get(kind, '') for kind in _TASK_TYPE.findall(text)}
  cores = cores or (said.pop() if len(said) == 1 else '')
  code = [library for library, _ in made.values()]
  return Kernel(
    code[0],
    code[-1],
    cores,
    all(b for _, b in made.values()),
    frozenset(lines or ()),
  )


def program() -> pathlib.Path:
  """Returns the program that runs kernels: it was built with the package.

  Raises:
    Refused: it was not.
  """
  # An editable install has two folders: the sources' and the built files'.
  for folder in intrinsics.__path__:
    path = pathlib.Path(folder) / 'run_program'
    if path.is_file():
      return path
  raise Refused('expected run_program beside build_kernel: build the package')


def command(kernel: Kernel, **options: object) -> list[str]:
  """Returns what runs a kernel's program; options are run_program.cc's."""
  given = dict(
    vector=kernel.vector,
    cube=kernel.cube,
    cores=kernel.cores,
    begins=int(kernel.begins),
  )
  return [str(program()), *(f'{k}={v}' for k, v in (given | options).items())]


def lcov(kernel: Kernel, counted: str) -> str:
  """Returns coverage by line, as lcov and its readers have it.

  Args:
    kernel: built with `coverage`.
    counted: what a run with option `coverage` wrote.
  """
  counts = dict.fromkeys(kernel.lines, 0)
  for line in counted.splitlines():
    count, number, file = line.split(' ', 2)
    counts[file, int(number)] += int(count)
  out = []
  for file in sorted({file for file, _ in counts}):
    lines = sorted((n, c) for (f, n), c in counts.items() if f == file)
    out += ['TN:', f'SF:{file}', *(f'DA:{n},{c}' for n, c in lines)]
    out += [f'LF:{len(lines)}', f'LH:{sum(c > 0 for _, c in lines)}']
    out.append('end_of_record')
  return '\n'.join((*out, ''))
