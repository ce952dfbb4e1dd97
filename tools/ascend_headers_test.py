"""What the check against Ascend C's headers says, with headers of our own."""

import subprocess
import sys

import pytest

from hpmoe.tools import ascend_headers

_HEADERS = """\
namespace AscendC {
template <typename T>
__aicore__ inline void Move(__gm__ T* to, int count) {
  some_intrinsic((__gm__ void*)to, count);
}
}
"""
# A message goes to global memory, as headers print: a string lies there for
# the device's compiler only.
_PRINTS = """\
__aicore__ inline void Copy(__gm__ const uint8_t* from) { (void)*from; }
__aicore__ inline void Print(__gm__ const char* fmt) {
  Copy(reinterpret_cast<__gm__ const uint8_t*>(fmt));
}
"""
_RIGHT = """\
#include "kernel_operator.h"
__aicore__ inline void Run(__gm__ float* to) { AscendC::Move(to, 3); }
"""
# What is changed in it, and what is found.
_WRONG = {
  'an argument that is not there': (('to, 3', 'to, 3, 4'), 'g++'),
  'a name that is not there': (('AscendC::Move', 'AscendC::Copy'), 'g++'),
  'a lost address space': (('(__gm__ float', '(float'), 'strict'),
  'a lost qualifier': (('__aicore__ inline void Run', 'void Run'), 'strict'),
}


@pytest.fixture
def headers(tmp_path):
  folder = tmp_path / 'asc'
  for part in ('include/basic_api', 'impl/basic_api'):
    (folder / part).mkdir(parents=True)
  (folder / 'include/basic_api/kernel_basic_intf.h').write_text(_HEADERS)
  return folder


def _strict() -> bool:
  return any(c.strict for c in ascend_headers.compilers())


class TestCheck:
  def test_source_that_fits_the_headers_compiles(
    self, headers, tmp_path, capsys
  ):
    # Given an intrinsic that is declared nowhere, when a source that reaches it
    # is checked, then it is declared and nothing is said.
    (tmp_path / 'k.cc').write_text(_RIGHT)
    assert ascend_headers.check(headers, [tmp_path / 'k.cc']) == 0
    assert capsys.readouterr().out.count('compiles, no warning') == (
      4 if _strict() else 2
    )

  def test_headers_of_any_version_may_print(self, headers, tmp_path, capsys):
    (headers / 'impl/basic_api/some_version.h').write_text(_PRINTS)
    (tmp_path / 'k.cc').write_text(f'{_RIGHT}#include "some_version.h"\n')
    found = ascend_headers.check(headers, [tmp_path / 'k.cc'])
    assert found == 0, capsys.readouterr().out

  @pytest.mark.parametrize('change', _WRONG)
  @pytest.mark.few(2)
  def test_source_that_does_not_is_told(
    self, change, headers, tmp_path, capsys
  ):
    (old, new), by = _WRONG[change]
    assert old in _RIGHT
    (tmp_path / 'k.cc').write_text(_RIGHT.replace(old, new))
    found = ascend_headers.check(headers, [tmp_path / 'k.cc'])
    # What only clang++ tells is not seen where it is not installed.
    assert found == int(by == 'g++' or _strict())
    assert ('error:' in capsys.readouterr().out) == bool(found)


@pytest.mark.parametrize('given', [[], ['--include=/nowhere']])
def test_missing_headers_are_a_wrong_request(given):
  ran = subprocess.run(
    [sys.executable, '-m', 'hpmoe.tools.ascend_headers', *given],
    capture_output=True,
    text=True,
  )
  assert ran.returncode == 2
  assert ran.stderr.startswith('--include: expected a folder that holds ')
