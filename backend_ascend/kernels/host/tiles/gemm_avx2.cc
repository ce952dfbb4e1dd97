#include "backend_ascend/kernels/host/tiles/gemm_kernels.h"

#if HPMOE_X86

#include <immintrin.h>

namespace hpmoe {
namespace {

// 6 x 2 accumulators, 2 vectors of b and a broadcast of a: 15 of 16 registers.
constexpr int kRows = 6;
constexpr int kVectors = 2;
constexpr int kCols = 8 * kVectors;

// A masked store is slow on some CPUs, so full vectors take the plain one.
HPMOE_INLINE HPMOE_AVX2 __m256 Load(const float* p, int32_t cols,
                                    __m256i mask) {
  return cols >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, mask);
}

HPMOE_INLINE HPMOE_AVX2 void Store(__m256 x, float* p, int32_t cols,
                                   __m256i mask) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(kQuietNan));
  x = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  if (cols >= 8) {
    _mm256_storeu_ps(p, x);
  } else {
    _mm256_maskstore_ps(p, mask, x);
  }
}

template <int kM, int kV>
HPMOE_AVX2 void Micro(const MicroTile& t) {
  const int32_t last = t.cols - 8 * (kV - 1);  // columns of the last vector
  const __m256i mask = _mm256_cmpgt_epi32(
      _mm256_set1_epi32(last), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  __m256 acc[kM][kV];
#pragma GCC unroll 6
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) {
      acc[i][v] = t.start != nullptr ? Load(t.start + i * t.ld_start + 8 * v,
                                            v + 1 < kV ? 8 : last, mask)
                                     : _mm256_setzero_ps();
    }
  }
  const float* b = t.panel;
  const float* a = t.a;
  for (int32_t p = 0; p < t.k; ++p, b += kCols, a += kM) {
    __m256 row[kV];
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) row[v] = _mm256_load_ps(b + 8 * v);
#pragma GCC unroll 6
    for (int i = 0; i < kM; ++i) {
      const __m256 x = _mm256_broadcast_ss(a + i);
#pragma GCC unroll 2
      for (int v = 0; v < kV; ++v) {
        acc[i][v] = _mm256_fmadd_ps(x, row[v], acc[i][v]);
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) {
      Store(acc[i][v], t.c + i * t.ldc + 8 * v, v + 1 < kV ? 8 : last, mask);
    }
  }
}

using MicroFn = void (*)(const MicroTile&);
constexpr MicroFn kMicro[kRows][kVectors] = {
    {Micro<1, 1>, Micro<1, 2>}, {Micro<2, 1>, Micro<2, 2>},
    {Micro<3, 1>, Micro<3, 2>}, {Micro<4, 1>, Micro<4, 2>},
    {Micro<5, 1>, Micro<5, 2>}, {Micro<6, 1>, Micro<6, 2>}};

void Multiply(const MicroTile& t) { kMicro[t.rows - 1][(t.cols - 1) / 8](t); }

template <typename T>
HPMOE_AVX2 void Widen(const T* in, float* out, int64_t n) {
  WidenBody(in, out, n);
}

template <typename T>
HPMOE_AVX2 void Narrow(const float* in, T* out, int64_t n) {
  NarrowBody(in, out, n);
}

template <>
HPMOE_AVX2 void Widen(const Half* in, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const auto* const halves = reinterpret_cast<const __m128i*>(in + i);
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(halves)));
  }
  WidenBody(in + i, out + i, n - i);
}

template <>
HPMOE_AVX2 void Narrow(const float* in, Half* out, int64_t n) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(kQuietNan));
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 x = _mm256_loadu_ps(in + i);
    x = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  NarrowBody(in + i, out + i, n - i);
}

template <typename T>
HPMOE_AVX2 void Pack(const T* const* in, int64_t first, int32_t rows,
                     int32_t cols, float* out, int32_t ld_out) {
  PackBody<kCols, kRows, T>(in, first, rows, cols, out, ld_out, Widen<T>);
}

template <typename T>
HPMOE_AVX2 void Transpose(const T* const* in, int64_t first, int32_t rows,
                          int32_t cols, float* out, int32_t ld_out) {
  TransposeBody<T>(in, first, rows, cols, out, ld_out, Widen<T>);
}

template <typename T>
constexpr GemmMoves<T> kMoves = {Pack<T>, Transpose<T>, Widen<T>, Narrow<T>};

}  // namespace

const GemmKernels kGemmAvx2 = {
    kRows, kCols, Multiply, {kMoves<float>, kMoves<Bf16>, kMoves<Half>}};

}  // namespace hpmoe

#endif  // HPMOE_X86
