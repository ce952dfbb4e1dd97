"""Each call of Ascend C reads, writes and computes what its page says."""

import os
import shlex
import subprocess

from hpmoe.backend_ascend.kernels import freestanding_testing as freestanding

_HERE = freestanding.ROOT / 'backend_ascend/kernels/ascendc/twin/instructions'


def test_calls_compute_and_refuse_what_their_pages_say(tmp_path):
  binary = tmp_path / 'instructions_test'
  compiler = shlex.split(os.environ.get('CXX') or 'c++')
  flags = ('-std=c++17', '-Wall', '-Wextra', '-Werror', '-O1')
  flags += ('-ffp-contract=off', f'-I{freestanding.ROOT}')
  sources = sorted(_HERE.glob('*.cc'))
  subprocess.run([*compiler, *flags, *sources, '-o', binary], check=True)

  found = subprocess.run([binary], capture_output=True, text=True, check=True)

  assert found.stdout.splitlines() == ['failures: 0']
