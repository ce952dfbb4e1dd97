"""Runs a kernel in Ascend C from Python: numpy in, numpy out.

kernel = run_kernel.Kernel('add.asc', 'add_custom', include='asc-devkit')
(z,) = kernel(x, y, run_kernel.Empty(x.shape, x.dtype), 1024, blocks=8)[2:]
"""

from collections.abc import Sequence
import dataclasses
import functools
import os
import pathlib
import subprocess
import tempfile

import numpy as np

from hpmoe.backend_ascend.twin.intrinsics import build_kernel

_FOUND = 3


class Found(Exception):
  """The twin has something to say of a launch.

  Attributes:
    findings: what, one line each, with the line of the source.
  """

  def __init__(self, findings: Sequence[str]):
    super().__init__('\n'.join(findings))
    self.findings = tuple(findings)


@dataclasses.dataclass(frozen=True)
class Empty:
  """Device memory that nobody has written: reading it is an error.

  Attributes:
    shape, dtype: of the array that a launch makes of it.
  """

  shape: Sequence[int] | int
  dtype: np.dtype | type | str

  def array(self) -> np.ndarray:
    return np.zeros(self.shape, self.dtype)


# Arrays lie in device memory; a number, or bytes of a struct, goes by value.
# A number of Python is int32 or float32: name another type as numpy does.
Argument = np.ndarray | Empty | np.generic | bytes | int | float


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A kernel of a source file, compiled at its first launch.

  Attributes:
    source: the file; it may have a `main`, which is not called.
    name: of the kernel, as C++ spells it there: `add<float>` too.
    include: headers of Ascend C: asc-devkit, or asc of an installed CANN; '':
      the source brings what it includes.
    flags: of the compiler: -D, -I.
    cores: aiv, aic, mix11 or mix12, where the source does not say it.
  """

  source: str | os.PathLike[str]
  name: str
  include: str | os.PathLike[str] = ''
  flags: tuple[str, ...] = ()
  cores: str = ''

  def __call__(
    self,
    *arguments: Argument,
    blocks: int = 1,
    mode: str = 'late',
    seed: int = 0,
    auto_sync: bool = True,
    polled: Sequence[int] = (),
  ) -> list[np.ndarray]:
    """Launches the kernel on the twin.

    Args:
      *arguments: of the kernel; arrays of any shape and dtype, as they lie.
      blocks: cores, or groups of cores, that run it.
      mode: one of `build_kernel.MODES`.
      seed: of mode 'seeded'.
      auto_sync: orders what CANN's compiler orders by default.
      polled: which arrays, from 0, hold words that cores wait at.

    Returns:
      What each array holds at the end; those given are not written.

    Raises:
      ValueError: it does not compile, or an argument does not fit.
      Found: the twin has found something.
    """
    if mode not in build_kernel.MODES:
      raise ValueError(
        f'mode: expected one of {list(build_kernel.MODES)}, got {mode!r}'
      )
    with tempfile.TemporaryDirectory(prefix='hpmoe-twin-') as folder:
      words, arrays = _write(pathlib.Path(folder), arguments)
      command = build_kernel.command(
        self._built,
        mode=mode,
        seed=seed,
        auto_sync=int(auto_sync),
        cores=self.cores or self._built.cores,
        flags=','.join(map(str, polled)),
      )
      done = subprocess.run(
        [*command, '--', str(blocks), *words], capture_output=True, text=True
      )
      _raise(done)
      return [
        np.fromfile(path, array.dtype).reshape(array.shape)
        for path, array in arrays
      ]

  @functools.cached_property
  def _built(self) -> build_kernel.Kernel:
    source = pathlib.Path(self.source).resolve()
    work = build_kernel.kept()
    program = (
      work / f'{source.stem}-{build_kernel.hashed(source, self.name)}.cc'
    )
    program.write_text(
      f'#define main hpmoe_main_of_the_source\n#line 1 "{source}"\n'
      f'{source.read_text()}\n#undef main\n#include "hpmoe_run_kernel.h"\n'
      'int main(int count, char** words) {\n'
      f'  return hpmoe_twin::RunKernel({self.name}, count, words);\n}}\n'
    )
    return build_kernel.build(
      program,
      build_kernel.headers(str(self.include)) if self.include else None,
      work,
      (f'-I{source.parent}', *self.flags),
    )


def _write(folder: pathlib.Path, arguments: Sequence[Argument]):
  """Returns the words that name arguments in files, and files of arrays."""
  words, arrays = [], []
  for i, argument in enumerate(arguments):
    path = folder / f'{i}.bin'
    kind = 'value'
    if isinstance(argument, bytes):
      path.write_bytes(argument)
    elif isinstance(argument, Empty | np.ndarray):
      empty = isinstance(argument, Empty)
      kind = 'empty' if empty else 'filled'
      array = argument.array() if isinstance(argument, Empty) else argument
      path.write_bytes(array.tobytes())
      arrays.append((path, array))
    else:
      path.write_bytes(_number(i, argument).tobytes())
    words.append(f'{kind}:{path}')
  return words, arrays


def _number(i: int, argument) -> np.generic:
  if isinstance(argument, np.generic):
    return argument
  if isinstance(argument, bool) or not isinstance(argument, int | float):
    raise ValueError(
      f'argument {i}: expected an array, Empty, a number or bytes, got '
      f'{type(argument).__name__}'
    )
  return (np.int32 if isinstance(argument, int) else np.float32)(argument)


def _raise(done: subprocess.CompletedProcess) -> None:
  if done.returncode == 0:
    return
  said = done.stderr.splitlines()
  if done.returncode == _FOUND:
    found = [line.removeprefix('twin: ') for line in said[:-1]]
    raise Found([line for line in found if line])
  raise ValueError('\n'.join(said) or f'exit code {done.returncode}')
