// The function that MindSpore's custom operator calls: plain C types, and none
// of MindSpore's headers.

#ifndef BACKEND_ASCEND_FRONTENDS_MINDSPORE_FFI_H_
#define BACKEND_ASCEND_FRONTENDS_MINDSPORE_FFI_H_

#include <cstdint>

namespace hpmoe {

// Operand 0, [13] int64; the rest are those of operands.h.
struct MindSporeCall {
  char digest[64];  // hexadecimal, see image_registry.h
  int64_t threads;  // 0: as the runtime chooses
  double deadline_s;
  uint64_t given, asked;  // see launch_call.h
  int64_t scan;           // 0 or 1
};
static_assert(sizeof(MindSporeCall) == 104, "13 int64");

}  // namespace hpmoe

// Operands, then results: `params` their data, `ndims` and `shapes` their
// shapes, `dtypes` their names ("float32"); `num_params` counts both.  Returns
// 0, or throws std::runtime_error with one line: MindSpore catches it and says
// it, where of another return value it would say only the number.
extern "C" __attribute__((visibility("default"))) int HpmoeMindSporeLaunch(
    int num_params, void** params, int* ndims, int64_t** shapes,
    const char** dtypes, void* stream, void* extra);

#endif  // BACKEND_ASCEND_FRONTENDS_MINDSPORE_FFI_H_
