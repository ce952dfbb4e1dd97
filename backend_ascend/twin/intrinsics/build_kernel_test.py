"""Kernels over the compiler's intrinsics run on the twin, unmodified."""

import functools
import pathlib
import re
import shutil
import subprocess

import pytest

from hpmoe.backend_ascend.twin import twin_testing
from hpmoe.backend_ascend.twin.intrinsics import build_kernel

_EXAMPLES = pathlib.Path(__file__).parents[1] / 'examples'
_ADD = 'examples/01_simd_cpp_api/00_introduction/01_add/add/add.asc'


needs_clang = twin_testing.needs_clang()
# A kernel that several tests run is compiled once: no test changes a file.
_build = functools.cache(build_kernel.build)


def _run(kernel, **options):
  return subprocess.run(
    build_kernel.command(kernel, **options), capture_output=True, text=True
  )


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """Runs raw_vector_add with some text of its source replaced."""
  folders = tmp_path_factory.mktemp('twin')
  work = tmp_path_factory.mktemp('work')

  def build_and_run(old='', new='', mode='order', **options):
    text = (_EXAMPLES / 'raw_vector_add.asc').read_text()
    assert old in text
    new_text = text.replace(old, new, 1)
    folder = folders / build_kernel.hash_parts(new_text)
    source = folder / 'raw_vector_add.asc'
    if not folder.exists():
      folder.mkdir()
      shutil.copy(_EXAMPLES / 'raw_block.h', folder)
      source.write_text(new_text)
    process = _run(_build(source, None, work), mode=mode, **options)
    line = text[: text.index(old)].count('\n') + 1
    return process.returncode, process.stdout, process.stderr, line

  return build_and_run


@pytest.fixture(scope='module')
def work(tmp_path_factory):
  return tmp_path_factory.mktemp('real')


@pytest.mark.slow
@needs_clang
def test_headers_are_compiled_once_and_each_core_keeps_its_variables(tmp_path):
  header = tmp_path / 'first.h'
  header.write_text(
    '#pragma once\n__BLOCK_LOCAL__ inline int count;\n'
    '#define ENTRY(name, value) extern "C" __vector__ void name'
    '(__gm__ int* z) { count += value; *z = count; '
    'dcci(z, SINGLE_CACHE_LINE, CACHELINE_OUT); pipe_barrier(PIPE_ALL); }\n'
  )
  sums = []
  for value in (3, 5):
    source = tmp_path / f'add{value}.cc'
    source.write_text(
      f'#include "{header}"\nENTRY(add, {value})\n'
      '#include "hpmoe_run_kernel.h"\nint main(int n, char** words) {\n'
      '  return hpmoe_twin::RunKernel(add, n, words);\n}\n'
    )
    kernel = build_kernel.build(
      source, None, tmp_path, cores='aiv', first=(str(header),)
    )
    out = tmp_path / 'z.bin'
    out.write_bytes(bytes(4))
    process = subprocess.run(
      [*build_kernel.command(kernel), '--', '1', f'filled:{out}'],
      capture_output=True,
      text=True,
    )
    assert process.returncode == 0, process.stderr
    sums.append(int.from_bytes(out.read_bytes(), 'little'))
  assert sums == [3, 5]
  assert len([*tmp_path.glob('precompiled-*.pch')]) == 1


