"""Compiles a program as a device's compiler would: without a host's library."""

import os
import pathlib
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
_FLAGS = (
  *('-std=c++17', '-ffreestanding', '-nostdinc++', '-fno-exceptions'),
  *('-fno-rtti', '-Wall', '-Wextra', '-Werror'),
)


def compile_program(
  source: pathlib.Path, binary: pathlib.Path, tree: pathlib.Path = ROOT
) -> subprocess.CompletedProcess:
  """Compiles one file, whose includes are found first in `tree`, by their path.

  The compiler is that of the environment variable CXX, or `c++`.
  """
  compiler = shlex.split(os.environ.get('CXX') or 'c++')
  return subprocess.run(
    [*compiler, *_FLAGS, f'-I{tree}', f'-I{ROOT}', source, '-o', binary],
    capture_output=True,
    text=True,
  )
