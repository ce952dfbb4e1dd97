#include "backend_ascend/host/tiles/gemm_kernels.h"

namespace hpmoe {
namespace {

constexpr int kRows = 4;
constexpr int kCols = 8;

using Sums = float[kRows][kCols];

void Start(const MicroTile& t, Sums& acc) {
  if (t.start == nullptr) return;
  for (int i = 0; i < t.rows; ++i) {
    for (int j = 0; j < t.cols; ++j) acc[i][j] = t.start[i * t.ld_start + j];
  }
}

void Finish(const MicroTile& t, const Sums& acc) {
  for (int i = 0; i < t.rows; ++i) {
    for (int j = 0; j < t.cols; ++j) {
      t.c[i * t.ldc + j] = CanonicalNan(acc[i][j]);
    }
  }
}

// Adds the terms `begin`, `begin + step`, .. before `end`.
void Chain(const MicroTile& t, int32_t begin, int32_t end, int32_t step,
           Sums& acc) {
  for (int32_t p = begin; p < end; p += step) {
    const float* b = t.panel + p * kCols;
    for (int i = 0; i < t.rows; ++i) {
      const float a = t.a[p * t.rows + i];
      for (int j = 0; j < kCols; ++j) {
        acc[i][j] = __builtin_fmaf(a, b[j], acc[i][j]);
      }
    }
  }
}

void Multiply(const MicroTile& t) {
  Sums acc = {};
  Start(t, acc);
  Chain(t, 0, t.k, 1, acc);
  Finish(t, acc);
}

void MultiplyEvenOdd(const MicroTile& t) {
  Sums acc = {};
  Start(t, acc);
  for (int32_t p = 0; p < t.k; p += kEvenOddTerms) {
    const int32_t end = t.k - p < kEvenOddTerms ? t.k : p + kEvenOddTerms;
    Sums even = {}, odd = {};
    Chain(t, p, end, 2, even);
    Chain(t, p + 1, end, 2, odd);
    for (int i = 0; i < t.rows; ++i) {
      for (int j = 0; j < kCols; ++j) acc[i][j] += even[i][j] + odd[i][j];
    }
  }
  Finish(t, acc);
}

#define HPMOE_TARGET
#include "backend_ascend/host/tiles/gemm_moves.h"

}  // namespace

const GemmKernels kGemmPortable = kKernels;

}  // namespace hpmoe
