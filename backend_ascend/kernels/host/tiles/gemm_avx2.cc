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

// Adds `count` products to every sum, of every `step`-th row of the operands.
template <int kM, int kV>
HPMOE_INLINE HPMOE_AVX2 void Chain(const float* a, const float* b,
                                   int32_t count, int step,
                                   __m256 (&acc)[kM][kV]) {
  // Addresses and the branch are 4 of 24 instructions: too many where another
  // thread of the core takes half of what can be decoded.
#pragma GCC unroll 4
  for (int32_t p = 0; p < count; ++p, b += step * kCols, a += step * kM) {
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
}

template <int kM, int kV>
HPMOE_INLINE HPMOE_AVX2 void Zero(__m256 (&acc)[kM][kV]) {
#pragma GCC unroll 6
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) acc[i][v] = _mm256_setzero_ps();
  }
}

// Columns of a tile's last vector.
template <int kV>
struct Tail {
  int32_t cols;
  __m256i mask;

  HPMOE_AVX2 explicit Tail(const MicroTile& t)
      : cols(t.cols - 8 * (kV - 1)),
        mask(_mm256_cmpgt_epi32(_mm256_set1_epi32(cols),
                                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))) {}
  int32_t ColsOf(int v) const { return v + 1 < kV ? 8 : cols; }
};

// kWhole: t.cols == 8 * kV.  A branch at every load and store would cost as
// much as six steps of the depth.
template <int kM, int kV, bool kWhole>
HPMOE_AVX2 void MicroBody(const MicroTile& t) {
  const Tail<kV> tail(t);
  const int32_t last = kWhole ? 8 : tail.cols;
  __m256 acc[kM][kV];
#pragma GCC unroll 6
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) {
      acc[i][v] = t.start != nullptr ? Load(t.start + i * t.ld_start + 8 * v,
                                            v + 1 < kV ? 8 : last, tail.mask)
                                     : _mm256_setzero_ps();
    }
  }
  float* const c = t.c;  // stores to c may change t, for all the compiler knows
  const int64_t ldc = t.ldc;
  Chain(t.a, t.panel, t.k, 1, acc);
#pragma GCC unroll 6
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) {
      Store(acc[i][v], c + i * ldc + 8 * v, v + 1 < kV ? 8 : last, tail.mask);
    }
  }
}

template <int kM, int kV>
HPMOE_AVX2 void Micro(const MicroTile& t) {
  t.cols == 8 * kV ? MicroBody<kM, kV, true>(t) : MicroBody<kM, kV, false>(t);
}

// One step of even_odd_32, of `terms`: c = start + (even + odd).  The sums of
// even terms wait in memory: registers are for one chain at a time.
template <int kM, int kV>
HPMOE_AVX2 void MicroEvenOdd(const MicroTile& t, const float* a, const float* b,
                             int32_t terms) {
  const Tail<kV> tail(t);
  alignas(32) float even[kM][8 * kV];
  __m256 acc[kM][kV];
  Zero(acc);
  Chain(a, b, (terms + 1) / 2, 2, acc);
#pragma GCC unroll 6
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) _mm256_store_ps(even[i] + 8 * v, acc[i][v]);
  }
  Zero(acc);
  Chain(a + kM, b + kCols, terms / 2, 2, acc);
#pragma GCC unroll 6
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kV; ++v) {
      const __m256 sum =
          _mm256_add_ps(_mm256_load_ps(even[i] + 8 * v), acc[i][v]);
      const __m256 start = t.start != nullptr
                               ? Load(t.start + i * t.ld_start + 8 * v,
                                      tail.ColsOf(v), tail.mask)
                               : _mm256_setzero_ps();
      Store(_mm256_add_ps(start, sum), t.c + i * t.ldc + 8 * v, tail.ColsOf(v),
            tail.mask);
    }
  }
}

#define HPMOE_MICROS(micro)                                     \
  {                                                             \
    {micro<1, 1>, micro<1, 2>}, {micro<2, 1>, micro<2, 2>},     \
        {micro<3, 1>, micro<3, 2>}, {micro<4, 1>, micro<4, 2>}, \
        {micro<5, 1>, micro<5, 2>}, {                           \
      micro<6, 1>, micro<6, 2>                                  \
    }                                                           \
  }
constexpr MultiplyFn kMicro[kRows][kVectors] = HPMOE_MICROS(Micro);
constexpr StepFn kMicroEvenOdd[kRows][kVectors] = HPMOE_MICROS(MicroEvenOdd);
#undef HPMOE_MICROS

void Multiply(const MicroTile& t) { kMicro[t.rows - 1][(t.cols - 1) / 8](t); }

void MultiplyEvenOdd(const MicroTile& t) {
  if (t.k == 0) return Multiply(t);
  EvenOddSteps<kCols>(t, kMicroEvenOdd[t.rows - 1][(t.cols - 1) / 8]);
}

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

const GemmKernels kGemmAvx2 = {kRows,
                               kCols,
                               Multiply,
                               MultiplyEvenOdd,
                               {kMoves<float>, kMoves<Bf16>, kMoves<Half>}};

}  // namespace hpmoe

#endif  // HPMOE_X86
