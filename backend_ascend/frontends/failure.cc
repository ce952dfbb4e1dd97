#include "backend_ascend/frontends/failure.h"

#include <cstddef>
#include <cstring>

#include "backend_ascend/kernels/host/tiles/finite.h"

namespace hpmoe {
namespace {

// Of an element that is not finite.
const char* NameOf(const char* data, DType dtype) {
  const int64_t bytes = BytesOf(dtype);
  uint32_t bits = 0;  // little-endian
  std::memcpy(&bits, data, bytes);
  const uint32_t sign = 1u << (8 * bytes - 1);
  if ((bits & ~sign) != kDTypes[dtype].exponent()) return "nan";
  return (bits & sign) != 0 ? "-inf" : "inf";
}

std::string IndexText(int64_t flat, const std::vector<int64_t>& shape) {
  std::string text = ")";
  for (size_t axis = shape.size(); axis-- > 0;) {
    text = std::to_string(flat % shape[axis]) + text;
    flat /= shape[axis];
    if (axis > 0) text = ", " + text;
  }
  return "(" + text;
}

}  // namespace

std::string NonFiniteText(const char* name, const void* data, DType dtype,
                          const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const char* const bytes = static_cast<const char*>(data);
  const int64_t at = FirstNonFinite(bytes, dtype, count);
  if (at < 0) return "";
  return std::string(name) + ": expected finite values, got " +
         NameOf(bytes + at * BytesOf(dtype), dtype) + " at " +
         IndexText(at, shape);
}

}  // namespace hpmoe
