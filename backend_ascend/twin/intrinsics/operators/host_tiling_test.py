"""Tiling functions: what is read of a definition, and one that runs."""

import os
import pathlib

import numpy as np
import pytest

from hpmoe.backend_ascend.twin import twin_testing
from hpmoe.backend_ascend.twin.intrinsics import run_kernel
from hpmoe.backend_ascend.twin.intrinsics.operators import host_tiling

# Checkouts of metadef and opbase, where whoever runs the tests has them.
_HOST = tuple(filter(None, os.environ.get('HPMOE_CANN_HOST', '').split(':')))
_DEFINITION = """
  this->Input("x").ParamType(REQUIRED);
  this->Attr("axis").AttrType(OPTIONAL).Int(-1);
  this->Attr("scale").AttrType(OPTIONAL).Float(0.5f);
  this->Attr("exact").Bool(true);
  this->Attr("mode").String("sum");
  this->Attr("pads").ListInt({1, 2});
"""


def test_attributes_are_read_with_their_defaults():
  attributes = host_tiling.read_attributes(_DEFINITION)
  assert [(a.name, a.kind) for a in attributes] == [
    ('axis', 'Int'),
    ('scale', 'Float'),
    ('exact', 'Bool'),
    ('mode', 'String'),
    ('pads', 'ListInt'),
  ]
  lines = host_tiling.describe_attributes(attributes, {})
  assert lines == [
    'Int -1',
    'Float 0.5',
    'Bool 1',
    'String "sum"',
    'ListInt 2 1 2',
  ]
  lines = host_tiling.describe_attributes(attributes, {'axis': 3, 'pads': [4]})
  assert (lines[0], lines[-1]) == ('Int 3', 'ListInt 1 4')


def test_an_attribute_that_the_operator_has_not_is_named():
  attributes = host_tiling.read_attributes(_DEFINITION)
  with pytest.raises(
    host_tiling.HostError, match='expected of axis, .*, got axes'
  ):
    host_tiling.describe_attributes(attributes, {'axes': 1})


def test_without_public_sources_there_is_no_tiling(tmp_path):
  op = run_kernel.Operator(tmp_path)
  with pytest.raises(ValueError, match='expected values, or checkouts'):
    op.tile((), {})


_KERNEL = """
extern "C" __global__ __aicore__ void scaled(
    GM_ADDR x, GM_ADDR y, GM_ADDR workspace, GM_ADDR tiling) {}
"""
_TILING = """
#include "register/op_def_registry.h"
#include "register/tilingdata_base.h"
#include "tiling/platform/platform_ascendc.h"
namespace optiling {
BEGIN_TILING_DATA_DEF(ScaledTiling)
TILING_DATA_FIELD_DEF(uint32_t, count);
TILING_DATA_FIELD_DEF(float, scale);
END_TILING_DATA_DEF;
REGISTER_TILING_DATA_CLASS(Scaled, ScaledTiling)
static ge::graphStatus Tile(gert::TilingContext* context) {
  ScaledTiling tiling;
  const auto* shape = context->GetInputShape(0);
  tiling.set_count(shape->GetStorageShape().GetShapeSize());
  tiling.set_scale(*context->GetAttrs()->GetFloat(1));
  auto platform = platform_ascendc::PlatformAscendC(context->GetPlatformInfo());
  context->SetBlockDim(platform.GetCoreNumAiv());
  context->SetTilingKey(*context->GetAttrs()->GetInt(0) + 7);
  *context->GetWorkspaceSizes(1) = 4096;
  auto* data = context->GetRawTilingData();
  tiling.SaveToBuffer(data->GetData(), data->GetCapacity());
  data->SetDataSize(tiling.GetDataSize());
  return ge::GRAPH_SUCCESS;
}
}  // namespace optiling
namespace ops {
class Scaled : public OpDef {
 public:
  explicit Scaled(const char* name) : OpDef(name) {
    this->Input("x").ParamType(REQUIRED).DataType({ge::DT_FLOAT});
    this->Output("y").ParamType(REQUIRED).DataType({ge::DT_FLOAT});
    this->Attr("axis").AttrType(OPTIONAL).Int(-1);
    this->Attr("scale").AttrType(OPTIONAL).Float(0.5);
    this->AICore().SetTiling(optiling::Tile);
    this->AICore().AddConfig("ascend910b");
  }
};
OP_ADD(Scaled);
}  // namespace ops
"""


def test_a_changed_header_is_compiled_again(tmp_path):
  # given: a source that was compiled, and is not compiled again as it stands
  header, source = tmp_path / 'size.h', tmp_path / 'size.cpp'
  header.write_text('constexpr int kSize = 3;\n')
  source.write_text('#include "size.h"\nint Size() { return kSize; }\n')
  options = [host_tiling._compiler(), '-std=c++17']
  compile_again = lambda: host_tiling.compile_sources(
    [source], options, tmp_path / 'work', [header]
  )
  (first,), _ = compile_again()
  assert compile_again() == ([first], '')
  # when: the header alone changes
  header.write_text('constexpr int kSize = 44444;\n')
  os.utime(header, ns=(0, 0))
  (second,), errors = compile_again()
  # then
  assert not errors
  assert first.read_bytes() != second.read_bytes()


@twin_testing.needs_asc_devkit
@pytest.mark.skipif(
  not _HOST,
  reason='HPMOE_CANN_HOST is not set: checkouts of metadef and opbase, with a '
  'colon between',
)
def test_a_tiling_function_runs(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  for name, text in (
    ('op_kernel/scaled.cpp', _KERNEL),
    ('op_host/scaled.cpp', _TILING),
  ):
    path = pathlib.Path(tmp_path / 'scaled', name)
    path.parent.mkdir(parents=True)
    path.write_text(text)
  op = run_kernel.Operator(
    tmp_path / 'scaled', twin_testing.ASC_DEVKIT, host=_HOST
  )
  x = np.zeros((3, 5), np.float32)
  tiling = op.tile((x, run_kernel.Empty(x.shape, x.dtype)), {'scale': 2})
  assert (tiling.key, tiling.blocks, tiling.workspace) == (6, 48, 4096)
  data = np.frombuffer(tiling.data, np.uint32)
  assert data[0] == 15 and data[1:2].view(np.float32)[0] == 2
