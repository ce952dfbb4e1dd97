// bfloat16 as bits, and the one NaN that kernels write.

#ifndef BACKEND_ASCEND_KERNELS_HOST_BFLOAT16_H_
#define BACKEND_ASCEND_KERNELS_HOST_BFLOAT16_H_

#include <cstdint>
#include <cstring>

#include "backend_ascend/kernels/host/tiles/cpu_features.h"

namespace hpmoe {

HPMOE_INLINE uint32_t FloatBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

HPMOE_INLINE float BitsFloat(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// Which NaN an operation gives differs between instruction sets (sign on x86,
// payload by operand order), so every kernel writes this one.
constexpr uint32_t kQuietNan = 0x7FC00000u;

HPMOE_INLINE float CanonicalNan(float x) {
  const uint32_t bits = FloatBits(x);
  return BitsFloat((bits & 0x7FFFFFFFu) > 0x7F800000u ? kQuietNan : bits);
}

HPMOE_INLINE float Bf16ToFloat(uint16_t x) {
  return BitsFloat(static_cast<uint32_t>(x) << 16);
}

// Round to nearest even; infinities and subnormals kept, NaN canonical.
HPMOE_INLINE uint16_t FloatToBf16(float x) {
  const uint32_t bits = FloatBits(CanonicalNan(x));
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

HPMOE_INLINE float RoundToBf16(float x) { return Bf16ToFloat(FloatToBf16(x)); }

// Storage types as overloads, so that one body serves both.
HPMOE_INLINE float LoadFloat(const float* p) { return *p; }
HPMOE_INLINE float LoadFloat(const uint16_t* p) { return Bf16ToFloat(*p); }
HPMOE_INLINE void StoreFloat(float x, float* p) { *p = CanonicalNan(x); }
HPMOE_INLINE void StoreFloat(float x, uint16_t* p) { *p = FloatToBf16(x); }

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_BFLOAT16_H_
