#include "backend_ascend/kernels/host/tiles/gemm_avx512.h"

#if HPMOE_X86

namespace hpmoe {
namespace {

using avx512::kCols;
using avx512::kRows;
using avx512::kVectors;

// Adds `count` products to every sum, of every `step`-th row of the operands.
template <int kM, int kV>
HPMOE_INLINE HPMOE_AVX512 void Chain(const float* a, const float* b,
                                     int32_t count, int step,
                                     __m512 (&acc)[kM][kV]) {
  for (int32_t p = 0; p < count; ++p, b += step * kCols, a += step * kM) {
    __m512 row[kV];
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) row[v] = _mm512_load_ps(b + 16 * v);
#pragma GCC unroll 14
    for (int i = 0; i < kM; ++i) {
      const __m512 x = _mm512_set1_ps(a[i]);
#pragma GCC unroll 2
      for (int v = 0; v < kV; ++v) {
        acc[i][v] = _mm512_fmadd_ps(x, row[v], acc[i][v]);
      }
    }
  }
}

template <int kM, int kV>
HPMOE_AVX512 void Micro(const MicroTile& t) {
  __m512 acc[kM][kV];
  avx512::Start(t, acc);
  Chain(t.a, t.panel, t.k, 1, acc);
  avx512::Finish(t, acc);
}

// One step of even_odd_32, of `terms`: c = start + (even + odd).  The sums of
// even terms wait in memory: registers are for one chain at a time.
template <int kM, int kV>
HPMOE_AVX512 void MicroEvenOdd(const MicroTile& t, const float* a,
                               const float* b, int32_t terms) {
  alignas(64) float even[kM][16 * kV];
  __m512 acc[kM][kV], start[kM][kV];
  avx512::Zero(acc);
  Chain(a, b, (terms + 1) / 2, 2, acc);
#pragma GCC unroll 14
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) _mm512_store_ps(even[i] + 16 * v, acc[i][v]);
  }
  avx512::Zero(acc);
  Chain(a + kM, b + kCols, terms / 2, 2, acc);
  avx512::Start(t, start);
#pragma GCC unroll 14
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) {
      const __m512 sum =
          _mm512_add_ps(_mm512_load_ps(even[i] + 16 * v), acc[i][v]);
      acc[i][v] = _mm512_add_ps(start[i][v], sum);
    }
  }
  avx512::Finish(t, acc);
}

constexpr MultiplyFn kMicro[kRows][kVectors] = HPMOE_MICROS(Micro);
constexpr StepFn kMicroEvenOdd[kRows][kVectors] = HPMOE_MICROS(MicroEvenOdd);

void Multiply(const MicroTile& t) { kMicro[t.rows - 1][(t.cols - 1) / 16](t); }

void MultiplyEvenOdd(const MicroTile& t) {
  if (t.k == 0) return Multiply(t);
  EvenOddSteps<kCols>(t, kMicroEvenOdd[t.rows - 1][(t.cols - 1) / 16]);
}

template <typename T>
HPMOE_AVX512 void Widen(const T* in, float* out, int64_t n) {
  WidenBody(in, out, n);
}

template <typename T>
HPMOE_AVX512 void Narrow(const float* in, T* out, int64_t n) {
  NarrowBody(in, out, n);
}

template <>
HPMOE_AVX512 void Widen(const Half* in, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto* const halves = reinterpret_cast<const __m256i*>(in + i);
    _mm512_storeu_ps(out + i,
                     _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(halves)));
  }
  WidenBody(in + i, out + i, n - i);
}

template <>
HPMOE_AVX512 void Narrow(const float* in, Half* out, int64_t n) {
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(kQuietNan));
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 x = _mm512_loadu_ps(in + i);
    x = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(out + i),
        _mm512_maskz_cvtps_ph(0xFFFF, x, _MM_FROUND_TO_NEAREST_INT));
  }
  NarrowBody(in + i, out + i, n - i);
}

template <typename T>
HPMOE_AVX512 void Pack(const T* const* in, int64_t first, int32_t rows,
                       int32_t cols, float* out, int32_t ld_out) {
  PackBody<kCols, kRows, T>(in, first, rows, cols, out, ld_out, Widen<T>);
}

template <typename T>
HPMOE_AVX512 void Transpose(const T* const* in, int64_t first, int32_t rows,
                            int32_t cols, float* out, int32_t ld_out) {
  TransposeBody<T>(in, first, rows, cols, out, ld_out, Widen<T>);
}

template <typename T>
constexpr GemmMoves<T> kMoves = {Pack<T>, Transpose<T>, Widen<T>, Narrow<T>};

}  // namespace

const GemmKernels kGemmAvx512 = {kRows,
                                 kCols,
                                 Multiply,
                                 MultiplyEvenOdd,
                                 {kMoves<float>, kMoves<Bf16>, kMoves<Half>}};

// Whatever is not bfloat16 in order even_odd_32 as AVX-512 does it.
const GemmKernels kGemmAvx512Amx = [] {
  GemmKernels kernels = kGemmAvx512;
  kernels.even_odd_pairs = &kEvenOddAmx;
  return kernels;
}();

}  // namespace hpmoe

#endif  // HPMOE_X86
