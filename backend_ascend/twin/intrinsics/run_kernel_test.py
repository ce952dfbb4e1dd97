"""Kernels from Python: outputs, arguments, and errors."""

import json
import pathlib
import subprocess

import numpy as np
import pytest

from hpmoe.backend_ascend.twin import twin_testing
from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.backend_ascend.twin.intrinsics import run_kernel

_EXAMPLES = pathlib.Path(__file__).parents[1] / 'examples'
_REAL = twin_testing.ASC_DEVKIT
_SCALED = """\
struct Tiling { float by; int32_t from; };
extern "C" __global__ __vector__ void scaled(
    __gm__ float* x, __gm__ float* y, Tiling tiling, int32_t count) {
  for (int32_t i = tiling.from; i < count; ++i) {
    if (i < 0) {
      y[0] = 0;
    }
    y[i] = x[i] * tiling.by;
  }
  dcci(y, SINGLE_CACHE_LINE, CACHELINE_OUT);
  pipe_barrier(PIPE_ALL);
}
"""


# Vector intrinsics of 128 floats, of which 8 or all are loaded.
_CHOICES = """\
template <typename T>
__aicore__ __ubuf__ T* At(uint64_t byte) {
  return reinterpret_cast<__ubuf__ T*>(byte);
}
constexpr uint64_t kOut = 1024;
template <int choice>
__global__ __vector__ void choices(
    __gm__ float* x, __gm__ uint32_t* offsets, __gm__ float* y) {
  copy_gm_to_ubuf(At<void>(0), (__gm__ void*)x, 0, 1, choice == 4 ? 16 : 1, 0,
                  0);
  copy_gm_to_ubuf(At<void>(512), (__gm__ void*)offsets, 0, 1, 1, 0, 0);
  set_flag(PIPE_MTE2, PIPE_V, EVENT_ID0);
  wait_flag(PIPE_MTE2, PIPE_V, EVENT_ID0);
  set_mask_norm();
  set_vector_mask(0, choice == 2 ? 0xFF : ~0ull);
  int blocks = 1;
  if (choice < 2) {  // of 64 lanes 56 are nobody's
    vadds(At<float>(kOut), At<float>(0), 1.0f, 1, 1, 1, 8, 8);
    blocks = 1 + choice;
  } else if (choice == 2) {
    vgather(At<uint32_t>(kOut), At<uint32_t>(512), 0, 8, 1);
  } else if (choice == 3) {
    set_mask_count();
    set_vector_mask(0, 8);
    vcadd(At<float>(0), At<float>(0), 1, 1, 1, 8, 1);
    set_flag(PIPE_V, PIPE_S, EVENT_ID0);
    wait_flag(PIPE_V, PIPE_S, EVENT_ID0);
    const int64_t bits = get_acc_val();
    float sum;
    __builtin_memcpy(&sum, &bits, 4);
    y[0] = sum;
    dcci(y, SINGLE_CACHE_LINE, CACHELINE_OUT);
    pipe_barrier(PIPE_ALL);
    return;
  } else {
    uint64_t to[16], from[16];
    for (int i = 0; i < 16; ++i) to[i] = kOut + 32 * i, from[i] = 32 * i;
    set_va_reg_sb(VA0, to);
    set_va_reg_sb(VA1, to + 8);
    set_va_reg_sb(VA2, from);
    set_va_reg_sb(VA3, from + 8);
    scatter_vnchwconv_b32(VA0, VA2, 1, 0, 0);
    blocks = 16;
  }
  set_flag(PIPE_V, PIPE_MTE3, EVENT_ID0);
  wait_flag(PIPE_V, PIPE_MTE3, EVENT_ID0);
  copy_ubuf_to_gm((__gm__ void*)y, At<void>(kOut), 0, 1, blocks, 0, 0);
  pipe_barrier(PIPE_ALL);
}
"""


pytestmark = twin_testing.needs_clang()


