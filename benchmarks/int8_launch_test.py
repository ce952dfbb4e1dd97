"""A launch on codes gives the result of bfloat16, and its times are printed."""

import subprocess
import sys


def test_a_launch_on_codes_is_timed_beside_bfloat16():
  command = [sys.executable, '-m', 'benchmarks.int8_launch']
  process = subprocess.run(
    [*command, '--shapes=S', '--rounds=1'],
    capture_output=True,
    text=True,
    check=True,
  )
  assert process.stdout.startswith('S: bfloat16 ')
