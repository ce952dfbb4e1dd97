// What a refused input is told, word for word what runtime.py says.

#ifndef BACKEND_ASCEND_FRONTENDS_FAILURE_H_
#define BACKEND_ASCEND_FRONTENDS_FAILURE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hpmoe {

// As runtime.launch refuses the first value that is not finite; empty if there
// is none.  `float_bytes`: 2 for bfloat16, 4 for float32.
std::string NonFiniteText(const char* name, const void* data,
                          int64_t float_bytes,
                          const std::vector<int64_t>& shape);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_FRONTENDS_FAILURE_H_
