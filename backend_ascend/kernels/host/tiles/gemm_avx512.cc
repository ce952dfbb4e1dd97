#include "backend_ascend/kernels/host/tiles/gemm_kernels.h"

#if HPMOE_X86

#include <immintrin.h>

namespace hpmoe {
namespace {

// 14 x 2 accumulators, 2 vectors of b and a broadcast of a: 31 of 32 registers.
constexpr int kRows = 14;
constexpr int kVectors = 2;
constexpr int kCols = 16 * kVectors;

template <int kM, int kV>
HPMOE_AVX512 void Micro(const MicroTile& t) {
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
        acc[i][v] = _mm512_fmadd_ps(x, row[v], acc[i][v]);
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

const GemmKernels kGemmAvx512 = {
    kRows, kCols, Multiply, {kMoves<float>, kMoves<Bf16>, kMoves<Half>}};

}  // namespace hpmoe

#endif  // HPMOE_X86
