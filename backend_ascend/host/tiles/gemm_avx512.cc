#include "backend_ascend/host/tiles/gemm_kernels.h"

#if HPMOE_X86

#include <immintrin.h>

#define HPMOE_TARGET HPMOE_AVX512
#define HPMOE_UNROLL_DEPTH

namespace hpmoe {
namespace {

// 14 x 2 sums, 2 vectors of b and a broadcast of a: 31 of 32 registers.
constexpr int kRows = 14;
constexpr int kVectors = 2;
constexpr int kLanes = 16;
using Vector = __m512;

HPMOE_INLINE HPMOE_TARGET Vector Zero() { return _mm512_setzero_ps(); }
HPMOE_INLINE HPMOE_TARGET Vector Broadcast(const float* p) {
  return _mm512_set1_ps(*p);
}
HPMOE_INLINE HPMOE_TARGET Vector LoadAligned(const float* p) {
  return _mm512_load_ps(p);
}
HPMOE_INLINE HPMOE_TARGET Vector Add(Vector x, Vector y) {
  return _mm512_add_ps(x, y);
}
HPMOE_INLINE HPMOE_TARGET Vector WithCanonicalNan(Vector x) {
  const Vector nan = _mm512_castsi512_ps(_mm512_set1_epi32(kQuietNan));
  return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}
HPMOE_INLINE HPMOE_TARGET __mmask16 MaskOf(int32_t count) {
  return count >= kLanes ? 0xFFFF : 0xFFFFu >> (kLanes - count);
}
HPMOE_INLINE HPMOE_TARGET Vector Load(const float* p, int32_t count) {
  return _mm512_maskz_loadu_ps(MaskOf(count), p);
}
HPMOE_INLINE HPMOE_TARGET void Store(Vector x, float* p, int32_t count) {
  _mm512_mask_storeu_ps(p, MaskOf(count), WithCanonicalNan(x));
}

HPMOE_INLINE HPMOE_TARGET Vector MultiplyAdd(Vector x, Vector y, Vector sum) {
  return _mm512_fmadd_ps(x, y, sum);
}

#include "backend_ascend/host/tiles/gemm_micro.h"

HPMOE_TARGET void Widen(const Half* in, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto* const halves = reinterpret_cast<const __m256i*>(in + i);
    _mm512_storeu_ps(out + i,
                     _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(halves)));
  }
  WidenBody(in + i, out + i, n - i);
}

HPMOE_TARGET void Narrow(const float* in, Half* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vector x = WithCanonicalNan(_mm512_loadu_ps(in + i));
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(out + i),
        _mm512_maskz_cvtps_ph(0xFFFF, x, _MM_FROUND_TO_NEAREST_INT));
  }
  NarrowBody(in + i, out + i, n - i);
}

#include "backend_ascend/host/tiles/gemm_moves.h"

#undef HPMOE_TARGET
#define HPMOE_TARGET HPMOE_AVX512_BF16

namespace pairs {

// VDPBF16PS computes fma(lower halves, fma(upper halves, sum)), subnormals
// flushed: two steps of the ascending chain where the upper halves come first.
HPMOE_INLINE HPMOE_TARGET Vector MultiplyAdd(Vector x, Vector y, Vector sum) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x),
                          reinterpret_cast<__m512bh>(y));
}

#include "backend_ascend/host/tiles/gemm_micro.h"

HPMOE_TARGET void Pack(const Bf16* const* in, int64_t first, int32_t rows,
                       int32_t cols, uint16_t odd, float* out, int32_t ld_out) {
  PackPairBody<kCols, kRows>(in, first, rows, cols, odd, out, ld_out);
}

HPMOE_TARGET void Transpose(const Bf16* const* in, int64_t first, int32_t rows,
                            int32_t cols, uint16_t odd, float* out,
                            int32_t ld_out) {
  TransposePairBody(in, first, rows, cols, odd, out, ld_out);
}

constexpr PairKernels kKernels = {Pack,  Transpose, Multiply,
                                  kRows, Pack,      Transpose};

}  // namespace pairs

GemmKernels With(const PairKernels* ascending, const PairKernels* even_odd) {
  GemmKernels kernels = kKernels;
  kernels.pairs = ascending;
  kernels.even_odd_pairs = even_odd;
  return kernels;
}

}  // namespace

// Whatever is no bfloat16 as AVX-512 does it, and in the other order.
const GemmKernels kGemmAvx512 = kKernels;
const GemmKernels kGemmAvx512Bf16 = With(&pairs::kKernels, nullptr);
const GemmKernels kGemmAvx512Amx = With(nullptr, &kEvenOddAmx);

}  // namespace hpmoe

#endif  // HPMOE_X86
