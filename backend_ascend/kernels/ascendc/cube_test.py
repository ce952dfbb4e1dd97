"""The cube core's tiles, run by the twin: sums, tails and synchronisation."""

import subprocess

from hpmoe.backend_ascend.kernels import twin_testing


def test_tiles_of_every_form_are_right_in_every_mode_and_order(tmp_path):
  # Given tiles at the edges of fractals and stages, chains and empty sums, when
  # one core runs them in a row, in each mode and order of the cube's sums, then
  # every bit is that of a plain loop and nothing is left unordered.
  source = twin_testing.ROOT / 'backend_ascend/kernels/ascendc/cube_test.cc'
  binary = tmp_path / 'cube_test'
  twin_testing.compile_program(source, binary)
  ran = subprocess.run([binary], capture_output=True, text=True)
  assert (ran.returncode, ran.stdout, ran.stderr) == (0, '', '')
