"""The C++ program is right, and a bug planted in it is found."""

import pathlib
import subprocess

import pytest

from hpmoe.parity_tests.candidates import external_program
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts

SOURCE = pathlib.Path(__file__).with_name('moe.cc')
BUGS = {
  'right': ('', ''),
  'weight': ('y[d] += weight * out[d]', 'y[d] += out[d]'),
  'silu': ('gate / (1.0f', '1.001f * gate / (1.0f'),
}


@pytest.mark.parametrize('bug', BUGS)
@pytest.mark.few(1)
def test_a_program_of_cpp_is_judged(tmp_path, bug):
  text = SOURCE.read_text()
  assert BUGS[bug][0] in text
  (tmp_path / 'moe.cc').write_text(text.replace(*BUGS[bug]))
  program = tmp_path / 'moe'
  subprocess.run(
    ['c++', '-O1', '-std=c++17', tmp_path / 'moe.cc', '-o', program], check=True
  )

  report = check.run(
    check.Request(
      case_lib.Case(preset='tiny', ranks=2),
      external_program.Program(f'{program} {{case}} {{out}}'),
    )
  )

  expected = verdicts.PASS if bug == 'right' else verdicts.FAIL
  assert report.verdict == expected
  failing = {r.lane for r in report.results if r.verdict == verdicts.FAIL}
  assert ('exact' in failing) == (bug == 'weight')
