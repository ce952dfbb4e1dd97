// How a stored value becomes a float and back, and the one NaN that kernels
// write.

#ifndef BACKEND_ASCEND_HOST_TILES_STORAGE_H_
#define BACKEND_ASCEND_HOST_TILES_STORAGE_H_

#include <cstdint>
#include <cstring>

#include "backend_ascend/host/tiles/cpu_features.h"
#include "backend_ascend/image/dtypes.h"

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

// Without a branch, so that loops around it vectorise.
HPMOE_INLINE uint32_t Select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// Exact; NaN is made quiet, as the instruction does.  No branches and no
// subnormal floats, so that it vectorises and no unit flushes anything.
HPMOE_INLINE float HalfToFloat(uint16_t x) {
  constexpr uint32_t kExponent = 0x1Fu << 23;
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  constexpr float kSmallest = 0x1p-14f;  // normal half
  const uint32_t shifted = (x & 0x7FFFu) << 13;
  const uint32_t exponent = shifted & kExponent;
  // A subnormal m has no leading one: 2^-14 (1 + m) - 2^-14.
  const float subnormal = BitsFloat(shifted + FloatBits(kSmallest)) - kSmallest;
  const uint32_t quiet = Select((shifted & 0x7FFFFFu) != 0, 0x400000u, 0u);
  uint32_t bits = shifted + kRebias;
  bits = Select(exponent == 0, FloatBits(subnormal), bits);
  bits = Select(exponent == kExponent, shifted | 0x7F800000u | quiet, bits);
  return BitsFloat(bits | static_cast<uint32_t>(x & 0x8000u) << 16);
}

// Round to nearest even, also among subnormals; what rounds past the largest
// becomes infinite, NaN canonical.
HPMOE_INLINE uint16_t FloatToHalf(float x) {
  const uint32_t bits = FloatBits(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  // The last bit of 0.5 is the smallest half: the addition rounds to it.
  const uint32_t subnormal =
      FloatBits(BitsFloat(magnitude) + 0.5f) - FloatBits(0.5f);
  const uint32_t normal =
      (magnitude - ((127u - 15u) << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >>
      13;
  uint32_t half = Select(magnitude < FloatBits(0x1p-14f), subnormal, normal);
  half = Select(magnitude >= FloatBits(0x1p16f), 0x7C00u, half);
  half = Select(magnitude > 0x7F800000u, 0x7E00u, half);
  const uint32_t sign = Select(magnitude > 0x7F800000u, 0u, bits >> 16);
  return static_cast<uint16_t>(half | (sign & 0x8000u));
}

// One body serves all storage types.
HPMOE_INLINE float LoadFloat(const float* p) { return *p; }
HPMOE_INLINE float LoadFloat(const Bf16* p) { return Bf16ToFloat(p->bits); }
HPMOE_INLINE float LoadFloat(const Half* p) { return HalfToFloat(p->bits); }
HPMOE_INLINE void StoreFloat(float x, float* p) { *p = CanonicalNan(x); }
HPMOE_INLINE void StoreFloat(float x, Bf16* p) { p->bits = FloatToBf16(x); }
HPMOE_INLINE void StoreFloat(float x, Half* p) { p->bits = FloatToHalf(x); }

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_TILES_STORAGE_H_
