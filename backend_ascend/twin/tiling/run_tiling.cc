// Runs an operator's tiling function, which its library registers, and prints
// what it computes: `run_tiling LIBRARY < launch`, as host_tiling.py writes it.

#include <base/context_builder/op_tiling_context_builder.h>
#include <base/context_builder/op_tiling_parse_context_builder.h>
#include <dlfcn.h>
#include <exe_graph/runtime/continuous_vector.h>
#include <exe_graph/runtime/tensor.h>
#include <register/op_impl_registry.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "backend_ascend/twin/tiling/host_library.h"

extern "C" {
int32_t CheckLogLevel(int32_t, int32_t level) { return level == DLOG_ERROR; }
int dlog_getlevel(int, int*) { return DLOG_ERROR; }
void DlogRecord(int32_t, int32_t level, const char* format, ...) {
  if (level != DLOG_ERROR) return;
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  std::fputs("\n", stderr);
  va_end(arguments);
}
}

namespace gert {

// What an operator registers: its tiling alone is run.
struct HostFunctions {
  OpImplRegisterV2::TilingKernelFunc tiling = nullptr;
  OpImplRegisterV2::KernelFunc parse = nullptr;
  OpImplRegisterV2::CompileInfoCreatorFunc create = nullptr;
  size_t bytes = 2048;
};

static std::map<std::string, HostFunctions>& Operators() {
  static auto* const operators = new std::map<std::string, HostFunctions>;
  return *operators;
}

class OpImplRegisterV2Impl {
 public:
  HostFunctions* functions;
};

using Register = OpImplRegisterV2;

Register::OpImplRegisterV2(const ge::char_t* type)
    : impl_(new OpImplRegisterV2Impl{&Operators()[type]}) {}
Register::OpImplRegisterV2(OpImplRegisterV2&& other) noexcept
    : impl_(new OpImplRegisterV2Impl(*other.impl_)) {}
Register::OpImplRegisterV2(const OpImplRegisterV2& other)
    : impl_(new OpImplRegisterV2Impl(*other.impl_)) {}
Register::~OpImplRegisterV2() = default;

Register& Register::Tiling(TilingKernelFunc function, size_t bytes) {
  if (function != nullptr) impl_->functions->tiling = function;
  impl_->functions->bytes = bytes;
  return *this;
}
Register& Register::TilingParse(KernelFunc function,
                                CompileInfoCreatorFunc create,
                                CompileInfoDeleterFunc) {
  impl_->functions->parse = function;
  impl_->functions->create = create;
  return *this;
}

#define HPMOE_IGNORED(name, ...) \
  Register& Register::name(__VA_ARGS__) { return *this; }
HPMOE_IGNORED(InferShape, InferShapeKernelFunc)
HPMOE_IGNORED(InferShapeRange, InferShapeRangeKernelFunc)
HPMOE_IGNORED(InferDataType, InferDataTypeKernelFunc)
HPMOE_IGNORED(InferOutDataTypeSameWithFirstInput)
HPMOE_IGNORED(GenSimplifiedKey, GenSimplifiedKeyKernelFunc)
HPMOE_IGNORED(PrivateAttr, const ge::char_t*)
HPMOE_IGNORED(PrivateAttr, const ge::char_t*, int64_t)
HPMOE_IGNORED(PrivateAttr, const ge::char_t*, const std::vector<int64_t>&)
HPMOE_IGNORED(PrivateAttr, const ge::char_t*, const ge::char_t*)
HPMOE_IGNORED(PrivateAttr, const ge::char_t*, ge::float32_t)
HPMOE_IGNORED(PrivateAttr, const ge::char_t*, bool)
HPMOE_IGNORED(PrivateAttr, const ge::char_t*, const std::vector<ge::float32_t>&)
HPMOE_IGNORED(InputsDataDependency, std::initializer_list<int32_t>)
HPMOE_IGNORED(OpExecuteFunc, OpExecFunc)
HPMOE_IGNORED(Op2StageExecuteFuncs, OpExecPrepareFunc, OpExecLaunchFunc)
HPMOE_IGNORED(HostInputs, std::initializer_list<int32_t>)
HPMOE_IGNORED(TilingInputsDataDependency, std::initializer_list<int32_t>)
HPMOE_IGNORED(TilingInputsDataDependency, std::initializer_list<int32_t>,
              std::initializer_list<TilingPlacement>)
HPMOE_IGNORED(OutputShapeDependOnCompute, std::initializer_list<int32_t>)
HPMOE_IGNORED(InferFormat, InferFormatFunc)
HPMOE_IGNORED(CalcOpParam, OpCalcParamKernelFunc)
HPMOE_IGNORED(GenerateTask, OpGenTaskKernelFunc)
HPMOE_IGNORED(CheckSupport, OP_CHECK_FUNC_V2)
HPMOE_IGNORED(OpSelectFormat, OP_CHECK_FUNC_V2)
HPMOE_IGNORED(ExceptionDumpParseFunc, ExceptionDumpFunc)
HPMOE_IGNORED(NullableOutputs, std::initializer_list<int32_t>)
#undef HPMOE_IGNORED

}  // namespace gert

