#include "backend_ascend/kernels/host/tiles/gemm_kernels.h"

#if HPMOE_NEON

#include <arm_neon.h>

namespace hpmoe {
namespace {

// 8 x 3 accumulators, 3 vectors of b and a broadcast of a: 28 of 32 registers.
constexpr int kRows = 8;
constexpr int kVectors = 3;
constexpr int kCols = 4 * kVectors;

float32x4_t LoadFirst(const float* p, int32_t count) {
  float lanes[4] = {};
  for (int32_t j = 0; j < count && j < 4; ++j) lanes[j] = p[j];
  return vld1q_f32(lanes);
}

void StoreFirst(float32x4_t x, float* p, int32_t count) {
  float lanes[4];
  vst1q_f32(lanes, x);
  for (int32_t j = 0; j < count && j < 4; ++j) p[j] = CanonicalNan(lanes[j]);
}

template <int kM>
HPMOE_INLINE void Start(const MicroTile& t, float32x4_t (&acc)[kM][kVectors]) {
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      acc[i][v] =
          t.start != nullptr
              ? LoadFirst(t.start + i * t.ld_start + 4 * v, t.cols - 4 * v)
              : vdupq_n_f32(0.0f);
    }
  }
}

// Adds `count` products to every sum, of every `step`-th row of the operands.
template <int kM>
HPMOE_INLINE void Chain(const float* a, const float* b, int32_t count, int step,
                        float32x4_t (&acc)[kM][kVectors]) {
  for (int32_t p = 0; p < count; ++p, b += step * kCols, a += step * kM) {
    float32x4_t row[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) row[v] = vld1q_f32(b + 4 * v);
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) {
      const float32x4_t x = vld1q_dup_f32(a + i);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        acc[i][v] = vfmaq_f32(acc[i][v], x, row[v]);
      }
    }
  }
}

template <int kM>
HPMOE_INLINE void Finish(const MicroTile& t, float32x4_t (&acc)[kM][kVectors]) {
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      StoreFirst(acc[i][v], t.c + i * t.ldc + 4 * v, t.cols - 4 * v);
    }
  }
}

template <int kM>
void Micro(const MicroTile& t) {
  float32x4_t acc[kM][kVectors];
  Start(t, acc);
  Chain(t.a, t.panel, t.k, 1, acc);
  Finish(t, acc);
}

// One step of even_odd_32, of `terms`: c = start + (even + odd).
template <int kM>
void MicroEvenOdd(const MicroTile& t, const float* a, const float* b,
                  int32_t terms) {
  float32x4_t even[kM][kVectors] = {}, odd[kM][kVectors] = {};
  Chain(a, b, (terms + 1) / 2, 2, even);
  Chain(a + kM, b + kCols, terms / 2, 2, odd);
  float32x4_t acc[kM][kVectors];
  Start(t, acc);
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      acc[i][v] = vaddq_f32(acc[i][v], vaddq_f32(even[i][v], odd[i][v]));
    }
  }
  Finish(t, acc);
}

#define HPMOE_MICROS(micro)                \
  {micro<1>, micro<2>, micro<3>, micro<4>, \
   micro<5>, micro<6>, micro<7>, micro<8>}
constexpr MultiplyFn kMicro[kRows] = HPMOE_MICROS(Micro);
constexpr StepFn kMicroEvenOdd[kRows] = HPMOE_MICROS(MicroEvenOdd);
#undef HPMOE_MICROS

void Multiply(const MicroTile& t) { kMicro[t.rows - 1](t); }

void MultiplyEvenOdd(const MicroTile& t) {
  if (t.k == 0) return Multiply(t);
  EvenOddSteps<kCols>(t, kMicroEvenOdd[t.rows - 1]);
}

template <typename T>
void Widen(const T* in, float* out, int64_t n) {
  WidenBody(in, out, n);
}

template <typename T>
void Narrow(const float* in, T* out, int64_t n) {
  NarrowBody(in, out, n);
}

template <typename T>
void Pack(const T* const* in, int64_t first, int32_t rows, int32_t cols,
          float* out, int32_t ld_out) {
  PackBody<kCols, kRows, T>(in, first, rows, cols, out, ld_out, Widen<T>);
}

template <typename T>
void Transpose(const T* const* in, int64_t first, int32_t rows, int32_t cols,
               float* out, int32_t ld_out) {
  TransposeBody<T>(in, first, rows, cols, out, ld_out, Widen<T>);
}

template <typename T>
constexpr GemmMoves<T> kMoves = {Pack<T>, Transpose<T>, Widen<T>, Narrow<T>};

}  // namespace

const GemmKernels kGemmNeon = {kRows,
                               kCols,
                               Multiply,
                               MultiplyEvenOdd,
                               {kMoves<float>, kMoves<Bf16>, kMoves<Half>}};

}  // namespace hpmoe

#endif  // HPMOE_NEON
