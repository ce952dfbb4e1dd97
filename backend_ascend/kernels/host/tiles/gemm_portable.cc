#include "backend_ascend/kernels/host/tiles/gemm_kernels.h"

namespace hpmoe {
namespace {

constexpr int kRows = 4;
constexpr int kCols = 8;

void Multiply(const MicroTile& t) {
  float acc[kRows][kCols] = {};
  if (t.start != nullptr) {
    for (int i = 0; i < t.rows; ++i) {
      for (int j = 0; j < t.cols; ++j) acc[i][j] = t.start[i * t.ld_start + j];
    }
  }
  for (int32_t p = 0; p < t.k; ++p) {
    const float* b = t.panel + p * kCols;
    for (int i = 0; i < t.rows; ++i) {
      const float a = t.a[p * t.rows + i];
      for (int j = 0; j < kCols; ++j) {
        acc[i][j] = __builtin_fmaf(a, b[j], acc[i][j]);
      }
    }
  }
  for (int i = 0; i < t.rows; ++i) {
    for (int j = 0; j < t.cols; ++j) {
      t.c[i * t.ldc + j] = CanonicalNan(acc[i][j]);
    }
  }
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

const GemmKernels kGemmPortable = {
    kRows, kCols, Multiply, {kMoves<float>, kMoves<Bf16>, kMoves<Half>}};

}  // namespace hpmoe