namespace ge {
class Operator;
}
namespace optiling {
using CheckFunction = ge::graphStatus (*)(const ge::Operator&,
                                          ge::AscendString&);
using GeneralizeFunction = ge::graphStatus (*)(const ge::Operator&,
                                               const ge::AscendString&,
                                               ge::AscendString&);
class OpCheckFuncHelper {
 public:
  OpCheckFuncHelper(const ge::AscendString&, const ge::AscendString&,
                    CheckFunction);
  OpCheckFuncHelper(const ge::AscendString&, GeneralizeFunction);
};
OpCheckFuncHelper::OpCheckFuncHelper(const ge::AscendString&,
                                     const ge::AscendString&, CheckFunction) {}
OpCheckFuncHelper::OpCheckFuncHelper(const ge::AscendString&,
                                     GeneralizeFunction) {}
}  // namespace optiling

namespace fe {

// Of Ascend910B1 and 910_93: 24 cubes, 48 vector cores.
bool PlatFormInfos::Init() {
  sections_ = {
      {"version",
       {{"Short_SoC_version", "Ascend910B"},
        {"SoC_version", "Ascend910B1"},
        {"NpuArch", "2201"},
        {"AIC_version", "AIC-C-220"}}},
      {"SoCInfo",
       {{"core_type_list", "CubeCore,VectorCore"},
        {"ai_core_cnt", "24"},
        {"cube_core_cnt", "24"},
        {"vector_core_cnt", "48"},
        {"l2_size", "201326592"},
        {"memory_size", "68719476736"},
        {"ffts_mode", "ffts+"}}},
      {"AICoreSpec",
       {{"ub_size", "196608"},
        {"l1_size", "524288"},
        {"l0_a_size", "65536"},
        {"l0_b_size", "65536"},
        {"l0_c_size", "131072"},
        {"fb0_size", "2048"},
        {"bt_size", "1024"},
        {"cube_freq", "1850"},
        {"ubblock_size", "32"},
        {"load3d_constraints", "0"}}},
      {"AICoreintrinsicDtypeMap",
       {{"Intrinsic_data_move_l12ub", "0"},
        {"Intrinsic_data_move_l12bt", "f16f16,f32f32,s32s32"},
        {"Intrinsic_fix_pipe_l0c2out", "f322f16,f322bf16,f322f32"},
        {"Intrinsic_data_move_out2l1_nd2nz", "f16"}}},
  };
  return true;
}

bool PlatFormInfos::GetPlatformRes(const std::string& section,
                                   const std::string& name,
                                   std::string& value) {
  const auto& values = sections_[section];
  const auto found = values.find(name);
  if (found == values.end()) return false;
  value = found->second;
  return true;
}
bool PlatFormInfos::GetPlatformRes(const std::string& section,
                                   std::map<std::string, std::string>& values) {
  values = sections_[section];
  return !values.empty();
}
void PlatFormInfos::SetPlatformRes(const std::string& section,
                                   std::map<std::string, std::string>& values) {
  for (const auto& [name, value] : values) sections_[section][name] = value;
}
void PlatFormInfos::SetCoreNumByCoreType(const std::string& type) {
  vector_ = type == "VectorCore";
}
uint32_t PlatFormInfos::GetCoreNum() const { return vector_ ? 48 : 24; }
uint32_t PlatFormInfos::GetCoreNumByType(const std::string& type) const {
  return type == "VectorCore" ? 48 : 24;
}
void PlatFormInfos::GetLocalMemSize(const LocalMemType& type, uint64_t& bytes) {
  static const char* const names[] = {"l0_a_size", "l0_b_size", "l0_c_size",
                                      "l1_size",   "l2_size",   "ub_size"};
  const auto at = static_cast<size_t>(type);
  std::string value;
  const char* const section =
      type == LocalMemType::L2 ? "SoCInfo" : "AICoreSpec";
  if (at < 6 && GetPlatformRes(section, names[at], value)) {
    bytes = std::stoull(value);
  }
}
void PlatFormInfos::GetLocalMemBw(const LocalMemType& type,
                                  uint64_t& bandwidth) {
  bandwidth = type == LocalMemType::HBM ? 32 : 110;
}
std::string PlatFormInfos::GetSocVersion() const { return "Ascend910B1"; }
std::string OptionalInfos::GetSocVersion() const { return "Ascend910B1"; }

PlatformInfoManager& PlatformInfoManager::Instance() {
  static auto* const manager = new PlatformInfoManager;
  return *manager;
}
uint32_t PlatformInfoManager::GetPlatformInfos(const std::string&,
                                               PlatFormInfos& platform,
                                               OptionalInfos&) {
  platform.Init();
  return 0;
}
uint32_t PlatformInfoManager::GetPlatformInfoWithOutSocVersion(
    PlatFormInfos& platform, OptionalInfos&) {
  platform.Init();
  return 0;
}
uint32_t PlatformInfoManager::GetPlatformInfoWithOutSocVersion(
    PlatformInfo& platform, OptionalInfo& optional) {
  platform = {{"Ascend910B"}, {24, 48}, {196608, 524288, 131072}};
  optional.soc_version = "Ascend910B1";
  return 0;
}
uint32_t PlatformInfoManager::GetRuntimePlatformInfosByDevice(
    const uint32_t&, PlatFormInfos& platform, bool) {
  platform.Init();
  return 0;
}

}  // namespace fe

