// The operators HpmoeLaunch and HpmoeLaunchGrad for CANN: what they take and
// give, their shapes, and how many cores and how much workspace a launch takes.
// Built where CANN is installed; see CMakeLists.txt.
//
// The image's header comes as an attribute, for shapes and tiling are made
// before any operand can be read; the image itself is an operand.

#include <cstring>
#include <vector>

#include "backend_ascend/device/operator/call_layout.h"
#include "register/op_def_registry.h"
#include "tiling/platform/platform_ascendc.h"

namespace {

using hpmoe::Direction;
using hpmoe::ImageHeader;
using hpmoe::Use;

constexpr size_t kHeaderAttr = 0;
constexpr size_t kDeadlineAttr = 1;
constexpr uint32_t kAllCoresAtOnce = 1;  // schedule mode: none starts alone

// Operands before the layer's.
constexpr const char* kCallOperands[] = {"image", "tables", "state"};

// Whether an operator has a buffer as an operand or as a result.
bool Has(int buffer, Direction direction, Use use) {
  return hpmoe::kBuffers[buffer].use[direction] == use &&
         !hpmoe::IsRelayed(buffer);
}

// Applied where its weights are before w_down, the pass does not read it.
bool IsOptional(int buffer, Direction direction) {
  return direction == hpmoe::kBackward && buffer == hpmoe::kReturned;
}

// The header that an attribute holds as 8-byte words; whether it is one.
template <class Context>
bool ReadHeader(const Context* context, ImageHeader* header) {
  const auto* attrs = context->GetAttrs();
  const auto* words =
      attrs == nullptr ? nullptr : attrs->GetListInt(kHeaderAttr);
  if (words == nullptr || words->GetSize() * 8 != sizeof(ImageHeader)) {
    return false;
  }
  std::memcpy(header, words->GetData(), sizeof(ImageHeader));
  return header->magic == hpmoe::kImageMagic &&
         header->version == hpmoe::kImageVersion &&
         header->direction <= hpmoe::kBackward && header->num_ranks > 0 &&
         header->accumulation_order == hpmoe::kAscending &&
         header->relay == 0;  // operands have no relayed rows
}

// A tensor of the layer as reference/contract/tensors.py has it.
std::vector<int64_t> SizesOf(const ImageHeader& h, int buffer) {
  const hpmoe::BufferInfo& info = hpmoe::kBuffers[buffer];
  const int64_t cols = SizeOf(h, info.cols);
  switch (info.rows) {
    case hpmoe::Axis::kT:
      return {h.num_ranks, h.num_tokens, cols};
    case hpmoe::Axis::kTK:
      return {h.num_ranks, h.num_tokens, h.top_k, cols};
    case hpmoe::Axis::kC:
      return {h.num_ranks, h.num_rows, cols};
    default:
      return {h.num_ranks, LocalExperts(h), SizeOf(h, info.rows), cols};
  }
}

ge::graphStatus InferShapes(gert::InferShapeContext* context) {
  ImageHeader header;
  if (!ReadHeader(context, &header)) return ge::GRAPH_FAILED;
  size_t at = 0;
  for (int b = 0; b < hpmoe::kNumBuffers; ++b) {
    if (!Has(b, Direction{header.direction}, Use::kWritten)) continue;
    gert::Shape* shape = context->GetOutputShape(at++);
    if (shape == nullptr) return ge::GRAPH_FAILED;
    const std::vector<int64_t> sizes = SizesOf(header, b);
    shape->SetDimNum(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) shape->SetDim(i, sizes[i]);
  }
  return ge::GRAPH_SUCCESS;
}

ge::graphStatus InferTypes(gert::InferDataTypeContext* context) {
  ImageHeader header;
  if (!ReadHeader(context, &header)) return ge::GRAPH_FAILED;
  const ge::DataType stored =
      header.dtype == hpmoe::kBFloat16 ? ge::DT_BF16 : ge::DT_FLOAT;
  size_t at = 0;
  for (int b = 0; b < hpmoe::kNumBuffers; ++b) {
    if (!Has(b, Direction{header.direction}, Use::kWritten)) continue;
    const bool is_float = hpmoe::kBuffers[b].element == hpmoe::Element::kFloat;
    const auto status =
        context->SetOutputDataType(at++, is_float ? ge::DT_FLOAT : stored);
    if (status != ge::GRAPH_SUCCESS) return status;
  }
  return ge::GRAPH_SUCCESS;
}

ge::graphStatus Tile(gert::TilingContext* context) {
  ImageHeader header;
  if (!ReadHeader(context, &header)) return ge::GRAPH_FAILED;
  // Puts of one rank land in its own results.  Several need a symmetric heap,
  // whose owner launches the kernel itself; see docs/on_an_npu.md.
  if (header.num_ranks != 1) return ge::GRAPH_FAILED;
  if (header.dtype != hpmoe::kFloat32 && header.dtype != hpmoe::kBFloat16) {
    return ge::GRAPH_FAILED;
  }
  const platform_ascendc::PlatformAscendC platform(context->GetPlatformInfo());
  const int32_t blocks = hpmoe::BlocksOf(header);
  // A core that does not run would be waited for until the deadline.
  if (blocks > static_cast<int32_t>(platform.GetCoreNumAic())) {
    return ge::GRAPH_FAILED;
  }
  auto* tiling = context->GetTilingData<HpmoeLaunchTiling>();
  const int64_t* deadline = context->GetAttrs()->GetInt(kDeadlineAttr);
  size_t* workspaces = context->GetWorkspaceSizes(1);
  if (tiling == nullptr || deadline == nullptr || workspaces == nullptr) {
    return ge::GRAPH_FAILED;
  }
  tiling->deadline_us = static_cast<uint64_t>(*deadline);
  workspaces[0] = platform.GetLibApiWorkSpaceSize() +
                  hpmoe::LayoutOf(header).bytes[hpmoe::kWorkspace];
  context->SetScheduleMode(kAllCoresAtOnce);
  return context->SetBlockDim(blocks);
}

}  // namespace

