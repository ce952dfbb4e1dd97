"""Operators as CANN's build makes them: what is read, written and run."""

import subprocess

import numpy as np
import pytest

from hpmoe.backend_ascend.twin import twin_testing
from hpmoe.backend_ascend.twin.intrinsics import build_kernel
from hpmoe.backend_ascend.twin.intrinsics import run_kernel
from hpmoe.backend_ascend.twin.intrinsics.operators import operator_declaration
from hpmoe.backend_ascend.twin.intrinsics.operators import operator_folder
from hpmoe.backend_ascend.twin.tiling import layout as tiling_layout
from hpmoe.backend_ascend.twin.tiling import structs as tiling_structs

# One struct by macros, in which another and an array lie, and one of a key.
_TILING = """
#include "register/tilingdata_base.h"
constexpr uint32_t HALF = 2;
#define LONGEST (HALF * 2U)
namespace optiling {
BEGIN_TILING_DATA_DEF(RangeTiling)
TILING_DATA_FIELD_DEF(uint16_t, begin);  // of the rows
TILING_DATA_FIELD_DEF(int64_t, end);
END_TILING_DATA_DEF;
REGISTER_TILING_DATA_CLASS(RangeTilingOp, RangeTiling)
BEGIN_TILING_DATA_DEF(ScaledAddTiling)
TILING_DATA_FIELD_DEF(float, by);
TILING_DATA_FIELD_DEF_ARR(int32_t, LONGEST, offsets);
TILING_DATA_FIELD_DEF_STRUCT(RangeTiling, range);
END_TILING_DATA_DEF;
REGISTER_TILING_DATA_CLASS(ScaledAdd, ScaledAddTiling)
REGISTER_TILING_DATA_CLASS(ScaledAdd_7, RangeTiling)
}
"""
_DEFINITION = """
class ScaledAdd : public OpDef {
  explicit ScaledAdd(const char* name) : OpDef(name) {
    this->Input("x").ParamType(REQUIRED).DataType({ge::DT_FLOAT});
    this->Input("bias").ParamType(OPTIONAL);
    this->Input("lists").ParamType(DYNAMIC);
    this->Output("x").ParamType(REQUIRED);
    this->AICore().AddConfig("CHIP");
  }
};
OP_ADD(ScaledAdd);
"""
# Of scalar loads and stores alone: it needs no headers of Ascend C.
_KERNEL = """
#include "scaled_add.h"
extern "C" __global__ __aicore__ void scaled_add(
    __gm__ uint8_t* x, __gm__ uint8_t* bias, __gm__ uint8_t* lists,
    __gm__ uint8_t* out, __gm__ uint8_t* workspace, __gm__ uint8_t* tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  auto* const from = (__gm__ DTYPE_X*)x;
  auto* const to = (__gm__ DTYPE_X*)out;
#if TILING_KEY_VAR == 7
  GET_TILING_DATA(range, tiling);
  Store(to, range.begin, range.end);
#endif
  if (TILING_KEY_IS(1)) {
    GET_TILING_DATA_WITH_STRUCT(ScaledAddTiling, t, tiling);
    auto* const table = (__gm__ uint64_t*)lists;
    auto* const second = (__gm__ int32_t*)table[table[0] / 8 + 1];
    for (int i = t.range.begin; i < t.range.end; ++i) {
      const DTYPE_X more = bias == nullptr ? 0 : ((__gm__ DTYPE_X*)bias)[i];
      to[i] = from[i + t.offsets[3]] * t.by + more + second[i];
    }
  } else if (TILING_KEY_IS(2)) {
    GET_TILING_DATA_MEMBER(ScaledAddTiling, range.end, end, tiling);
    Store(to, 0, end);
  }
  dcci(to, SINGLE_CACHE_LINE, CACHELINE_OUT);
  pipe_barrier(PIPE_ALL);
}
"""
_HEADER = """
#pragma once
template <typename T>
inline void Store(__gm__ T* to, int begin, int end) {
  for (int i = begin; i < end; ++i) to[i] = i;
}
"""


