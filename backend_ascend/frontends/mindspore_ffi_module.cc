// The extension module of the MindSpore front end, and the library in which
// MindSpore finds the function that its custom operator calls: plain C types,
// and none of MindSpore's headers.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "backend_ascend/device/operator/call_binding.h"
#include "backend_ascend/frontends/image_registry.h"
#include "backend_ascend/frontends/launch_call.h"
#include "backend_ascend/frontends/operands.h"
#include "backend_ascend/frontends/register_binding.h"

namespace hpmoe {
namespace {

// Operand 0, [13] int64; the rest are those of operands.h.
struct MindSporeCall {
  char digest[64];  // hexadecimal, see image_registry.h
  int64_t threads;  // 0: as the runtime chooses
  double deadline_s;
  uint64_t given, asked;  // see launch_call.h
  int64_t scan;           // 0 or 1
};
static_assert(sizeof(MindSporeCall) == 104, "13 int64");

const std::map<std::string_view, int64_t>& ElementBytes() {
  static const auto* const bytes = new std::map<std::string_view, int64_t>{
      {"bfloat16", 2}, {"float16", 2}, {"float32", 4},
      {"int32", 4},    {"int64", 8},
  };
  return *bytes;
}

CallArray ArrayOf(void* data, int ndim, const int64_t* shape,
                  std::string_view dtype) {
  const auto found = ElementBytes().find(dtype);
  if (found == ElementBytes().end()) {
    throw std::runtime_error("dtype: expected one of a layer's, got " +
                             std::string(dtype));
  }
  CallArray array{data, found->second, {shape, shape + ndim}};
  for (const int64_t size : array.shape) array.bytes *= size;
  return array;
}

}  // namespace
}  // namespace hpmoe

// Operands, then results: `params` their data, `ndims` and `shapes` their
// shapes, `dtypes` their names ("float32"); `num_params` counts both.  Returns
// 0, or throws std::runtime_error with one line: MindSpore catches it and says
// it, where of another return value it would say only the number.
extern "C" __attribute__((visibility("default"))) int HpmoeMindSporeLaunch(
    int num_params, void** params, int* ndims, int64_t** shapes,
    const char** dtypes, void*, void*) {
  std::vector<hpmoe::CallArray> operands, results;
  for (int i = 0; i < num_params; ++i) {
    operands.push_back(
        hpmoe::ArrayOf(params[i], ndims[i], shapes[i], dtypes[i]));
  }
  hpmoe::MindSporeCall call;
  if (operands.empty() || operands[0].bytes != sizeof(call)) {
    throw std::runtime_error(
        "operand 0: expected 104 bytes, got " +
        std::to_string(operands.empty() ? 0 : operands[0].bytes));
  }
  std::memcpy(&call, operands[0].data, sizeof(call));
  operands.erase(operands.begin());
  const std::string_view digest(call.digest, sizeof(call.digest));
  const hpmoe::CallOptions options = {
      digest,          static_cast<int32_t>(call.threads),
      call.deadline_s, call.given,
      call.asked,      call.scan != 0};
  // Which params are results only the image can say.
  const hpmoe::Launch* const launch = hpmoe::FindLaunch(digest);
  const size_t given =
      launch == nullptr
          ? 0
          : hpmoe::OperandsOf(launch->image(), options, /*made=*/false).size();
  if (given < operands.size()) {
    results.assign(operands.begin() + given, operands.end());
    operands.resize(given);
  }
  const hpmoe::CallStatus status =
      hpmoe::CallLaunch(options, operands, results);
  if (status.code == hpmoe::CallStatus::kDone) return 0;
  // The error may be told long after: what is read before then is no number.
  for (const hpmoe::CallArray& result : results) {
    std::memset(result.data, 0xFF, result.bytes);
  }
  throw std::runtime_error(status.text);
}

NB_MODULE(_mindspore_ffi, m) {
  m.doc() = "Native part of backend_ascend.frontends.mindspore_layer.";
  m.attr("function") = "HpmoeMindSporeLaunch";
  hpmoe::BindRegister(m);
  hpmoe::BindNpuCall(m);
}
