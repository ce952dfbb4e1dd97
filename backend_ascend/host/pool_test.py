"""Memory of launches is one launch's at a time, whoever asks for it."""

import os
import shlex
import subprocess

from hpmoe.backend_ascend.image import freestanding_testing as freestanding

_SOURCE = f'{freestanding.ROOT}/backend_ascend/host/pool_test.cc'


def test_threads_take_from_one_pool_without_a_race(tmp_path):
  # Given eight threads, when each takes and returns a thousand times, then
  # nothing is lost, and ThreadSanitizer sees no two accesses without a lock.
  binary = tmp_path / 'pool_test'
  compiler = shlex.split(os.environ.get('CXX') or 'c++')
  flags = ('-std=c++17', '-O1', '-pthread', '-fsanitize=thread')
  include = f'-I{freestanding.ROOT}'
  subprocess.run(
    [*compiler, *flags, include, _SOURCE, '-o', binary], check=True
  )

  ran = subprocess.run([binary], capture_output=True, text=True)

  assert (ran.returncode, ran.stdout) == (0, '8000 turns, few\n'), ran.stderr
