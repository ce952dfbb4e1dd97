// Values that a launch refuses.

#ifndef BACKEND_ASCEND_HOST_TILES_FINITE_H_
#define BACKEND_ASCEND_HOST_TILES_FINITE_H_

#include <cstdint>

#include "backend_ascend/image/dtypes.h"

namespace hpmoe {

// Index of the first of `count` values that is infinite or NaN, or -1.
int64_t FirstNonFinite(const void* data, DType dtype, int64_t count);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_TILES_FINITE_H_
