#include "backend_ascend/frontends/failure.h"

#include <cstddef>
#include <cstring>

#include "backend_ascend/kernels/host/tiles/finite.h"

namespace hpmoe {
namespace {

uint32_t Float32Bits(const char* data, int64_t float_bytes) {
  uint16_t half = 0;
  uint32_t bits = 0;
  if (float_bytes == 4) {
    std::memcpy(&bits, data, sizeof(bits));
    return bits;
  }
  std::memcpy(&half, data, sizeof(half));
  return uint32_t{half} << 16;
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

std::string NonFiniteText(const char* name, const void* data,
                          int64_t float_bytes,
                          const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const char* const bytes = static_cast<const char*>(data);
  const int64_t at = FirstNonFinite(bytes, float_bytes, count);
  if (at < 0) return "";
  const uint32_t bits = Float32Bits(bytes + at * float_bytes, float_bytes);
  const bool nan = (bits & 0x007FFFFF) != 0;
  const char* const value = nan ? "nan" : (bits >> 31) != 0 ? "-inf" : "inf";
  return std::string(name) + ": expected finite values, got " + value + " at " +
         IndexText(at, shape);
}

}  // namespace hpmoe
