// Tiles of sums in AVX-512's registers; internal to gemm_avx512*.cc.

#ifndef BACKEND_ASCEND_KERNELS_HOST_GEMM_AVX512_H_
#define BACKEND_ASCEND_KERNELS_HOST_GEMM_AVX512_H_

#include "backend_ascend/kernels/host/tiles/gemm_kernels.h"

#if HPMOE_X86

#include <immintrin.h>

namespace hpmoe {
namespace avx512 {

// 14 x 2 accumulators, 2 vectors of b and a broadcast of a: 31 of 32 registers.
constexpr int kRows = 14;
constexpr int kVectors = 2;
constexpr int kCols = 16 * kVectors;

// Columns of vector `v` of a tile's kV.
template <int kV>
HPMOE_INLINE HPMOE_AVX512 __mmask16 MaskOf(const MicroTile& t, int v) {
  const __mmask16 tail = static_cast<__mmask16>(
      0xFFFFu >> (16 * kV - t.cols));  // of the last vector
  return v + 1 < kV ? 0xFFFF : tail;
}

template <int kM, int kV>
HPMOE_INLINE HPMOE_AVX512 void Zero(__m512 (&acc)[kM][kV]) {
#pragma GCC unroll 14
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) acc[i][v] = _mm512_setzero_ps();
  }
}

template <int kM, int kV>
HPMOE_INLINE HPMOE_AVX512 void Start(const MicroTile& t,
                                     __m512 (&acc)[kM][kV]) {
  if (t.start == nullptr) return Zero(acc);
#pragma GCC unroll 14
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) {
      const __mmask16 mask = MaskOf<kV>(t, v);
      acc[i][v] =
          _mm512_maskz_loadu_ps(mask, t.start + i * t.ld_start + 16 * v);
    }
  }
}

template <int kM, int kV>
HPMOE_INLINE HPMOE_AVX512 void Finish(const MicroTile& t,
                                      const __m512 (&acc)[kM][kV]) {
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(kQuietNan));
#pragma GCC unroll 14
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) {
      const __m512 x = acc[i][v];
      const __mmask16 bad = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
      _mm512_mask_storeu_ps(t.c + i * t.ldc + 16 * v, MaskOf<kV>(t, v),
                            _mm512_mask_mov_ps(x, bad, nan));
    }
  }
}

// A function template for each number of rows and vectors.
#define HPMOE_MICRO(f, m) {f<m, 1>, f<m, 2>}
#define HPMOE_MICROS(f)                                        \
  {HPMOE_MICRO(f, 1),  HPMOE_MICRO(f, 2),  HPMOE_MICRO(f, 3),  \
   HPMOE_MICRO(f, 4),  HPMOE_MICRO(f, 5),  HPMOE_MICRO(f, 6),  \
   HPMOE_MICRO(f, 7),  HPMOE_MICRO(f, 8),  HPMOE_MICRO(f, 9),  \
   HPMOE_MICRO(f, 10), HPMOE_MICRO(f, 11), HPMOE_MICRO(f, 12), \
   HPMOE_MICRO(f, 13), HPMOE_MICRO(f, 14)}

}  // namespace avx512
}  // namespace hpmoe

#endif  // HPMOE_X86

#endif  // BACKEND_ASCEND_KERNELS_HOST_GEMM_AVX512_H_
