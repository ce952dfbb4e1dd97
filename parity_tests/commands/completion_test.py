"""The completions of `hpmoe` command lines in bash."""

import shutil
import subprocess

import pytest

from hpmoe.parity_tests.commands import completion
from hpmoe.parity_tests.commands import main

_SHELL = shutil.which('bash')


@pytest.mark.skipif(_SHELL is None, reason='no bash')
@pytest.mark.parametrize(
  ('line', 'completions'),
  [
    ('hpmoe inv', ['invariance']),
    ('hpmoe check --top', ['--top_k=']),
    ('hpmoe check --dtype=bf', ['bf16', 'bfloat16']),
    ('hpmoe reproduce --pre', []),
    ('hpmoe check --tiny --rac', ['--races']),
  ],
)
def test_a_line_is_completed(line, completions):
  words = line.replace('=', ' = ').split()
  ask = (
    f'{completion.script(main.COMMANDS)}\n'
    f'COMP_LINE={line!r} COMP_POINT={len(line)}\n'
    f'COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1}\n'
    '_hpmoe; echo "${COMPREPLY[@]}"'
  )

  process = subprocess.run(
    [_SHELL, '-c', ask], capture_output=True, text=True, check=True
  )

  assert process.stdout.split() == completions
