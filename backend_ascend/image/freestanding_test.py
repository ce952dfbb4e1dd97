"""What host and device share needs nothing of a host: it runs freestanding."""

import subprocess

import pytest

from hpmoe.backend_ascend.image import freestanding_testing as freestanding


@pytest.mark.parametrize(
  'name', ['image/worker', 'device/megakernel/tile_budget']
)
def test_programs_compile_freestanding_and_find_nothing(name, tmp_path):
  # Given a compiler without the standard library's headers, exceptions and
  # type information: the worker loop, and what tiles need of a core's memories.
  source = freestanding.ROOT / f'backend_ascend/{name}_test.cc'
  compilation = freestanding.compile_program(source, tmp_path / 'program')
  assert compilation.returncode == 0, compilation.stderr
  assert subprocess.run([tmp_path / 'program']).returncode == 0
