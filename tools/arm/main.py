"""Launches the law's cases on an emulated ARM64 CPU and compares the bits.

`make arm` builds the native part for ARM64, without Python, and runs it under
QEMU's user-mode emulation: every image of `cases.py`, with every instruction
set that the emulated CPU has.  All tensors of a launch must have the bits of a
launch here.  Emulation says nothing about time.

Exit code 0: the same bits.
1: a bit differs.
2: the request is wrong: no compiler or emulator, a build that fails.
3: a launch there did not end as it should.
"""

from collections.abc import Iterable, Mapping, Sequence
import itertools
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags
import numpy as np

from hpmoe.tools.arm import cases as cases_lib

_COMPILER = flags.DEFINE_string(
  'arm_compiler', 'aarch64-linux-gnu-g++', 'for ARM64'
)
_EMULATOR = flags.DEFINE_string(
  'arm_emulator', 'qemu-aarch64 -cpu max', 'and its arguments'
)
_OUT = flags.DEFINE_string('arm_out', 'out/arm', 'where the build is')
_JOBS = flags.DEFINE_integer('arm_jobs', 2, 'compilers at once')

ROOT = pathlib.Path(__file__).resolve().parents[2]
THREADS = (0, 3)  # 0: the serial launch


def require(command: str) -> None:
  """Raises ValueError where a program is not installed."""
  program = shlex.split(command)[0]
  if shutil.which(program) is None:
    raise ValueError(
      f'{program}: expected a cross compiler and an emulator of ARM64. '
      'On Debian: apt-get install g++-aarch64-linux-gnu qemu-user'
    )


def build(compiler: str, folder: pathlib.Path, jobs: int) -> pathlib.Path:
  """Returns `launch_files`, built for ARM64.

  Raises:
    ValueError: it cannot be built.
  """
  beside = str(pathlib.Path(sys.executable).parent)  # cmake and ninja
  path = os.pathsep.join([beside, os.environ.get('PATH', '')])
  configure = (
    f'cmake -S {ROOT} -B {folder} -G Ninja -DHPMOE_FILES=ON '
    f'-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 '
    f'-DCMAKE_CXX_COMPILER={compiler}'
  )
  for command in configure, f'cmake --build {folder} --parallel {jobs}':
    process = subprocess.run(
      shlex.split(command),
      env=dict(os.environ, PATH=path),
      capture_output=True,
      text=True,
    )
    if process.returncode:
      raise ValueError(
        f'{command}: {(process.stdout + process.stderr)[-2000:]}'
      )
  return folder / 'launch_files'


def call(*command: str | os.PathLike[str]) -> str:
  """Returns the output of a program.

  Raises:
    RuntimeError: it failed.
  """
  process = subprocess.run(command, capture_output=True, text=True)
  if process.returncode:
    raise RuntimeError(
      f'exit code {process.returncode}: {process.stderr.strip()[-500:]}'
    )
  return process.stdout


def difference(x86_array: np.ndarray, arm_array: np.ndarray) -> str:
  """Returns how many elements differ in bits, and the first; '' if none."""
  kind = np.dtype(f'u{x86_array.itemsize}')
  other = np.argwhere(x86_array.view(kind) != arm_array.view(kind))
  if not len(other):
    return ''
  index = tuple(int(i) for i in other[0])
  return (
    f'{len(other)} of {x86_array.size} elements, {index}: {x86_array[index]}, '
    f'{arm_array[index]}'
  )


def compare(
  expected: Mapping[str, np.ndarray], actual: Mapping[str, np.ndarray]
) -> list[str]:
  """Returns a line for each tensor of a launch that differs."""
  differences = {
    name: difference(array, actual[name]) if name in actual else 'not made'
    for name, array in expected.items()
  }
  return [
    f'{name}: {difference_text}'
    for name, difference_text in differences.items()
    if difference_text
  ]


def try_cases(
  runner: Sequence[str | os.PathLike[str]],
  isas: Iterable[str],
  group: Sequence[cases_lib.Case],
) -> tuple[int, list[str]]:
  """Returns the number of compared tensors, and a line for each difference."""
  num_compared, lines = 0, []
  with tempfile.TemporaryDirectory() as out:
    folders = [pathlib.Path(out) / str(i) for i in range(len(group))]
    for case, folder in zip(group, folders):
      cases_lib.write(case, folder)
    expected = [cases_lib.run_here(case) for case in group]
    for isa, threads in itertools.product(isas, THREADS):
      call(*runner, isa, str(threads), *folders)
      for i, (case, folder) in enumerate(zip(group, folders)):
        num_compared += len(expected[i])
        lines += [
          f'{isa}, threads {threads}, image {i}: {line}'
          for line in compare(expected[i], cases_lib.read(case, folder))
        ]
  return num_compared, lines


def run() -> int:
  """Returns the exit code."""
  start = time.monotonic()
  for command in _COMPILER.value, _EMULATOR.value:
    require(command)
  binary = build(
    _COMPILER.value, pathlib.Path(_OUT.value).resolve() / 'build', _JOBS.value
  )
  runner = [*shlex.split(_EMULATOR.value), str(binary)]
  isas = call(*runner, 'list').split()
  num_compared, num_different = 0, 0
  for name, group in itertools.groupby(cases_lib.cases(), lambda c: c.name):
    count, lines = try_cases(runner, isas, list(group))
    num_compared, num_different = (
      num_compared + count,
      num_different + len(lines),
    )
    result = f'{len(lines)} DIFFER' if lines else 'the same'
    print('\n  '.join([f'{name:56} {count} tensors: {result}', *lines[:9]]))
    sys.stdout.flush()
  print(
    f'arm: {"NO parity" if num_different else "parity"}: {num_compared} '
    f'comparisons by {", ".join(isas)}, {num_different} tensors differ from '
    'x86-64 '
    f'({time.monotonic() - start:.0f} s, emulated: no timing)'
  )
  return 1 if num_different else 0


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  try:
    sys.exit(run())
  except (ValueError, RuntimeError) as error:
    print(f'arm: {error}', file=sys.stderr)
    sys.exit(2 if isinstance(error, ValueError) else 3)


if __name__ == '__main__':
  app.run(main)
