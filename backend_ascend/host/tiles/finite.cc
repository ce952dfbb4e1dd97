#include "backend_ascend/host/tiles/finite.h"

#include <algorithm>
#include <cstring>

namespace hpmoe {
namespace {

// The first element whose exponent bits are all ones.
template <class T>
int64_t First(const char* data, int64_t count, T exponent) {
  // Adding the exponent's lowest bit carries into the sign bit just then, so a
  // chunk is tested without branches.
  constexpr int64_t kChunk = 1024;
  const T sign = static_cast<T>(~(static_cast<T>(~T{0}) >> 1));
  const T lowest = static_cast<T>(exponent & (0 - exponent));
  const auto carried = [&](int64_t i) {
    T bits;
    std::memcpy(&bits, data + i * sizeof(T), sizeof(T));
    return static_cast<T>((bits & exponent) + lowest);
  };
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = std::min(count, begin + kChunk);
    T any = 0;
    for (int64_t i = begin; i < end; ++i) any |= carried(i);
    if ((any & sign) == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if ((carried(i) & sign) != 0) return i;
    }
  }
  return -1;
}

}  // namespace

int64_t FirstNonFinite(const void* data, DType dtype, int64_t count) {
  const char* const bytes = static_cast<const char*>(data);
  const uint32_t exponent = kDTypes[dtype].exponent();
  if (BytesOf(dtype) == 2) return First<uint16_t>(bytes, count, exponent);
  return First<uint32_t>(bytes, count, exponent);
}

}  // namespace hpmoe