namespace {

// Words of the launch, in order.
template <typename T>
T Next(std::istream& in) {
  T value{};
  in >> value;
  return value;
}

template <typename T>
std::vector<T> Values(std::istream& in) {
  std::vector<T> values(Next<size_t>(in));
  for (auto& value : values) {
    if constexpr (std::is_same_v<T, float>) {
      value = std::stof(Next<std::string>(in));
    } else {
      value = Next<T>(in);
    }
  }
  return values;
}

struct Tensors {
  std::vector<uint32_t> counts;  // of each argument of the definition
  std::vector<std::unique_ptr<gert::Tensor>> tensors;
  std::vector<std::vector<char>> bytes;

  std::vector<gert::Tensor*> Pointers() const {
    std::vector<gert::Tensor*> pointers;
    for (const auto& tensor : tensors) pointers.push_back(tensor.get());
    return pointers;
  }
};

// dtype, format, dimensions, and a file of its bytes or `-`.
void ReadTensor(std::istream& in, Tensors* out) {
  const auto dtype = static_cast<ge::DataType>(Next<int>(in));
  const auto format = static_cast<ge::Format>(Next<int>(in));
  const std::vector<int64_t> dims = Values<int64_t>(in);
  const auto file = Next<std::string>(in);
  gert::StorageShape shape;
  for (const int64_t dim : dims) {
    shape.MutableOriginShape().AppendDim(dim);
    shape.MutableStorageShape().AppendDim(dim);
  }
  void* data = nullptr;
  if (file != "-") {
    std::ifstream stream(file, std::ios::binary);
    out->bytes.emplace_back(std::istreambuf_iterator<char>(stream),
                            std::istreambuf_iterator<char>());
    out->bytes.back().reserve(1);
    data = out->bytes.back().data();
  }
  out->tensors.push_back(std::make_unique<gert::Tensor>(
      shape, gert::StorageFormat(format, format, gert::ExpandDimsType()),
      gert::kOnHost, dtype, data));
}

Tensors ReadTensors(std::istream& in) {
  Tensors out;
  const auto arguments = Next<size_t>(in);
  out.bytes.reserve(1024);
  for (size_t i = 0; i < arguments; ++i) {
    out.counts.push_back(Next<uint32_t>(in));
    for (uint32_t j = 0; j < out.counts.back(); ++j) ReadTensor(in, &out);
  }
  return out;
}

std::string ReadText(std::istream& in) {
  std::string text;
  in >> std::quoted(text);
  return text;
}

template <typename Builder>
void ReadAttribute(std::istream& in, Builder* builder) {
  const auto kind = Next<std::string>(in);
  if (kind == "Int") {
    builder->AppendAttr(Next<int64_t>(in));
  } else if (kind == "Float") {
    builder->AppendAttr(std::stof(Next<std::string>(in)));
  } else if (kind == "Bool") {
    builder->AppendAttr(Next<int>(in) != 0);
  } else if (kind == "String") {
    builder->AppendAttr(ge::AscendString(ReadText(in).c_str()));
  } else if (kind == "ListInt") {
    builder->AppendAttr(Values<int64_t>(in));
  } else if (kind == "ListFloat") {
    builder->AppendAttr(Values<float>(in));
  } else if (kind == "ListBool") {
    const auto numbers = Values<int>(in);
    builder->AppendAttr(std::vector<bool>(numbers.begin(), numbers.end()));
  }
}

template <typename Builder>
void Describe(const std::string& type, const std::string& attributes,
              const Tensors& inputs, const Tensors& outputs, Builder* builder) {
  builder->OpType(type.c_str()).OpName(type.c_str());
  builder->IOInstanceNum(inputs.counts, outputs.counts);
  std::istringstream in(attributes);
  const auto count = Next<size_t>(in);
  for (size_t i = 0; i < count; ++i) ReadAttribute(in, builder);
}

int Fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  return 1;
}

