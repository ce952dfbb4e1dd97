"""Compiles kernels and programs against the twin of the NPU's cores."""

from collections.abc import Sequence
import concurrent.futures
import fcntl
import functools
import hashlib
import os
import pathlib
import shlex
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TWIN = ROOT / 'backend_ascend/twin'
_FLAGS = ('-std=c++17', '-O1', '-g1', '-ffp-contract=off', '-Wall', '-Werror')
_PARTS = ('engine', 'instructions', 'memory')
# Public headers of Ascend C, if this machine has them.
ASC_DEVKIT = os.environ.get('HPMOE_ASC_DEVKIT', '')
needs_asc_devkit = pytest.mark.skipif(
  not ASC_DEVKIT, reason='HPMOE_ASC_DEVKIT is not set'
)


def needs_clang() -> pytest.MarkDecorator:
  """Returns the mark of tests that need clang: real headers, raw intrinsics."""
  from hpmoe.backend_ascend.twin.intrinsics import build_kernel

  try:
    has_clang = bool(build_kernel.clang())
  except build_kernel.BuildError:
    has_clang = False
  return pytest.mark.skipif(not has_clang, reason='no clang++')


def _compile(
  source: pathlib.Path, output: pathlib.Path, tree: pathlib.Path, *flags: str
):
  compiler = shlex.split(os.environ.get('CXX') or 'c++')
  include = (f'-I{tree}', f'-I{TWIN}/include', f'-I{ROOT}')
  subprocess.run(
    [*compiler, *_FLAGS, *flags, *include, '-c', source, '-o', output],
    check=True,
  )


@functools.cache
def _library() -> pathlib.Path:
  """Returns the folder of the twin's objects.

  They lie in `HPMOE_CACHE`, which all processes of a test run share, and are
  compiled once.
  """
  sources = sorted(p for p in TWIN.rglob('*') if p.suffix in ('.cc', '.h'))
  digest = hashlib.sha256(repr((_FLAGS, os.environ.get('CXX'))).encode())
  for source in sources:
    digest.update(source.read_bytes())
  cache = os.environ.get('HPMOE_CACHE') or tempfile.gettempdir()
  folder = pathlib.Path(cache, f'twin-{digest.hexdigest()[:16]}')
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / 'lock', 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not (folder / 'done').exists():
      _compile_parts(folder)
      (folder / 'done').touch()
  return folder


def _compile_parts(folder: pathlib.Path) -> None:
  """Compiles each part as one file, as CMakeLists.txt does."""
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    list(pool.map(functools.partial(_compile_part, folder), _PARTS))


def _compile_part(folder: pathlib.Path, part: str) -> None:
  sources = sorted(
    s.relative_to(ROOT)
    for s in (TWIN / part).glob('*.cc')
    if not s.stem.endswith(('_test', '_binding', '_module'))
  )
  together = folder / f'{part}.cc'
  together.write_text(''.join(f'#include "{s}"\n' for s in sources))
  _compile(together, together.with_suffix('.o'), ROOT)


def compile_program(
  source: pathlib.Path,
  binary: pathlib.Path,
  tree: pathlib.Path = ROOT,
  parts: Sequence[str] = _PARTS,
  flags: Sequence[str] = (),
) -> None:
  """Compiles one file and links it with the twin.

  Args:
    source: the file with `main`.
    binary: what to write; objects go beside it.
    tree: folder searched first for includes: the project, or a copy of it with
      other device source.
    parts: folders of the twin that are linked with it.
    flags: further flags of the compiler.

  Raises:
    subprocess.CalledProcessError: it does not compile; the errors are printed.
  """
  compiler = shlex.split(os.environ.get('CXX') or 'c++')
  own = binary.with_suffix('.o')
  _compile(source, own, tree, *flags)
  objects = sorted(_library().glob('*.o'))
  twin = [o for o in objects if o.stem in parts]
  subprocess.run([*compiler, own, *twin, '-pthread', '-o', binary], check=True)
