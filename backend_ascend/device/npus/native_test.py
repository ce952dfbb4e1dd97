"""npus.h is C, and its structures match those of native.py."""

import os
import pathlib
import subprocess

from hpmoe.backend_ascend.device.npus import native

FOLDER = pathlib.Path(__file__).resolve().parent
_STRUCTURES = (native.End, native.Hello, native.Options)
_STRUCTURES += (native.Tensor, native.Call)
_CODES = (
  *('SUCCESS', 'INPUT', 'LIBRARY', 'UNREACHABLE', 'RANK_LOST', 'DEADLINE'),
  'INTERNAL',
)


def _program() -> str:
  """Returns C that prints each size, offset and code."""
  lines = []
  for structure in _STRUCTURES:
    name = f'hpmoe_npus_{structure.__name__.lower()}'
    lines.append(f'printf("%zu\\n", sizeof({name}));')
    for field, _ in structure._fields_:
      lines.append(f'printf("%zu\\n", offsetof({name}, {field}));')
  lines += [f'printf("%d\\n", HPMOE_NPUS_{code});' for code in _CODES]
  head = '#include <stddef.h>\n#include <stdio.h>\n#include "npus.h"\n'
  return f'{head}int main(void) {{ {" ".join(lines)} return 0; }}\n'


def test_layouts_and_codes_are_one(tmp_path):
  program = tmp_path / 'layouts'
  program.with_suffix('.c').write_text(_program())
  command = [os.environ.get('CC') or 'cc', '-std=c99', '-Wall', '-Werror']
  files = [f'-I{FOLDER}', program.with_suffix('.c'), '-o', program]
  subprocess.run([*command, *files], check=True)
  output = subprocess.run([program], check=True, capture_output=True, text=True)
  expected = []
  for structure in _STRUCTURES:
    expected.append(native.ctypes.sizeof(structure))
    fields = (getattr(structure, field) for field, _ in structure._fields_)
    expected += [field.offset for field in fields]
  expected += [getattr(native, code) for code in _CODES]
  assert [int(line) for line in output.stdout.split()] == expected
