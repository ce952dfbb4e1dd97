"""Operands overlap as the table of published rules says, row by row."""

import functools
import subprocess

import numpy as np
import pytest

from hpmoe.backend_ascend.twin import twin_testing
from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.backend_ascend.twin.intrinsics import run_kernel

pytestmark = twin_testing.needs_clang()

_CELLS = ('one_same', 'one_part', 'several_same', 'several_later')
_SOURCE = 8192  # in UB, of the operand that may be the destination
_APART = 24576
_OFFSETS = 11  # the family of Gather's srcOffset, whose source is offsets
# How far after the source the destination begins, to have a part of it, and to
# have what the second repeat reads; where not 32 and 256.
_SHIFTS = {
  'Axpy, MulAddDst of half in float': (32, 128),
  'Cast to longer elements': (32, 128),
  'Brcb': (-128, 32),
  'Gather': (-32, -256),
  'Select, its selMask': (-32, -256),
  'Sort32': (32, 128),
  'MrgSort': (32, 128),
  'TransDataTo5HD': (32, 512),
}
_KERNEL = """\
template <typename T>
__aicore__ __ubuf__ T* At(uint64_t byte) {
  return reinterpret_cast<__ubuf__ T*>(byte);
}
using F = float;
constexpr uint64_t kFar = 16384;

// Of the table's number: an instruction of `n` repeats from byte s to byte d.
__aicore__ void Issue(int family, uint64_t d, uint64_t s, int n, int stride) {
  uint64_t to[16], from[16];
  for (int i = 0; i < 16; ++i) to[i] = d + 32 * i, from[i] = s + 32 * i;
  uint64_t lists[4] = {s, s + 32, s + 64, s + 96};
  const int turned = n == 1 ? 0 : 16;
  const auto choose = [&] {
    vsel(At<F>(d), At<F>(kFar), At<F>(kFar), n, 1, 1, 1, 8, 8, 8, 0);
  };
  switch (family) {
    case 0:
      return vadd(At<F>(d), At<F>(kFar), At<F>(s), n, 1, 1, 1, stride, 8,
                  stride);
    case 1:
      return vdiv(At<F>(d), At<F>(s), At<F>(kFar), n, 1, 1, 1, 8, 8, 8);
    case 2:
      return vaxpy(At<F>(d), At<F>(s), 2.0f, n, 1, 1, 8, 8);
    case 3:
      return vaxpy(At<F>(d), At<half>(s), half(2.0f), n, 1, 1, 8, 4);
    case 4:
      return vconv_f322s32r(At<int32_t>(d), At<F>(s), n, 1, 1, 8, 8);
    case 5:
      return vconv_f322f16(At<half>(d), At<F>(s), n, 1, 1, 4, 8);
    case 6:
      return vconv_f162f32(At<F>(d), At<half>(s), n, 1, 1, 8, 4);
    case 7:
      return vcgadd(At<F>(d), At<F>(s), n, 1, 1, 8);
    case 8:
      return vcopy(At<uint32_t>(d), At<uint32_t>(s), n, 1, 1, 8, 8);
    case 9:
      return vbrcb(At<uint32_t>(d), At<uint32_t>(s), 1, 8, n);
    case 10:  // offsets 0
      return vgather(At<uint32_t>(d), At<uint32_t>(0), s, 8, n);
    case 11:
      return vgather(At<uint32_t>(d), At<uint32_t>(s), kFar, 8, n);
    case 12:
      return vreducev2(At<uint32_t>(d), At<uint32_t>(s), At<uint32_t>(s), n, 1,
                       1, 8, 0);
    case 13:
      return vbitsort(At<F>(d), At<F>(s), At<uint32_t>(kFar), n);
    case 14:
      return vmrgsort4(At<F>(d), lists, 0x0004000400040004ull,
                       n | 15ull << 8);
    case 15:
      return vtranspose(At<uint16_t>(d), At<uint16_t>(s));
    case 16:
      set_va_reg_sb(VA0, to);
      set_va_reg_sb(VA1, to + 8);
      set_va_reg_sb(VA2, from);
      set_va_reg_sb(VA3, from + 8);
      return scatter_vnchwconv_b16(VA0, VA2, n, turned, turned);
    case 17:
      set_cmpmask(At<uint64_t>(0));
      return vsel(At<F>(d), At<F>(s), At<F>(kFar), n, 1, 1, 1, 8, 8, 8, 0);
    case 18:
      set_cmpmask(At<uint64_t>(s));
      return choose();
    case 19:
      return vcmpv_lt(At<uint8_t>(d), At<F>(s), At<F>(kFar), n, 1, 1, 1, 8, 8,
                      8);
    case 20:
      return copy_ubuf_to_ubuf(At<void>(d), At<void>(s), 0, n, 8, 0, 0);
    case 21:  // the first of the table, in other types
      return vadd(At<int16_t>(d), At<int16_t>(kFar), At<int16_t>(s), n, 1, 1, 1,
                  stride, 8, stride);
    default:
      return vaddrelu(At<half>(d), At<half>(kFar), At<half>(s), n, 1, 1, 1,
                      stride, 8, stride);
  }
}

extern "C" __global__ __vector__ void overlaps(
    __gm__ float* x, __gm__ float* y, int family, int d, int s, int n,
    int stride) {
  copy_gm_to_ubuf(At<void>(0), (__gm__ void*)x, 0, 1, 1024, 0, 0);
  set_flag(PIPE_MTE2, PIPE_V, EVENT_ID0);
  wait_flag(PIPE_MTE2, PIPE_V, EVENT_ID0);
  set_mask_norm();
  set_vector_mask(~0ull, ~0ull);
  Issue(family, d, s, n, stride);
  set_flag(PIPE_V, PIPE_MTE3, EVENT_ID0);
  wait_flag(PIPE_V, PIPE_MTE3, EVENT_ID0);
  copy_ubuf_to_gm((__gm__ void*)y, At<void>(0), 0, 1, 1024, 0, 0);
  pipe_barrier(PIPE_ALL);
}
"""


