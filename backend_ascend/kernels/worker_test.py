"""The worker loop needs nothing of a host: it compiles freestanding."""

import subprocess

from hpmoe.backend_ascend.kernels import freestanding_testing as freestanding


def test_loop_compiles_freestanding_and_keeps_its_promises(tmp_path):
  # Given a compiler without the standard library's headers, exceptions and
  # type information, when the loop is compiled, then it runs as a device's.
  binary = tmp_path / 'worker_test'
  source = freestanding.ROOT / 'backend_ascend/kernels/worker_test.cc'
  built = freestanding.compile_program(source, binary)
  assert built.returncode == 0, built.stderr
  assert subprocess.run([str(binary)]).returncode == 0
