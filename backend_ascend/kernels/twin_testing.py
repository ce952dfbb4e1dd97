"""Compiles kernels and programs against the twin of the NPU's cores."""

from collections.abc import Sequence
import concurrent.futures
import functools
import os
import pathlib
import shlex
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TWIN = ROOT / 'backend_ascend/kernels/ascendc/twin'
_FLAGS = ('-std=c++17', '-O1', '-g1', '-ffp-contract=off', '-Wall', '-Werror')
_PARTS = ('api', 'engine', 'instructions', 'memory')


def _compile(source: pathlib.Path, to: pathlib.Path, tree: pathlib.Path):
  compiler = shlex.split(os.environ.get('CXX') or 'c++')
  include = (f'-I{tree}', f'-I{TWIN}/include', f'-I{ROOT}')
  subprocess.run(
    [*compiler, *_FLAGS, *include, '-c', source, '-o', to], check=True
  )


@functools.cache
def _library() -> tempfile.TemporaryDirectory:
  """Returns the folder of the twin's objects, compiled once a process."""
  folder = tempfile.TemporaryDirectory(prefix='ascend_twin')
  sources = [s for part in _PARTS for s in (TWIN / part).glob('*.cc')]
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    done = [
      pool.submit(
        _compile,
        s,
        pathlib.Path(folder.name, f'{s.parent.name}_{s.stem}.o'),
        ROOT,
      )
      for s in sources
      if not s.stem.endswith(('_test', '_binding', '_module'))
    ]
  for compiled in done:
    compiled.result()
  return folder


def compile_program(
  source: pathlib.Path,
  binary: pathlib.Path,
  tree: pathlib.Path = ROOT,
  parts: Sequence[str] = _PARTS,
) -> None:
  """Compiles one file and links it with the twin.

  Args:
    source: the file with `main`.
    binary: what to write; objects go beside it.
    tree: where its includes are found first: a copy in which device source was
      changed, or the project.
    parts: folders of the twin that are linked with it.

  Raises:
    subprocess.CalledProcessError: the compiler refused; its words are printed.
  """
  compiler = shlex.split(os.environ.get('CXX') or 'c++')
  own = binary.with_suffix('.o')
  _compile(source, own, tree)
  objects = sorted(pathlib.Path(_library().name).glob('*.o'))
  twin = [o for o in objects if o.name.split('_')[0] in parts]
  subprocess.run([*compiler, own, *twin, '-pthread', '-o', binary], check=True)