constexpr size_t kMostWorkspaces = 16;
// Of the struct: as much as any operator's, whatever it registers.
constexpr size_t kMostBytes = size_t{1} << 16;

int Run(const gert::HostFunctions& functions, const std::string& type,
        const std::string& attributes, const Tensors& inputs,
        const Tensors& outputs) {
  fe::PlatFormInfos platform;
  platform.Init();
  void* const compiled = functions.create ? functions.create() : &platform;
  if (functions.parse != nullptr) {
    gert::OpTilingParseContextBuilder builder;
    Describe(type, attributes, inputs, outputs, &builder);
    for (size_t i = 0; i < inputs.tensors.size(); ++i) {
      const auto& tensor = *inputs.tensors[i];
      builder.InputTensorDesc(i, tensor.GetDataType(), tensor.GetOriginFormat(),
                              tensor.GetStorageFormat());
    }
    for (size_t i = 0; i < outputs.tensors.size(); ++i) {
      const auto& tensor = *outputs.tensors[i];
      builder.OutputTensorDesc(i, tensor.GetDataType(),
                               tensor.GetOriginFormat(),
                               tensor.GetStorageFormat());
    }
    auto holder = builder.CompiledJson("{}")
                      .CompiledInfo(compiled)
                      .PlatformInfo(&platform)
                      .Build();
    auto* const context =
        reinterpret_cast<gert::KernelContext*>(holder.GetContext());
    if (context == nullptr || functions.parse(context) != 0) {
      return Fail("the operator's TilingParse fails");
    }
  }
  const auto workspace =
      gert::ContinuousVector::Create<size_t>(kMostWorkspaces);
  gert::OpTilingContextBuilder builder;
  Describe(type, attributes, inputs, outputs, &builder);
  auto holder =
      builder.CompileInfo(compiled)
          .PlatformInfo(&platform)
          .Deterministic(0)
          .TilingDataSize(std::max(functions.bytes, kMostBytes))
          .Workspace(reinterpret_cast<gert::ContinuousVector*>(workspace.get()))
          .InputTensors(inputs.Pointers())
          .OutputTensors(outputs.Pointers())
          .Build();
  gert::TilingContext* const context = holder.GetContext();
  if (context == nullptr) return Fail("no context for the tiling function");
  context->SetTilingKey(0);
  context->SetBlockDim(1);
  if (functions.tiling(context) != 0) {
    return Fail("the operator's tiling function fails");
  }
  uint64_t bytes = 0;
  const size_t* const sizes =
      context->GetWorkspaceSizes(context->GetWorkspaceNum());
  for (size_t i = 0; i < context->GetWorkspaceNum(); ++i) bytes += sizes[i];
  std::printf("key %lu\nblocks %u\nworkspace %lu\ntiling ",
              context->GetTilingKey(), context->GetBlockDim(), bytes);
  const auto* const data = context->GetRawTilingData();
  const auto* const raw = static_cast<const uint8_t*>(data->GetData());
  for (size_t i = 0; i < data->GetDataSize(); ++i) std::printf("%02x", raw[i]);
  std::printf("\n");
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return Fail("usage: run_tiling LIBRARY < launch");
  if (dlopen(words[1], RTLD_LAZY | RTLD_GLOBAL) == nullptr) {
    return Fail(dlerror());
  }
  std::istream& in = std::cin;
  const std::string type = ReadText(in);
  const Tensors inputs = ReadTensors(in);
  const Tensors outputs = ReadTensors(in);
  const std::string attributes((std::istreambuf_iterator<char>(in)),
                               std::istreambuf_iterator<char>());
  const auto found = gert::Operators().find(type);
  if (found == gert::Operators().end() || found->second.tiling == nullptr) {
    return Fail("the library registers no tiling function of " + type);
  }
  return Run(found->second, type, attributes, inputs, outputs);
}