@needs_clang
class TestRawVectorAdd:
  @pytest.mark.parametrize('mode', build_kernel.MODES)
  @pytest.mark.few(1)
  def test_is_right_as_it_stands(self, run, mode):
    code, output, errors, _ = run(mode=mode)

    assert (code, output) == (0, 'the sum\n')
    assert errors == 'twin: launches: 1, errors: 0\n'

  # What CANN's queues do: the wait for the first is still to come.
  _SET = 'set_flag(PIPE_V, PIPE_MTE3, EVENT_ID0);'
  _TWICE = _SET, _SET + _SET + 'wait_flag(PIPE_V, PIPE_MTE3, EVENT_ID0);'
  _DCCI = 'dcci(w + block_idx * 16, SINGLE_CACHE_LINE, CACHELINE_OUT);'

  @pytest.mark.parametrize(
    'change, missing',
    [
      (('wait_flag(PIPE_MTE2, PIPE_V, EVENT_ID0);',), 'MTE2_V'),
      (('set_flag(PIPE_MTE2, PIPE_V, EVENT_ID0);',), 'MTE2_V'),
      (('wait_flag(PIPE_V, PIPE_MTE3, EVENT_ID0);',), 'V_MTE3'),
      ((_SET,), 'V_MTE3'),
      # A load through a pointer, which no intrinsic does.
      (('wait_flag(PIPE_V, PIPE_S, EVENT_ID1);',), 'V_S'),
      ((_DCCI,), 'DataCacheCleanAndInvalid'),
      (('pipe_barrier(PIPE_ALL);',), 'PIPE_ALL'),
      ((_SET, _SET * 2), 'SetFlag<V_MTE3>(0) is left set for the next kernel'),
    ],
  )
  @pytest.mark.few(1)
  def test_names_what_is_wrong(self, run, change, missing):
    code, _, errors, _ = run(*change)

    assert code == 3
    assert missing in errors

  def test_does_not_report_what_the_compiler_orders(self, run):
    code, _, _, _ = run(
      'wait_flag(PIPE_V, PIPE_S, EVENT_ID1);',
      'wait_flag(PIPE_V, PIPE_S, EVENT_ID1); sum.Set(0, sum.Get(0));',
      auto_sync=1,
    )

    assert code == 0

  @pytest.mark.parametrize('mode', build_kernel.MODES)
  @pytest.mark.few(2)
  def test_a_flag_that_is_set_twice_counts_two(self, run, mode):
    assert run(*self._TWICE, mode=mode)[0] == 0

  def test_or_is_an_error_where_it_may_not(self, run):
    code, _, errors, _ = run(*self._TWICE, flags_count=0)

    assert code == 3
    assert 'SetFlag<V_MTE3>(0): the flag is set already' in errors

  @pytest.mark.slow
  def test_a_kernel_may_leave_the_end_to_the_hardware(self, run):
    last = 'pipe_barrier(PIPE_ALL);'
    code, output, errors, _ = run(last, mode='late')
    assert (code, output) == (3, 'not the sum\n') and 'drained_end' in errors

    code, output, _, _ = run(last, self._DCCI, mode='late', drained_end=0)

    assert (code, output) == (0, 'the sum\n')

  def test_names_an_intrinsic_that_it_lacks(self, run):
    code, _, errors, line = run(
      'raw::Add(sum, a, b);', 'vmergech(sum.data(), a.data());'
    )

    assert code == 3
    assert f'raw_vector_add.asc:{line} ' in errors
    assert 'vmergech: expected an intrinsic that the twin has' in errors


@needs_clang
@pytest.mark.parametrize('mode', build_kernel.MODES)
@pytest.mark.parametrize('calls', ['raw_vector_calls', 'raw_cube_calls'])
@pytest.mark.few(1)
def test_intrinsics_give_what_their_names_say(work, calls, mode):
  process = _run(_build(_EXAMPLES / f'{calls}.asc', None, work), mode=mode)

  assert re.fullmatch(r'twin: launches: \d, errors: 0\n', process.stderr)
  assert (process.returncode, process.stdout) == (0, '')


@needs_clang
def test_without_unit_flags_the_result_is_not_ordered(tmp_path):
  text = (_EXAMPLES / 'raw_cube_calls.asc').read_text()
  source = tmp_path / 'kernel.asc'
  source.write_text(text.replace('kSide, 3, false', 'kSide, 0, false'))
  process = _run(build_kernel.build(source, None, tmp_path / 'work'))

  assert process.returncode == 3
  assert 'unitFlag: expected a Mmad of unitFlag 3 before' in process.stderr