def _folder(tmp_path, chip='ascend910b', **files):
  """Writes an operator's folder; returns it."""
  folder = tmp_path / 'scaled_add'
  texts = {
    'op_host/scaled_add_tiling.h': _TILING,
    'op_host/scaled_add_def.cpp': _DEFINITION.replace('CHIP', chip),
    'op_kernel/scaled_add.cpp': _KERNEL,
    'op_kernel/scaled_add.h': _HEADER,
  }
  for name, text in (texts | files).items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return folder


def test_structs_have_the_fields_of_their_macros():
  structs = tiling_structs.read([_TILING])
  assert structs.names == ('RangeTiling', 'ScaledAddTiling')
  assert '  int32_t offsets[4];\n  RangeTiling range;\n' in structs.text
  assert structs.registered['ScaledAdd_7'] == 'RangeTiling'


def test_a_length_that_is_no_constant_is_named():
  with pytest.raises(tiling_structs.Wrong, match='constant length, got Most'):
    tiling_structs.read([_TILING.replace('LONGEST,', 'Most(),')])


def test_a_folder_says_what_its_kernel_takes(tmp_path):
  op = operator_folder.read(_folder(tmp_path))
  assert [a.macro for a in op.definition.arguments] == [
    'X',
    'BIAS',
    'LISTS',
    'X_REF',
  ]
  assert op.kernel.own == {4: 'workspace', 5: 'tiling'}
  assert op.struct(7) == 'RangeTiling'
  assert op.struct(1) == 'ScaledAddTiling'
  assert op.cores(1) == 'aiv'
  text = operator_folder.describe(op).splitlines()
  assert 'argument 1: bias, DTYPE_BIAS' in text and 'keys: 1, 2' in text


