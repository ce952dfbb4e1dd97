#include <cstddef>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "backend_ascend/frontends/image_registry.h"
#include "backend_ascend/frontends/launch_call.h"
#include "backend_ascend/frontends/mindspore_ffi.h"
#include "backend_ascend/frontends/operands.h"

namespace hpmoe {
namespace {

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

int HpmoeMindSporeLaunch(int num_params, void** params, int* ndims,
                         int64_t** shapes, const char** dtypes, void*, void*) {
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
  const size_t given = launch == nullptr
                           ? 0
                           : hpmoe::OperandsOf(launch->image(), options).size();
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