@needs_clang
def test_a_header_may_launch_too(tmp_path):
  (tmp_path / 'launch.h').write_text(
    'template <int n> void Run() { empty<n><<<n, nullptr, nullptr>>>(); }\n'
  )
  source = tmp_path / 'kernel.asc'
  source.write_text(
    '#include "acl/acl.h"\n'
    'template <int n> __global__ __vector__ void empty() {\n'
    '  pipe_barrier(PIPE_ALL);\n'
    '}\n'
    '#include "launch.h"\n'
    'int main() { Run<3>(); }\n'
  )
  process = _run(build_kernel.build(source, None, tmp_path / 'work'))

  assert process.stderr == 'twin: launches: 1, errors: 0\n'


_FOUR = 'typedef float Four __attribute__((vector_size(16)));\n'


# That an unknown name is told by its line, run_kernel_test.py sees.
@needs_clang
@pytest.mark.parametrize(
  'text, message',
  [
    (
      f'{_FOUR}__global__ void kernel(__gm__ Four* x) {{\n  x[1] = x[0];\n}}\n',
      r'kernel\.asc:3: an access of',
    ),
    # A pointer of global memory is made of none.
    ('int x;\n__gm__ float* y = x;\n', r'kernel\.asc:2: cannot'),
  ],
)
@pytest.mark.few(1)
def test_what_cannot_be_compiled_is_refused_by_its_line(
  tmp_path, text, message
):
  source = tmp_path / 'kernel.asc'
  source.write_text(text)

  with pytest.raises(build_kernel.BuildError, match=message):
    build_kernel.build(source, None, tmp_path / 'work')


def test_without_clang_one_line_says_so(monkeypatch):
  monkeypatch.setenv('HPMOE_CLANG', 'no-such-compiler')
  build_kernel.clang.cache_clear()

  with pytest.raises(build_kernel.BuildError, match=r'expected clang\+\+ 14'):
    build_kernel.clang()
  build_kernel.clang.cache_clear()


def test_the_twin_knows_nothing_of_the_layer():
  root = pathlib.Path(__file__).parents[1]
  pattern = re.compile(
    r'^(?:#include "(?=backend_ascend|reference)|(?:from|import) hpmoe\.)'
    r'([\w./]+)',
    re.M,
  )
  includes = [
    (path.name, name)
    for path in sorted(root.rglob('*'))
    if path.suffix in ('.cc', '.h', '.py', '.asc')
    and not path.stem.endswith('_test')
    for name in pattern.findall(path.read_text())
    if 'backend_ascend/twin' not in name.replace('.', '/')
  ]

  assert not includes


def test_launches_become_calls():
  text = 'if (is<T>)\n a::add<float, (1 + 2)>\n<<<n, 0, stream>>>(f(x), y);'

  assert build_kernel.replace_launches(text) == (
    'if (is<T>)\n ::hpmoe_twin::Launch(n, 0, stream).With(f(x), y)'
    '.On(a::add<float, (1 + 2)>)\n;'
  )


