"""The device's worker loop, run by the twin: events, deadlines, handshake."""

import subprocess

from hpmoe.backend_ascend.kernels import twin_testing


def test_loop_runs_signals_and_gives_up_in_every_mode(tmp_path):
  # Given three ranks whose tasks have no rows, when they are launched twice,
  # with an event that nobody adds to, and without a fourth rank, then every
  # core says that it ended, or which wait took too long, and with which value.
  folder = twin_testing.ROOT / 'backend_ascend/kernels/ascendc'
  binary = tmp_path / 'megakernel_test'
  twin_testing.compile_program(folder / 'megakernel_test.cc', binary)
  ran = subprocess.run([binary], capture_output=True, text=True)
  assert (ran.returncode, ran.stdout, ran.stderr) == (0, '', '')
