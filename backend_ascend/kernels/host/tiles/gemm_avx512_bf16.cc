#include "backend_ascend/kernels/host/tiles/gemm_kernels.h"

#if HPMOE_X86

#include <immintrin.h>

namespace hpmoe {
namespace {

// VDPBF16PS computes fma(lower halves, fma(upper halves, sum)), subnormals
// flushed: two steps of the ascending chain where the upper halves come first.
HPMOE_INLINE HPMOE_AVX512_BF16 __m512bh AsPairs(__m512 x) {
  return reinterpret_cast<__m512bh>(x);
}

// 14 x 2 accumulators, 2 vectors of b and a broadcast of a: 31 of 32 registers.
constexpr int kRows = 14;
constexpr int kVectors = 2;
constexpr int kCols = 16 * kVectors;

template <int kM, int kV>
HPMOE_AVX512_BF16 void Micro(const MicroTile& t) {
  const __mmask16 tail = static_cast<__mmask16>(
      0xFFFFu >> (16 * kV - t.cols));  // of the last vector
  __m512 acc[kM][kV];
#pragma GCC unroll 14
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) {
      const __mmask16 mask = v + 1 < kV ? 0xFFFF : tail;
      acc[i][v] =
          t.start != nullptr
              ? _mm512_maskz_loadu_ps(mask, t.start + i * t.ld_start + 16 * v)
              : _mm512_setzero_ps();
    }
  }
  const float* b = t.panel;
  const float* a = t.a;
  for (int32_t p = 0; p < t.k; ++p, b += kCols, a += kM) {
    __m512 row[kV];
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) row[v] = _mm512_load_ps(b + 16 * v);
#pragma GCC unroll 14
    for (int i = 0; i < kM; ++i) {
      const __m512 x = _mm512_set1_ps(a[i]);
#pragma GCC unroll 2
      for (int v = 0; v < kV; ++v) {
        acc[i][v] = _mm512_dpbf16_ps(acc[i][v], AsPairs(x), AsPairs(row[v]));
      }
    }
  }
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(kQuietNan));
#pragma GCC unroll 14
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) {
      const __m512 x = acc[i][v];
      const __mmask16 bad = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
      _mm512_mask_storeu_ps(t.c + i * t.ldc + 16 * v,
                            v + 1 < kV ? 0xFFFF : tail,
                            _mm512_mask_mov_ps(x, bad, nan));
    }
  }
}

using MicroFn = void (*)(const MicroTile&);
#define HPMOE_MICRO(m) {Micro<m, 1>, Micro<m, 2>}
constexpr MicroFn kMicro[kRows][kVectors] = {
    HPMOE_MICRO(1),  HPMOE_MICRO(2),  HPMOE_MICRO(3),  HPMOE_MICRO(4),
    HPMOE_MICRO(5),  HPMOE_MICRO(6),  HPMOE_MICRO(7),  HPMOE_MICRO(8),
    HPMOE_MICRO(9),  HPMOE_MICRO(10), HPMOE_MICRO(11), HPMOE_MICRO(12),
    HPMOE_MICRO(13), HPMOE_MICRO(14)};
#undef HPMOE_MICRO

void Multiply(const MicroTile& t) { kMicro[t.rows - 1][(t.cols - 1) / 16](t); }

HPMOE_AVX512_BF16 void Pack(const Bf16* const* in, int64_t first, int32_t rows,
                            int32_t cols, uint16_t odd, float* out,
                            int32_t ld_out) {
  PackPairBody<kCols, kRows>(in, first, rows, cols, odd, out, ld_out);
}

HPMOE_AVX512_BF16 void Transpose(const Bf16* const* in, int64_t first,
                                 int32_t rows, int32_t cols, uint16_t odd,
                                 float* out, int32_t ld_out) {
  TransposePairBody(in, first, rows, cols, odd, out, ld_out);
}

constexpr PairKernels kPairs = {Pack, Transpose, Multiply};

}  // namespace

// Whatever is no bfloat16 as AVX-512 does it.
const GemmKernels kGemmAvx512Bf16 = [] {
  GemmKernels kernels = kGemmAvx512;
  kernels.pairs = &kPairs;
  return kernels;
}();

}  // namespace hpmoe

#endif  // HPMOE_X86