# What the device's compiler takes: kernels of one name, the host's pointers
# without address spaces, in constructors too, literals and variables in global
# memory, one of each core, bfloat16_t assigned to in global memory, barriers
# before the last waits.
_KERNELS = """\
#include <cstdio>
#include "acl/acl.h"
#include "part.cpp"
constexpr __gm__ const char* Name() { return "name"; }
__gm__ int32_t* __gm__ spare = nullptr;
struct Given { __gm__ int32_t* to; int32_t value; };
struct Made : Given {
  Made(__gm__ int32_t* to, int32_t value) : Given{to, value} {}
};
template <typename T>
__global__ __vector__ void put(Given given) { Put(given, 1); }
template <typename T>
__global__ __vector__ void put(Given given, int64_t times) {
  Put(given, static_cast<int32_t>(times));
}
int main() {
  uint8_t* at;
  void* const wanted = (void*)0x100000000000;
  if (aclrtReserveMemAddress((void**)&at, 4096, 0, wanted, 0)) return 2;
  if (at != wanted) return 3;
  // It is taken.
  if (!aclrtReserveMemAddress((void**)&at, 4096, 0, wanted, 0)) return 4;
  int32_t* words = (int32_t*)at;
  Made given(words, 5);
  put<int32_t><<<1, nullptr, nullptr>>>(static_cast<Given>(given));
  std::printf("%d ", *words);
  int64_t times = 3;
  put<int32_t><<<3, nullptr, nullptr>>>(Given{words, 5}, times);
  std::printf("%d %d %d\\n", *words, words[32], words[33]);
  return aclrtReleaseMemAddress(at);
}
"""
_PART = """\
constexpr __gm__ const char* Name();
extern __gm__ int32_t* __gm__ spare;
[[block_local]] __inline__ int32_t mine = 40;
#define STORE(T) \\
  void Store(__gm__ T* to, T value) { \\
    *to =  \\
        value; \\
  }
STORE(bfloat16_t)
STORE(float)
template <typename G>
void Put(G given, int32_t times) {
  auto to = given.to + block_idx * 16;
  if (Name()[0] == 'n' && spare == nullptr) {
    to[0] = given.value * max(times, 1);
    mine += block_idx;
    to[1] = mine;
    Store((__gm__ bfloat16_t*)(to + 2), bfloat16_t(1.0f));
  }
  dcci(to, SINGLE_CACHE_LINE, CACHELINE_OUT);
  set_flag(PIPE_V, PIPE_MTE3, EVENT_ID0);
  pipe_barrier(PIPE_ALL);
  wait_flag(PIPE_V, PIPE_MTE3, EVENT_ID0);
}
"""


@needs_clang
@pytest.mark.parametrize('mode', build_kernel.MODES)
@pytest.mark.few(1)
def test_what_the_device_s_compiler_takes_runs(work, mode):
  source = work / 'others.asc'
  source.write_text(_KERNELS)
  (work / 'part.cpp').write_text(_PART)
  process = _run(_build(source, None, work), mode=mode)

  assert (process.stdout, process.stderr) == (
    '5 15 15 42\n',
    'twin: launches: 2, errors: 0\n',
  )


@needs_clang
@twin_testing.needs_asc_devkit
class TestRealHeaders:
  @pytest.mark.parametrize('mode', build_kernel.MODES)
  def test_the_vector_add_of_the_samples_is_right(self, work, mode):
    headers = pathlib.Path(twin_testing.ASC_DEVKIT)
    process = _run(_build(headers / _ADD, headers, work), mode=mode)

    assert 'test pass!' in process.stdout
    assert process.stderr == 'twin: launches: 1, errors: 0\n'

  def test_a_barrier_left_out_of_it_is_named(self, work, tmp_path):
    headers = pathlib.Path(twin_testing.ASC_DEVKIT)
    text = (headers / _ADD).read_text()
    source = tmp_path / 'add.asc'
    source.write_text(text.replace('AscendC::PipeBarrier<PIPE_ALL>();', '', 1))
    process = _run(build_kernel.build(source, headers, work))

    assert process.returncode == 3
    assert re.search(r'add\.asc:\d+ .*MTE2_V', process.stderr)


@pytest.mark.parametrize(
  'version, is_supported', [('13.0.1', False), ('14', True)]
)
def test_a_compiler_that_is_too_old_is_named_first(
  tmp_path, monkeypatch, version, is_supported
):
  compiler = tmp_path / 'clang++'
  compiler.write_text(f'#!/bin/sh\necho {version}\n')
  compiler.chmod(0o755)
  monkeypatch.setenv('HPMOE_CLANG', str(compiler))
  search = build_kernel.clang.__wrapped__
  if is_supported:
    assert search() == str(compiler)
    return
  with pytest.raises(build_kernel.BuildError) as error:
    search()
  assert str(error.value) == (
    f'expected clang++ 14 or later (or HPMOE_CLANG), got {compiler} 13.0.1'
  )
