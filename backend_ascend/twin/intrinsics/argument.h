// What the intrinsics of Ascend C's compiler are called with, as plain data:
// shared by the twin and by the source that is compiled against real headers.

#ifndef BACKEND_ASCEND_TWIN_INTRINSICS_ARGUMENT_H_
#define BACKEND_ASCEND_TWIN_INTRINSICS_ARGUMENT_H_

#include <cstdint>

namespace ascend_twin {

// Numbers of address spaces.
enum class Space : uint8_t {
  kNone,  // a value, or a pointer of the host's
  kGm,
  kUb,
  kL1,
  kL0A,
  kL0B,
  kL0C,
  kFixpipe,
  kBias,
  kSsBuffer
};

// A value, sign-extended, or a pointer.  `type` is a Type, of what a pointer
// points to; kNoType where the twin has none for it.
constexpr uint8_t kNoType = 255;
struct Argument {
  Space space;
  uint8_t type;
  uint64_t bits;
};

}  // namespace ascend_twin

extern "C" {
// The intrinsic of a name; one that ends the launch where there is none.
const void* hpmoe_twin_find(const char* name);
int64_t hpmoe_twin_call(const void* intrinsic,
                        const ascend_twin::Argument* arguments, int count);
// For HPMOE_ON_TASK, where the source has one.
void hpmoe_twin_task(int64_t index);
// Runs a kernel: `invoke` is called on each core with `kernel`, or the function
// of that name in the cube's code, and with `arguments`.
void hpmoe_twin_launch(const void* kernel, const char* cores, uint32_t blocks,
                       void (*invoke)(const void* kernel,
                                      const void* arguments),
                       const void* arguments);
}

#endif  // BACKEND_ASCEND_TWIN_INTRINSICS_ARGUMENT_H_
