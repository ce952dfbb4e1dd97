"""What host and device share needs nothing of a host: it is freestanding."""

import pytest

from hpmoe.backend_ascend.image import freestanding_testing as freestanding


@pytest.mark.parametrize(
  'name', ['image/worker_testing', 'device/megakernel/tile_budget']
)
def test_headers_compile_freestanding(name, tmp_path):
  # Given a compiler without the standard library's headers, exceptions and
  # type information: the worker loop, and what tiles need of a core's memories.
  source = tmp_path / 'program.cc'
  include = f'#include "backend_ascend/{name}.h"'
  source.write_text(f'{include}\nint main() {{ return 0; }}\n')
  compilation = freestanding.compile_program(source, tmp_path / 'program')
  assert compilation.returncode == 0, compilation.stderr
