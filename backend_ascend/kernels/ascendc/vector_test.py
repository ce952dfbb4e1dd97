"""The vector cores' tiles, run by the twin: bits, bounds, synchronisation."""

import subprocess

from hpmoe.backend_ascend.kernels import twin_testing


def test_tiles_of_every_kind_are_right_in_every_mode(tmp_path):
  # Given tiles of every kind of a vector core, of both storages, placements and
  # activations, narrower than a block and wider than the unified buffer, when a
  # core runs them in each mode, then every bit is that of a plain loop, nothing
  # beside the tile is written and nothing is left unordered.
  source = twin_testing.ROOT / 'backend_ascend/kernels/ascendc/vector_test.cc'
  binary = tmp_path / 'vector_test'
  twin_testing.compile_program(source, binary)
  ran = subprocess.run([binary], capture_output=True, text=True)
  assert (ran.returncode, ran.stdout, ran.stderr) == (0, '', '')
