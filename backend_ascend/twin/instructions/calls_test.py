"""Calls run on the engine as their pages allow, and are refused where not."""

import subprocess

from hpmoe.backend_ascend.twin import twin_testing


def test_each_legal_call_gives_plain_values_each_illegal_one_is_named(tmp_path):
  binary = tmp_path / 'calls_test'
  twin_testing.compile_program(
    twin_testing.TWIN / 'instructions/calls_test.cc', binary
  )

  ran = subprocess.run([binary], capture_output=True, text=True, check=True)
  *wrong, legal, illegal = ran.stdout.splitlines()

  assert not wrong
  assert int(legal.removeprefix('legal: ')) >= 2000
  assert int(illegal.removeprefix('illegal: ')) >= 500
