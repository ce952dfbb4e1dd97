"""Programs of the device's cores, run by the twin; each says what is wrong."""

import subprocess

import pytest

from hpmoe.backend_ascend.kernels import twin_testing


@pytest.mark.parametrize(
  'name',
  [
    # Tiles at the edges of fractals and stages, chains and empty sums, in each
    # mode and order of the cube's sums: every bit is that of a plain loop and
    # nothing is left unordered.
    'cube_test',
    # Tiles of every kind of a vector core, of both storages, placements and
    # activations, narrower than a block and wider than the unified buffer:
    # likewise, and nothing beside the tile is written.
    'vector_test',
    # Three ranks whose tasks have no rows, launched twice, with an event that
    # nobody adds to, and without a fourth rank: every core says that it ended,
    # or which wait took too long, and with which value.
    'megakernel_test',
  ],
)
def test_says_nothing(name, tmp_path):
  folder = twin_testing.ROOT / 'backend_ascend/kernels/ascendc'
  binary = tmp_path / name
  twin_testing.compile_program(folder / f'{name}.cc', binary)
  ran = subprocess.run([binary], capture_output=True, text=True)
  assert (ran.returncode, ran.stdout, ran.stderr) == (0, '', '')
