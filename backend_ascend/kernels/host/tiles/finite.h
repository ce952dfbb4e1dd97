// Values that a launch refuses.

#ifndef BACKEND_ASCEND_KERNELS_HOST_FINITE_H_
#define BACKEND_ASCEND_KERNELS_HOST_FINITE_H_

#include <cstdint>

namespace hpmoe {

// Index of the first of `count` values that is infinite or NaN, or -1.
// `float_bytes`: 2 for bfloat16, 4 for float32.
int64_t FirstNonFinite(const void* data, int64_t float_bytes, int64_t count);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_FINITE_H_
