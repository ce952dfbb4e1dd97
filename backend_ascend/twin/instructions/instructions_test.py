"""Each call of Ascend C reads, writes and computes what its page says."""

import subprocess

from hpmoe.backend_ascend.twin import twin_testing


def test_calls_compute_and_refuse_what_their_pages_say(tmp_path):
  source = twin_testing.TWIN / 'instructions/instructions_test.cc'
  binary = tmp_path / 'instructions_test'
  # It stands in for the engine itself.
  twin_testing.compile_program(source, binary, parts=('instructions',))

  process = subprocess.run([binary], capture_output=True, text=True, check=True)

  assert process.stdout.splitlines() == ['failures: 0']
