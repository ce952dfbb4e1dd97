#include "backend_ascend/kernels/host/tiles/gemm_avx512.h"

#if HPMOE_X86

namespace hpmoe {
namespace {

using avx512::kCols;
using avx512::kRows;
using avx512::kVectors;

// VDPBF16PS computes fma(lower halves, fma(upper halves, sum)), subnormals
// flushed: two steps of the ascending chain where the upper halves come first.
HPMOE_INLINE HPMOE_AVX512_BF16 __m512bh AsPairs(__m512 x) {
  return reinterpret_cast<__m512bh>(x);
}

template <int kM, int kV>
HPMOE_AVX512_BF16 void Micro(const MicroTile& t) {
  __m512 acc[kM][kV];
  avx512::Start(t, acc);
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
  avx512::Finish(t, acc);
}

constexpr MultiplyFn kMicro[kRows][kVectors] = HPMOE_MICROS(Micro);

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

constexpr PairKernels kPairs = {Pack,  Transpose, Multiply,
                                kRows, Pack,      Transpose};

}  // namespace

// Whatever is no bfloat16 as AVX-512 does it.
const GemmKernels kGemmAvx512Bf16 = [] {
  GemmKernels kernels = kGemmAvx512;
  kernels.pairs = &kPairs;
  return kernels;
}();

}  // namespace hpmoe

#endif  // HPMOE_X86
