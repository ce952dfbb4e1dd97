#include "backend_ascend/host/tiles/gemm_kernels.h"

#if HPMOE_X86

#include <immintrin.h>

#define HPMOE_TARGET HPMOE_AVX2
// Addresses and the branch are 4 of 24 instructions: too many where another
// thread of the core takes half of what can be decoded.
#define HPMOE_UNROLL_DEPTH _Pragma("GCC unroll 4")

namespace hpmoe {
namespace {

// 6 x 2 sums, 2 vectors of b and a broadcast of a: 15 of 16 registers.
constexpr int kRows = 6;
constexpr int kVectors = 2;
constexpr int kLanes = 8;
using Vector = __m256;

HPMOE_INLINE HPMOE_TARGET Vector Zero() { return _mm256_setzero_ps(); }
HPMOE_INLINE HPMOE_TARGET Vector Broadcast(const float* p) {
  return _mm256_broadcast_ss(p);
}
HPMOE_INLINE HPMOE_TARGET Vector LoadAligned(const float* p) {
  return _mm256_load_ps(p);
}
HPMOE_INLINE HPMOE_TARGET Vector Add(Vector x, Vector y) {
  return _mm256_add_ps(x, y);
}
HPMOE_INLINE HPMOE_TARGET Vector MultiplyAdd(Vector x, Vector y, Vector sum) {
  return _mm256_fmadd_ps(x, y, sum);
}
HPMOE_INLINE HPMOE_TARGET Vector WithCanonicalNan(Vector x) {
  const Vector nan = _mm256_castsi256_ps(_mm256_set1_epi32(kQuietNan));
  return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
HPMOE_INLINE HPMOE_TARGET __m256i MaskOf(int32_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// A masked store is slow on some CPUs, so full vectors take the plain one.
HPMOE_INLINE HPMOE_TARGET Vector Load(const float* p, int32_t count) {
  return count >= kLanes ? _mm256_loadu_ps(p)
                         : _mm256_maskload_ps(p, MaskOf(count));
}
HPMOE_INLINE HPMOE_TARGET void Store(Vector x, float* p, int32_t count) {
  x = WithCanonicalNan(x);
  if (count >= kLanes) return _mm256_storeu_ps(p, x);
  _mm256_maskstore_ps(p, MaskOf(count), x);
}

#include "backend_ascend/host/tiles/gemm_micro.h"

HPMOE_TARGET void Widen(const Half* in, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto* const halves = reinterpret_cast<const __m128i*>(in + i);
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(halves)));
  }
  WidenBody(in + i, out + i, n - i);
}

HPMOE_TARGET void Narrow(const float* in, Half* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vector x = WithCanonicalNan(_mm256_loadu_ps(in + i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  NarrowBody(in + i, out + i, n - i);
}

#include "backend_ascend/host/tiles/gemm_moves.h"

}  // namespace

const GemmKernels kGemmAvx2 = kKernels;

}  // namespace hpmoe

#endif  // HPMOE_X86
