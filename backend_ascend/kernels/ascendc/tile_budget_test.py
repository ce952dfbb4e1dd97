"""What tiles need of a core's memories: arithmetic that needs no host."""

import subprocess

from hpmoe.backend_ascend.kernels import freestanding_testing as freestanding

_SOURCE = 'backend_ascend/kernels/ascendc/tile_budget_test.cc'


def test_needs_are_those_of_the_stages_and_an_image_is_searched(tmp_path):
  # Given tiles at the edges of every memory, when the budget is asked, then it
  # names the memory that is too small, and the first such task of an image.
  binary = tmp_path / 'tile_budget_test'
  built = freestanding.compile_program(freestanding.ROOT / _SOURCE, binary)
  assert built.returncode == 0, built.stderr
  assert subprocess.run([str(binary)]).returncode == 0