namespace ops {

// Both operators: the tables of kinds.h say what each pass reads and writes.
class LaunchDef : public OpDef {
 public:
  LaunchDef(const char* name, Direction direction) : OpDef(name) {
    for (const char* operand : kCallOperands) Add(Input(operand), ge::DT_UINT8);
    Add(Input("topk_weights"), ge::DT_FLOAT);
    for (int b = 0; b < hpmoe::kNumBuffers; ++b) {
      if (!Has(b, direction, Use::kInput)) continue;
      OpParamDef& operand = Input(hpmoe::BufferName(b));
      AddStored(operand, b);
      if (IsOptional(b, direction)) operand.ParamType(OPTIONAL);
    }
    for (int b = 0; b < hpmoe::kNumBuffers; ++b) {
      if (Has(b, direction, Use::kWritten)) {
        AddStored(Output(hpmoe::BufferName(b)), b);
      }
    }
    Attr("header").AttrType(REQUIRED).ListInt();
    Attr("deadline_us").AttrType(REQUIRED).Int();
    SetInferShape(InferShapes).SetInferDataType(InferTypes);
    AICore().SetTiling(Tile);
    AICore().AddConfig("ascend910b").AddConfig("ascend910_93");
  }

 private:
  // One column of dtypes for each storage dtype.
  static void Add(OpParamDef& param, ge::DataType dtype) {
    Add(param, std::vector<ge::DataType>{dtype, dtype});
  }
  static void Add(OpParamDef& param, const std::vector<ge::DataType>& dtypes) {
    const std::vector<ge::Format> formats(dtypes.size(), ge::FORMAT_ND);
    param.ParamType(REQUIRED)
        .DataType(dtypes)
        .Format(formats)
        .UnknownShapeFormat(formats);
  }
  static void AddStored(OpParamDef& param, int buffer) {
    const bool is_float =
        hpmoe::kBuffers[buffer].element == hpmoe::Element::kFloat;
    Add(param, is_float ? std::vector<ge::DataType>{ge::DT_FLOAT, ge::DT_FLOAT}
                        : std::vector<ge::DataType>{ge::DT_FLOAT, ge::DT_BF16});
  }
};

class HpmoeLaunch : public LaunchDef {
 public:
  explicit HpmoeLaunch(const char* name) : LaunchDef(name, hpmoe::kForward) {}
};

class HpmoeLaunchGrad : public LaunchDef {
 public:
  explicit HpmoeLaunchGrad(const char* name)
      : LaunchDef(name, hpmoe::kBackward) {}
};

OP_ADD(HpmoeLaunch);
OP_ADD(HpmoeLaunchGrad);

}  // namespace ops