@pytest.fixture(scope='module', autouse=True)
def cache(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
    yield


@pytest.fixture(scope='module')
def add():
  return run_kernel.Kernel(_EXAMPLES / 'raw_vector_add.asc', 'raw_add<256>')


@pytest.fixture(scope='module')
def scaled(tmp_path_factory):
  source = tmp_path_factory.mktemp('source') / 'scaled.asc'
  source.write_text(_SCALED)
  return run_kernel.Kernel(source, 'scaled')


def _inputs(cores, count=256):
  rng = np.random.default_rng(0)
  x, y = rng.standard_normal((2, cores, count), np.float32)
  return x, y, run_kernel.Empty(x.shape, np.float32), np.zeros((cores, 16), 'f')


class TestArrays:
  @pytest.mark.parametrize('cores', [1, 3])
  @pytest.mark.parametrize('mode', build_kernel.MODES)
  @pytest.mark.few(1)
  def test_come_back_as_the_kernel_leaves_them(self, add, cores, mode):
    x, y, z, w = _inputs(cores)
    arrays = add(x, y, z, w, blocks=cores, mode=mode)
    np.testing.assert_array_equal(arrays[2], x + y)
    np.testing.assert_array_equal(arrays[3][:, 0], (x + y)[:, -1] + 1)
    np.testing.assert_array_equal(arrays[0], x)
    assert not w.any()

  def test_that_nobody_wrote_may_not_be_read(self, add):
    x, y, z, w = _inputs(1)
    with pytest.raises(run_kernel.FindingsError, match='which nobody') as error:
      add(z, y, z, w)
    assert str(_EXAMPLES.resolve()) in error.value.findings[0]

  def test_that_are_too_short_are_named(self, add):
    x, y, z, w = _inputs(1)
    with pytest.raises(
      run_kernel.FindingsError, match=r'allocation 1 .*1023 B|bounds'
    ):
      add(x, y.ravel()[:-1], z, w)


class TestValues:
  @pytest.mark.slow
  def test_numbers_and_structs(self, scaled):
    x = np.arange(8, dtype=np.float32)
    tiling = np.float32(0.5).tobytes() + np.int32(2).tobytes()
    y = scaled(x, np.zeros(8, np.float32), tiling, 6)[1]
    np.testing.assert_array_equal(y, [0, 0, 1, 1.5, 2, 2.5, 0, 0])

  @pytest.mark.parametrize(
    'change, message',
    [
      ({3: np.int64(2)}, 'argument 3: expected a value of 4 B, got 8'),
      ({3: np.zeros(4)}, 'argument 3: expected a value, got an array'),
      ({0: 1}, 'argument 0: expected an array, got a value'),
      ({3: 'six'}, 'argument 3: expected an array, Empty, a number or bytes'),
    ],
  )
  def test_that_do_not_fit_are_named(self, scaled, change, message):
    arguments = [np.ones(8, 'f'), np.zeros(8, 'f'), bytes(8), 0]
    for i, value in change.items():
      arguments[i] = value
    with pytest.raises(ValueError, match=message):
      scaled(*arguments)

  def test_a_wrong_number_of_them(self, scaled):
    with pytest.raises(ValueError, match='arguments: expected 4, got 1'):
      scaled(np.ones(8, 'f'))

  def test_a_mode_that_is_none(self, scaled):
    with pytest.raises(ValueError, match='^mode: expected one of'):
      scaled(mode='sideways')


class TestVectors:
  def _launch(self, tmp_path, choice, offsets=range(28, -4, -4)):
    source = tmp_path / 'choices.asc'
    source.write_text(_CHOICES)
    kernel = run_kernel.Kernel(source, f'choices<{choice}>', cores='aiv')
    x = np.arange(128, dtype=np.float32)
    indices = np.array(offsets, np.uint32)
    return x, kernel(x, indices, np.zeros(128, np.float32))[2]

  @pytest.mark.slow
  def test_padding_may_be_computed_with_but_not_used(self, tmp_path):
    x, y = self._launch(tmp_path, 0)
    np.testing.assert_array_equal(y[:8], x[:8] + 1)
    with pytest.raises(
      run_kernel.FindingsError, match='copy_ubuf_to_gm reads .*nobody'
    ):
      self._launch(tmp_path, 1)

  @pytest.mark.slow
  def test_elements_of_offsets(self, tmp_path):
    x, y = self._launch(tmp_path, 2)
    np.testing.assert_array_equal(y[:8], x[7::-1])
    with pytest.raises(
      run_kernel.FindingsError, match='srcOffset 1: expected a multip'
    ):
      self._launch(tmp_path, 2, [0, 2, 4, 4, 4, 4, 4, 4])

  def test_a_sum_in_a_register_of_a_source_that_it_overwrites(self, tmp_path):
    x, y = self._launch(tmp_path, 3)
    assert y[0] == x[:8].sum()

  def test_blocks_as_rows_become_columns(self, tmp_path):
    x, y = self._launch(tmp_path, 4)
    np.testing.assert_array_equal(y, x.reshape(16, 8).T.ravel())


def test_the_old_name_of_the_error_works_and_says_the_new_one():
  with pytest.warns(DeprecationWarning, match='called run_kernel.FindingsErr'):
    assert run_kernel.Found is run_kernel.FindingsError
  with pytest.raises(AttributeError, match="got 'Fond'"):
    _ = run_kernel.Fond


def test_source_that_does_not_compile_is_told_by_line(tmp_path):
  source = tmp_path / 'k.asc'
  source.write_text('__global__ void k() {\n  Nothing x;\n}\n')
  with pytest.raises(ValueError, match=r'k\.asc:2: unknown type'):
    run_kernel.Kernel(source, 'k')()


def test_coverage_has_lines_that_ran_and_lines_that_did_not(tmp_path, scaled):
  # Given a program with a branch that is never taken, when it has run, then
  # lcov's lines say how often control came to each; comments have none.
  source = tmp_path / 'scaled.asc'
  main = (
    '#include "acl/acl.h"\n' + _SCALED + 'int main() {\n'
    '  void* at[2];\n'
    '  for (auto& one : at) {\n'
    '    aclrtMalloc(&one, 64, ACL_MEM_MALLOC_HUGE_FIRST);\n'
    '    aclrtMemset(one, 64, 0, 64);\n'
    '  }\n'
    '  scaled<<<3, nullptr, nullptr>>>((__gm__ float*)(uint64_t)at[0],\n'
    '    (__gm__ float*)(uint64_t)at[1], Tiling{2, 0}, 0);\n'
    '}\n'
  )
  source.write_text(main)
  kernel = build_kernel.build(source, None, tmp_path / 'w', coverage=True)
  counts_path = tmp_path / 'counted'
  command = build_kernel.command(kernel, mode='order', coverage=counts_path)
  subprocess.run(command, check=False)
  lines = build_kernel.lcov(kernel, counts_path.read_text()).splitlines()

  assert lines[1] == f'SF:{source}'
  counts = dict(
    map(int, line[3:].split(',')) for line in lines if line[:3] == 'DA:'
  )
  line_of = lambda text: main[: main.index(text)].count('\n') + 1
  assert counts[line_of('dcci(y')] == 3
  assert counts[line_of('y[0] = 0')] == 0 == counts[line_of('y[i] = x[i]')]
  assert line_of('struct Tiling') not in counts
  assert lines[-3:] == [
    f'LF:{len(counts)}',
    f'LH:{sum(c > 0 for c in counts.values())}',
    'end_of_record',
  ]


def test_a_timeline_has_what_each_pipe_did_and_when(tmp_path):
  # Given figures of a machine, when a kernel of two cores runs, then Perfetto's
  # file has every instruction: a pipe does one at a time, and the sum begins
  # once both its operands are there.
  source = _EXAMPLES / 'raw_vector_add.asc'
  kernel = build_kernel.build(source, None, tmp_path)
  names = (
    *('cube_bf16', 'cube_f32', 'cube_efficiency', 'aic_read', 'aic_write'),
    *('aic_l0a', 'aic_l0b', 'aiv_read', 'aiv_write', 'vector'),
    *('read_latency', 'move_head', 'product_head'),
  )
  path = tmp_path / 'timeline.json'
  command = build_kernel.command(
    kernel, rates=','.join(f'{name}:1e9' for name in names), timeline=path
  )
  subprocess.run(command, check=True)
  events = json.loads(path.read_text())['traceEvents']

  spans = [e for e in events if e['ph'] == 'X']
  assert [e['name'] for e in spans].count('copy_gm_to_ubuf') == 2 * 4
  of_core = [e for e in spans if e['pid'] == 1]
  load, second_load, add, store = sorted(of_core, key=lambda e: e['ts'])
  assert load['tid'] == second_load['tid'] != add['tid'] != store['tid']
  assert load['dur'] == pytest.approx(2048 / 1e9 * 1e6)
  assert second_load['ts'] == pytest.approx(load['ts'] + load['dur'])
  assert add['ts'] >= second_load['ts'] + second_load['dur']
  assert store['ts'] >= add['ts'] + add['dur']
  thread_names = [e for e in events if e['name'] == 'thread_name']
  pipes = {e['tid']: e['args']['name'] for e in thread_names if e['pid'] == 1}
  span_pipes = [pipes[e['tid']] for e in (load, second_load, add, store)]
  assert span_pipes == ['MTE2', 'MTE2', 'V', 'MTE3']


@pytest.mark.slow
def test_events_have_what_orders_and_what_is_ordered(tmp_path):
  # Given a kernel of four cores, when it runs, then the file has what each gave
  # its queues, in program order, with the bytes that it touches.
  path = tmp_path / 'events'
  add = run_kernel.Kernel(_EXAMPLES / 'raw_vector_add.asc', 'raw_add<512>')

  add(*_inputs(4, 512), blocks=4, events=str(path))

  launch, *lines = path.read_text().splitlines()
  first = [line.split(' ') for line in lines if line.split(' ')[3] == '0']
  assert launch == 'launch' and len(lines) == 4 * len(first)
  assert [(words[0], words[5]) for words in first[:5]] == [
    *[('work', 'MTE2')] * 2,
    ('set', 'MTE2'),
    ('wait', 'V'),
    ('work', 'V'),
  ]
  assert first[1][-6:] == ['w', 'UB', '2048', '2048', '1', '0']
  assert [words[0] for words in first[-4:]] == [
    *('wait', 'load', 'write_back', 'drain')
  ]


@twin_testing.needs_asc_devkit
def test_a_kernel_over_real_headers():
  folder = 'examples/01_simd_cpp_api/00_introduction/01_add/add'
  add = run_kernel.Kernel(f'{_REAL}/{folder}/add.asc', 'add_custom<512>', _REAL)
  x, y, z, _ = _inputs(2, 512)
  np.testing.assert_array_equal(add(x, y, z, blocks=2)[2], x + y)
