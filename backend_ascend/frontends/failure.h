// What a refused input is told, word for word what runtime.py says.

#ifndef BACKEND_ASCEND_FRONTENDS_FAILURE_H_
#define BACKEND_ASCEND_FRONTENDS_FAILURE_H_

#include <string>
#include <vector>

#include "backend_ascend/kernels/dtypes.h"

namespace hpmoe {

// As runtime.launch refuses the first value that is not finite; empty if there
// is none.
std::string NonFiniteText(const char* name, const void* data, DType dtype,
                          const std::vector<int64_t>& shape);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_FRONTENDS_FAILURE_H_
