"""What the check against Ascend C's headers says, with headers of our own."""

import subprocess
import sys

import pytest

from hpmoe.backend_ascend.twin import twin_testing
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
# What is changed in it.
_WRONG = {
  'an argument that is not there': ('to, 3', 'to, 3, 4'),
  'a name that is not there': ('AscendC::Move', 'AscendC::Copy'),
  'a lost address space': ('(__gm__ float', '(float'),
  'a lost qualifier': ('__aicore__ inline void Run', 'void Run'),
}


@pytest.fixture
def headers(tmp_path):
  folder = tmp_path / 'asc'
  for part in ('include/basic_api', 'impl/basic_api'):
    (folder / part).mkdir(parents=True)
  (folder / 'include/basic_api/kernel_basic_intf.h').write_text(_HEADERS)
  (folder / 'impl/basic_api/some_version.h').write_text(_PRINTS)
  return folder


def test_the_sources_of_the_command_exist():
  sources = [ascend_headers.ROOT / s for s in ascend_headers.SOURCES]
  assert [s for s in sources if not s.is_file()] == []


@twin_testing.needs_clang()
class TestCheck:
  @pytest.mark.parametrize('extra_lines', ['', '#include "some_version.h"\n'])
  @pytest.mark.few(1)
  def test_source_that_fits_the_headers_compiles(
    self, extra_lines, headers, tmp_path, capsys
  ):
    # Given an intrinsic that is declared nowhere, and headers that print, when
    # a source that reaches them is checked, then nothing is said.
    (tmp_path / 'k.cc').write_text(_RIGHT + extra_lines)
    assert ascend_headers.check(headers, [tmp_path / 'k.cc']) == 0
    assert capsys.readouterr().out.count('compiles, no warning') == 2

  @pytest.mark.parametrize('change', _WRONG)
  @pytest.mark.few(1)
  def test_source_that_does_not_is_told(
    self, change, headers, tmp_path, capsys
  ):
    old, new = _WRONG[change]
    assert old in _RIGHT
    (tmp_path / 'k.cc').write_text(_RIGHT.replace(old, new))
    assert ascend_headers.check(headers, [tmp_path / 'k.cc']) == 1
    assert 'error:' in capsys.readouterr().out


@pytest.mark.parametrize('flags', [[], ['--include=/nowhere']])
def test_missing_headers_are_a_wrong_request(flags):
  ran = subprocess.run(
    [sys.executable, '-m', 'hpmoe.tools.ascend_headers', *flags],
    capture_output=True,
    text=True,
  )
  assert ran.returncode == 2
  assert ran.stderr.startswith('--include: expected a folder that holds ')