class TestRefused:
  def test_a_folder_without_a_kernel(self, tmp_path):
    with pytest.raises(
      operator_declaration.OperatorError, match='^op: expected a folder'
    ):
      operator_folder.read(tmp_path)

  def test_an_operator_of_another_chip_in_one_line(self, tmp_path):
    folder = _folder(tmp_path, chip='ascend950')
    with pytest.raises(operator_declaration.OperatorError) as error:
      operator_folder.read(folder)
    assert str(error.value) == (
      'scaled_add: expected an operator for ascend910b or ascend910_93, got '
      'one for ascend950'
    )

  def test_a_kernel_of_another_name(self, tmp_path):
    with pytest.raises(
      operator_declaration.OperatorError, match='scaled_add; got other'
    ):
      operator_folder.read(_folder(tmp_path), 'other')

  @twin_testing.needs_clang()
  def test_code_of_another_chip_in_one_line(self, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    text = 'namespace AscendC {}\nusing AscendC::MicroAPI::RegTensor;\n'
    code = {'op_kernel/scaled_add.h': text}
    op = run_kernel.Operator(_folder(tmp_path, **code))
    with pytest.raises(operator_declaration.OperatorError) as error:
      op(*_arguments(), tiling=b'', key=1)
    assert '\n' not in str(error.value)
    assert 'got code for another chip' in str(error.value)


def _arguments():
  x = np.arange(8, dtype=np.float32)
  lists = [np.zeros(3, np.int32), np.full(8, 100, np.int32)]
  return x, None, lists, np.zeros(8, np.float32)


@pytest.fixture(scope='module')
def op(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
    yield run_kernel.Operator(_folder(tmp_path_factory.mktemp('op')))


@twin_testing.needs_clang()
class TestRun:
  @pytest.mark.slow
  def test_fields_by_name_nested_and_arrays(self, op):
    tiling = dict(by=0.5, offsets=[0, 0, 0, 1], range=dict(begin=1, end=7))
    x, _, lists, out = _arguments()
    for bias in (None, x * 10):
      outputs = op(x, bias, lists, out, tiling=tiling, key=1)[-1]
      expected = np.zeros(8)
      expected[1:7] = x[2:] * 0.5 + 100 + (0 if bias is None else bias[1:7])
      np.testing.assert_array_equal(outputs, expected)

  @pytest.mark.slow
  def test_the_struct_of_a_key_and_a_member(self, op):
    outputs = op(*_arguments(), tiling=dict(begin=2, end=5), key=7)[-1]
    np.testing.assert_array_equal(outputs, [0, 0, 2, 3, 4, 0, 0, 0])
    outputs = op(*_arguments(), tiling={'range.end': 3}, key=2)[-1]
    np.testing.assert_array_equal(outputs, [0, 1, 2, 0, 0, 0, 0, 0])

  @pytest.mark.parametrize(
    'tiling, text',
    [
      (dict(end=5, last=1), 'expected a field of RangeTiling: begin, end; got'),
      (dict(begin=1 << 16), 'expected uint16 for begin, got 65536'),
      (dict(end=[1, 2]), 'expected 1 for end, got 2'),
    ],
  )
  def test_fields_that_do_not_fit_are_named(self, op, tiling, text):
    with pytest.raises(tiling_layout.Wrong, match=text):
      op(*_arguments(), tiling=tiling, key=7)

  def test_a_wrong_number_of_arguments(self, op):
    with pytest.raises(ValueError, match=r'expected 4 arguments \(x, bias, '):
      op(np.ones(8, np.float32), tiling=dict(end=1), key=7)

  def test_what_aclrt_malloc_adds_may_be_read(self, op):
    # The block of 32 bytes after the array, and nothing beyond it.
    tiling = dict(by=1, offsets=[0, 0, 0, 8], range=dict(begin=0, end=1))
    assert op(*_arguments(), tiling=tiling, key=1)
    with pytest.raises(
      run_kernel.FindingsError, match='bounds: .*: expected bytes'
    ):
      op(*_arguments(), tiling=tiling, key=1, slack=False)
    tiling['offsets'][3] = 16
    with pytest.raises(
      run_kernel.FindingsError, match='bounds: .*: expected bytes'
    ):
      op(*_arguments(), tiling=tiling, key=1)


# Its template's arguments are bits of the tiling key.
_PARAMETERS = """
ASCENDC_TPL_ARGS_DECL(Pick,
    ASCENDC_TPL_UINT_DECL(mode, 3, ASCENDC_TPL_UI_MIX, 2, 0, 1, 4, 5, 9),
    ASCENDC_TPL_BOOL_DECL(negate, 0, 1),
    ASCENDC_TPL_UINT_DECL(last, 2, ASCENDC_TPL_UI_LIST, 7, 30, ));
ASCENDC_TPL_SEL(ASCENDC_TPL_ARGS_SEL(
    ASCENDC_TPL_UINT_SEL(mode, ASCENDC_TPL_UI_LIST, 0, 9)));
template <uint32_t mode, bool negate, uint16_t last>
__global__ __aicore__ void pick(__gm__ uint8_t* out, __gm__ uint8_t* tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  *(__gm__ int32_t*)out = (negate ? -1 : 1) * int(mode * 100 + last);
  dcci((__gm__ int32_t*)out, SINGLE_CACHE_LINE, CACHELINE_OUT);
  pipe_barrier(PIPE_ALL);
}
"""


@twin_testing.needs_clang()
@pytest.mark.parametrize(
  'key, expected', [(0b000000, 7), (0b011100, -930), (0b001010, -407)]
)
@pytest.mark.few(1)
def test_a_templates_arguments_are_read_from_the_key(
  tmp_path, monkeypatch, key, expected
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  folder = tmp_path / 'pick/op_kernel'
  folder.mkdir(parents=True)
  (folder / 'pick.cpp').write_text(_PARAMETERS)
  op = run_kernel.Operator(folder.parent)
  out = op(np.zeros(1, np.int32), tiling=b'', key=key)
  assert out[0].tolist() == [expected]


def test_a_template_without_parameters_of_its_key_is_refused(tmp_path):
  folder = tmp_path / 'pick/op_kernel'
  folder.mkdir(parents=True)
  text = _PARAMETERS.replace('ASCENDC_TPL_ARGS_DECL', 'OTHER')
  (folder / 'pick.cpp').write_text(text)
  op = run_kernel.Operator(folder.parent)
  with pytest.raises(ValueError, match='expected arguments of the template'):
    op(np.zeros(1, np.int32), tiling=b'')


_SHARED = """
#pragma once
inline void Fill(__gm__ int32_t* to, const SharedTiling& tiling) {
  for (uint32_t i = 0; i < tiling.count; ++i) to[i] = tiling.value;
  dcci(to, SINGLE_CACHE_LINE, CACHELINE_OUT);
  pipe_barrier(PIPE_ALL);
}
"""
_SHARED_TILING = """
BEGIN_TILING_DATA_DEF(SharedTiling)
TILING_DATA_FIELD_DEF(uint32_t, count);
TILING_DATA_FIELD_DEF(int32_t, value);
END_TILING_DATA_DEF;
"""
_USER = """
#include "../shared/shared.h"
extern "C" __global__ __aicore__ void user(
    __gm__ uint8_t* out, __gm__ uint8_t* tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  GET_TILING_DATA_WITH_STRUCT(SharedTiling, values, tiling);
  Fill((__gm__ int32_t*)out, values);
}
"""


@twin_testing.needs_clang()
def test_kernels_are_found_beside_each_other_as_installed(
  tmp_path, monkeypatch
):
  # Given an operator that includes another's kernel as it is installed, and
  # reads its struct, and has code of the same name for another chip.
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  files = {
    'LICENSE': '',
    'shared/op_kernel/shared.h': _SHARED,
    'shared/op_host/shared_tiling.h': _SHARED_TILING,
    'user/op_kernel/user.cpp': _USER,
    'user/op_kernel/arch35/user.cpp': _USER.replace('values', 'Simt::other'),
  }
  for name, text in files.items():
    path = tmp_path / 'repository' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  op = run_kernel.Operator(tmp_path / 'repository/user')
  tiling = dict(count=3, value=-5)
  out = op(np.zeros(4, np.int32), tiling=tiling, struct='SharedTiling')
  assert out[0].tolist() == [-5, -5, -5, 0]


@twin_testing.needs_clang()
def test_layouts_are_the_compilers(tmp_path):
  # Given a struct with padding, an array of structs, a base and an enum, when
  # the compiler has laid it out, then so has the reader.
  source = tmp_path / 'layout.cc'
  source.write_text(
    '#include <cstdint>\n'
    'enum Kind : uint8_t { kNone };\n'
    'struct Base { int8_t a; };\n'
    'struct Pair { int16_t x; double y; };\n'
    'struct Whole : Base { Pair pairs[2]; const bool* at; Kind kind; '
    'unsigned u : 32; uint64_t words[2][3]; };\n'
    'int Read(const Whole& w) { return w.kind; }\n'
  )
  flags = ('-S', '-emit-llvm', '-g', '-fstandalone-debug', '-o', '-')
  ran = subprocess.run(
    [build_kernel.clang(), *flags, source], capture_output=True, text=True
  )
  layout = tiling_layout.read([ran.stdout], 'Whole')
  fields = {f.name: (f.offset, str(f.dtype), f.count) for f in layout.fields}
  assert fields['a'] == (0, 'int8', 0)
  assert fields['pairs[1].y'] == (32, 'float64', 0)
  assert fields['words'][1:] == ('uint64', 6)
  assert layout.size == fields['words'][0] + 48
  assert 'at' not in fields


@twin_testing.needs_asc_devkit
def test_an_operator_over_real_headers(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  kernel = '#include "kernel_operator.h"\n' + _KERNEL
  files = {'op_kernel/scaled_add.cpp': kernel}
  op = run_kernel.Operator(_folder(tmp_path, **files), twin_testing.ASC_DEVKIT)
  outputs = op(*_arguments(), tiling=dict(begin=2, end=5), key=7)[-1]
  np.testing.assert_array_equal(outputs, [0, 0, 2, 3, 4, 0, 0, 0])
