"""The worker loop needs nothing of a host: it compiles freestanding."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPILER = os.environ.get('CXX') or shutil.which('c++')


@pytest.mark.skipif(COMPILER is None, reason='no C++ compiler')
def test_loop_compiles_freestanding_and_keeps_its_promises(tmp_path):
  # Given a compiler without the standard library's headers, exceptions and
  # type information, when the loop is compiled, then it runs as a device's.
  binary = tmp_path / 'worker_test'
  subprocess.run(
    [
      COMPILER,
      '-std=c++17',
      '-ffreestanding',
      '-nostdinc++',
      '-fno-exceptions',
      '-fno-rtti',
      '-Wall',
      '-Wextra',
      '-Werror',
      f'-I{ROOT}',
      str(ROOT / 'backend_ascend/kernels/worker_test.cc'),
      '-o',
      str(binary),
    ],
    check=True,
  )
  assert subprocess.run([str(binary)]).returncode == 0
