"""The megakernel's worker loop on the twin; it says what is wrong."""

import pathlib
import subprocess

import pytest

from hpmoe.backend_ascend.twin import twin_testing


@pytest.mark.parametrize('flags', [(), ('-DHPMOE_FLOAT_COUNTS',)])
@pytest.mark.few(1)
def test_every_core_says_how_it_ended(flags, tmp_path):
  # Three ranks whose tasks have no rows, launched twice, and without a fourth
  # rank: every core says that it ended, or which wait took too long, and with
  # which value.
  source = pathlib.Path(__file__).with_suffix('.cc')
  binary = tmp_path / 'megakernel_test'
  twin_testing.compile_program(source, binary, flags=flags)
  ran = subprocess.run([binary], capture_output=True, text=True)
  assert (ran.returncode, ran.stdout, ran.stderr) == (0, '', '')
