"""Polls are loads, each time round, however the compiler optimises."""

import os
import pathlib
import shlex
import subprocess

from hpmoe.backend_ascend.twin import twin_testing


def test_a_poll_sees_what_another_core_writes(tmp_path):
  # Ascend C's header is the program's own.
  (tmp_path / 'kernel_operator.h').touch()
  binary = tmp_path / 'read_counter_test'
  source = pathlib.Path(__file__).with_suffix('.cc')
  compiler = shlex.split(os.environ.get('CXX') or 'c++')
  flags = ('-std=c++17', '-O3', f'-I{tmp_path}', f'-I{twin_testing.ROOT}')
  subprocess.run(
    [*compiler, *flags, source, '-pthread', '-o', binary], check=True
  )

  # A load that left the loop never ends.
  subprocess.run([binary], check=True, timeout=60)