@functools.cache
def _table() -> list[list[str]]:
  """Returns the table's rows as `run_program` has them."""
  program = build_kernel.program()
  process = subprocess.run(
    [program, 'overlaps'], capture_output=True, text=True, check=True
  )
  return [line.split('\t') for line in process.stdout.splitlines()]


@pytest.fixture(scope='module')
def launch(tmp_path_factory):
  source = tmp_path_factory.mktemp('overlaps') / 'overlaps.asc'
  source.write_text(_KERNEL)
  kernel = run_kernel.Kernel(source, 'overlaps', cores='aiv')
  # Of a period of 4 KiB, but zeros first.
  x = np.tile(np.arange(1024, dtype=np.float32) % 31 + 1, 8)
  x[:1024] = 0

  def run(family, begin, repeats, *, stride=8, strict=True):
    """Returns UB after an instruction, or what the twin says."""
    data = 0 * x if family == _OFFSETS else x
    words = (family, begin, _SOURCE, repeats, stride)
    try:
      return kernel(data, data, *words, strict=strict)[1]
    except run_kernel.FindingsError as error:
      return str(error)

  return run


def _differ(outcome, apart) -> str:
  """Returns how results in a source's place differ from those elsewhere."""
  for message in (outcome, apart):
    if isinstance(message, str):
      return message
  # Of each instruction's first repeat, what all of them write.
  x, y = outcome[_SOURCE // 4 :][:2], apart[_APART // 4 :][:2]
  return '' if x.tobytes() == y.tobytes() else f'{x} and {y}'


def _judge(launch, family, shift, repeats, rule, page) -> str:
  """Returns what is wrong with a cell of the table; '' if nothing is."""
  outcome = launch(family, _SOURCE + shift, repeats)
  if rule == 'never':
    return ''
  if rule == 'legal':
    return _differ(outcome, launch(family, _APART, repeats))
  if not isinstance(outcome, str) or f'({page})' not in outcome:
    return f'expected {page} to be named, got {outcome}'
  if ('not published' in outcome) != (rule == 'unpublished'):
    return outcome
  loose = launch(family, _SOURCE + shift, repeats, strict=False)
  goes_on = not isinstance(loose, str)
  return '' if goes_on == (rule == 'unpublished') else f'strict=False: {loose}'


def test_each_row_of_the_table_says_what_its_instructions_may(launch):
  # Given each family and each way to overlap, when an instruction does, then it
  # gives what it gives elsewhere, or its page is named.
  wrong = []
  for number, calls, *rules, page in _table():
    part, later = _SHIFTS.get(calls, (32, 256))
    for cell, rule in zip(_CELLS, rules):
      shift = {'one_part': part, 'several_later': later}.get(cell, 0)
      repeats = 1 if cell.startswith('one') else 2
      problem = _judge(launch, int(number), shift, repeats, rule, page)
      if problem:
        wrong.append(f'{calls}, {cell}, {rule}: {problem}')
  assert not wrong, '\n'.join(wrong)


def test_sums_over_repeats_may_stay_where_they_are(launch):
  ub = launch(0, _SOURCE, 3, stride=0)
  x = np.tile(np.arange(1024, dtype=np.float32) % 31 + 1, 8)
  terms = x[4096:][:192].reshape(3, 64)
  np.testing.assert_array_equal(
    ub[_SOURCE // 4 :][:64], x[2048:][:64] + terms.sum(0)
  )
  assert 'later repeat' in launch(21, _SOURCE, 3, stride=0)
  assert not isinstance(launch(22, _SOURCE, 3, stride=0), str)
  assert 'later repeat' in launch(22, _SOURCE + 256, 3)


def test_the_table_has_each_cell_and_a_page():
  table = _table()
  assert [int(row[0]) for row in table] == list(range(len(table)))
  verdicts = {'legal', 'refused', 'unpublished', 'sums', 'never'}
  for row in table:
    assert len(row) == 7 and set(row[2:6]) <= verdicts, row
    assert row[6].endswith('.md'), row
