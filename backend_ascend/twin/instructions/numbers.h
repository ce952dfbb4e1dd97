// How elements become floats and back, as the units' modes say.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_NUMBERS_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_NUMBERS_H_

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "backend_ascend/twin/engine/instruction.h"
#include "backend_ascend/twin/instructions/operand.h"
#include "backend_ascend/twin/instructions/params.h"

namespace ascend_twin {

using AscendC::RoundMode;

// A number of any alignment.
template <typename T>
T Read(const char* at) {
  T x;
  std::memcpy(&x, at, sizeof(T));
  return x;
}
template <typename T>
void Write(char* at, T x) {
  std::memcpy(at, &x, sizeof(T));
}

inline uint32_t BitsOfFloat(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float FloatOfBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// Which NaN the units give is not published: the twin gives this one, so that
// its bits do not depend on the host.
constexpr uint32_t kNan = 0x7FC00000u;
// What a call writes where the hardware's value is not specified.
constexpr int kUnspecified = 0xFF;

inline float Canonical(float x) { return x == x ? x : FloatOfBits(kNan); }

// Saturation (CTRL[48] = 0): infinity becomes the largest value, NaN zero.
inline float Saturate(float x, float largest) {
  if (x != x) return 0.0f;
  return x > largest ? largest : x < -largest ? -largest : x;
}

// Whether the last kept bit of a magnitude grows: `kept` is its last bit,
// `rest` what is cut, `half` the weight of half a last bit.
inline bool Grows(RoundMode mode, bool negative, uint64_t kept, uint64_t rest,
                  uint64_t half) {
  switch (mode) {
    case RoundMode::CAST_FLOOR:
      return negative && rest != 0;
    case RoundMode::CAST_CEIL:
      return !negative && rest != 0;
    case RoundMode::CAST_ROUND:
      return rest >= half;
    case RoundMode::CAST_TRUNC:
      return false;
    case RoundMode::CAST_ODD:
      return rest != 0 && (kept & 1) == 0;
    default:
      return rest > half || (rest == half && (kept & 1) != 0);
  }
}

inline float FloatOfBf16(uint16_t bits) {
  return FloatOfBits(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t Bf16OfFloat(float x, RoundMode mode = RoundMode::CAST_RINT) {
  const uint32_t bits = BitsOfFloat(Canonical(x));
  const uint32_t kept = bits >> 16;
  const bool grows = Grows(mode, bits >> 31, kept, bits & 0xFFFFu, 0x8000u);
  return static_cast<uint16_t>(x == x ? kept + grows : kept);
}

// To nearest even, without a branch on the data.
inline uint16_t NearestBf16(float x) {
  const uint32_t bits = BitsOfFloat(Canonical(x));
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float FloatOfHalf(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 0x3FF;
  const float sign = bits >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return fraction ? FloatOfBits(kNan)
                    : sign * std::numeric_limits<float>::infinity();
  }
  if (exponent == 0) return sign * static_cast<float>(fraction) * 0x1p-24f;
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

inline uint16_t HalfOfFloat(float x, RoundMode mode = RoundMode::CAST_RINT) {
  const uint32_t bits = BitsOfFloat(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7E00u;
  if (magnitude == 0x7F800000u) return sign | 0x7C00u;
  const int exponent = static_cast<int>(magnitude >> 23);
  const uint64_t fraction =
      exponent == 0 ? magnitude : (magnitude & 0x7FFFFFu) | 0x800000u;
  // Bits below the last of a half: 13, more where the half is subnormal.
  int cut = 13 + (exponent < 113 ? 113 - (exponent == 0 ? 1 : exponent) : 0);
  if (cut > 60) cut = 60;
  const uint64_t kept = fraction >> cut;
  const uint64_t rest = fraction & ((uint64_t{1} << cut) - 1);
  // `kept` has the leading one, which counts one exponent.
  uint64_t half = exponent >= 113
                      ? (static_cast<uint64_t>(exponent - 113) << 10) + kept
                      : kept;
  half += Grows(mode, sign != 0, kept, rest, uint64_t{1} << (cut - 1));
  // Past the largest: infinity, or the largest where the mode cuts.
  const bool cuts = mode == RoundMode::CAST_TRUNC ||
                    mode == RoundMode::CAST_ODD ||
                    (mode == RoundMode::CAST_FLOOR && sign == 0) ||
                    (mode == RoundMode::CAST_CEIL && sign != 0);
  if (half >= 0x7C00u) half = cuts ? 0x7BFFu : 0x7C00u;
  return static_cast<uint16_t>(sign | half);
}

// Of kHalf, kBf16 or kFloat.
inline float FloatAt(const char* at, Type type) {
  if (type == Type::kFloat) return Read<float>(at);
  const uint16_t bits = Read<uint16_t>(at);
  return type == Type::kBf16 ? FloatOfBf16(bits) : FloatOfHalf(bits);
}

// To an integer that is still a float.
inline float RoundedToInteger(float x, RoundMode mode) {
  switch (mode) {
    case RoundMode::CAST_FLOOR:
      return std::floor(x);
    case RoundMode::CAST_CEIL:
      return std::ceil(x);
    case RoundMode::CAST_ROUND:
      return std::round(x);
    case RoundMode::CAST_TRUNC:
      return std::trunc(x);
    default:
      return std::nearbyint(x);
  }
}

constexpr float kLargestHalf = 65504.0f;
constexpr float kLargestBf16 = 0x1.FEp127f;
constexpr float kLargestFloat = std::numeric_limits<float>::max();

// While it lives, the host rounds to nearest and keeps subnormal numbers, or
// takes them for zero, whatever the caller's thread does.
class FloatScope {
 public:
  explicit FloatScope(bool flush_subnormals) {
#if defined(__SSE__)
    saved_ = _mm_getcsr();
    _mm_setcsr(0x1F80u | (flush_subnormals ? 0x8040u : 0u));
#else
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
#if defined(__aarch64__)
    if (flush_subnormals) {
      uint64_t control;
      __asm__ volatile("mrs %0, fpcr" : "=r"(control));
      __asm__ volatile("msr fpcr, %0" : : "r"(control | (1ull << 24)));
    }
#endif
#endif
  }
  ~FloatScope() {
#if defined(__SSE__)
    _mm_setcsr(saved_);
#else
    std::fesetenv(&saved_);
#endif
  }
  FloatScope(const FloatScope&) = delete;
  FloatScope& operator=(const FloatScope&) = delete;

 private:
#if defined(__SSE__)
  unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_NUMBERS_H_
