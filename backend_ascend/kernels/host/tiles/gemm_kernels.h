// What an instruction set provides to the GEMM tile; internal to gemm*.cc.

#ifndef BACKEND_ASCEND_KERNELS_HOST_GEMM_KERNELS_H_
#define BACKEND_ASCEND_KERNELS_HOST_GEMM_KERNELS_H_

#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "backend_ascend/kernels/host/tiles/storage.h"

namespace hpmoe {

// c[rows, cols] = a[rows, k] @ panel, the accumulators starting from `start`,
// which may be c, or from +0 where it is null.
struct MicroTile {
  const float* a;
  const float* panel;  // [k, panel_cols]; zero past `cols`
  float* c;
  const float* start;
  int64_t lda, ldc, ld_start;
  int32_t rows, cols, k;  // rows <= max_rows, cols <= panel_cols
};

// Between a storage type and float.
template <typename T>
struct GemmMoves {
  // out[k, panel_cols] = b[k, cols], zero past `cols`.
  void (*pack)(const T* b, int64_t ldb, int32_t k, int32_t cols, float* out);
  // out[cols, rows] = transpose of in[rows, cols].
  void (*transpose)(const T* in, int64_t ld_in, int32_t rows, int32_t cols,
                    float* out, int64_t ld_out);
  void (*widen)(const T* in, float* out, int64_t count);
  void (*narrow)(const float* in, T* out, int64_t count);
};

struct GemmKernels {
  int32_t max_rows;
  int32_t panel_cols;
  void (*multiply)(const MicroTile&);
  std::tuple<GemmMoves<float>, GemmMoves<Bf16>, GemmMoves<Half>> moves;

  template <typename T>
  const GemmMoves<T>& Moves() const {
    return std::get<GemmMoves<T>>(moves);
  }
};

// `isa` must be supported.
const GemmKernels& GemmKernelsOf(Isa isa);

extern const GemmKernels kGemmPortable;
#if HPMOE_X86
extern const GemmKernels kGemmAvx2;
extern const GemmKernels kGemmAvx512;
#elif HPMOE_NEON
extern const GemmKernels kGemmNeon;
#endif

// Whether a call of `widen` is faster than what a compiler makes of LoadFloat.
template <typename T>
constexpr bool kWidenByCall = std::is_same_v<T, Half>;

template <typename T>
using WidenFn = void (*)(const T* in, float* out, int64_t count);

// Bodies that every instruction set compiles for itself.
template <int kPanelCols, typename T>
HPMOE_INLINE void PackBody(const T* b, int64_t ldb, int32_t k, int32_t cols,
                           float* __restrict out, WidenFn<T> widen) {
  for (int32_t p = 0; p < k; ++p, b += ldb, out += kPanelCols) {
    if constexpr (kWidenByCall<T>) {
      widen(b, out, cols);
    } else if (cols == kPanelCols) {
      for (int32_t j = 0; j < kPanelCols; ++j) out[j] = LoadFloat(b + j);
    } else {
      for (int32_t j = 0; j < cols; ++j) out[j] = LoadFloat(b + j);
    }
    for (int32_t j = cols; j < kPanelCols; ++j) out[j] = 0.0f;
  }
}

// Vectors of 4 in the compiler's notation: in every baseline, and what is wider
// would be split before the body is inlined where it could be used.
constexpr int kQuad = 4;
typedef float Float4 __attribute__((vector_size(4 * kQuad)));

// out[kQuad, kQuad] = transpose of in[kQuad, kQuad].
HPMOE_INLINE void TransposeQuad(const float* in, int64_t ld_in,
                                float* __restrict out, int64_t ld_out) {
  Float4 x[kQuad];
  for (int i = 0; i < kQuad; ++i) {
    std::memcpy(&x[i], in + i * ld_in, sizeof(Float4));
  }
  const Float4 low01 = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
  const Float4 low23 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
  const Float4 high01 = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
  const Float4 high23 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  const Float4 y[kQuad] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                           __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                           __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                           __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
  for (int i = 0; i < kQuad; ++i) {
    std::memcpy(out + i * ld_out, &y[i], sizeof(Float4));
  }
}

// A block is `kLine` columns of kQuad rows: whole cache lines of `in`, each
// read once.
template <typename T>
HPMOE_INLINE void TransposeBody(const T* in, int64_t ld_in, int32_t rows,
                                int32_t cols, float* __restrict out,
                                int64_t ld_out, WidenFn<T> widen) {
  constexpr int kLine = 16;
  for (int32_t c = 0; c < cols; c += kLine) {
    const int32_t width = cols - c < kLine ? cols - c : kLine;
    int32_t r = 0;
    for (; width == kLine && r + kQuad <= rows; r += kQuad) {
      float wide[kQuad][kLine];
      for (int i = 0; i < kQuad; ++i) {
        const T* row = in + (r + i) * ld_in + c;
        if constexpr (kWidenByCall<T>) {
          widen(row, wide[i], kLine);
        } else {
          for (int j = 0; j < kLine; ++j) wide[i][j] = LoadFloat(row + j);
        }
      }
      for (int j = 0; j < kLine; j += kQuad) {
        TransposeQuad(&wide[0][j], kLine, out + (c + j) * ld_out + r, ld_out);
      }
    }
    for (; r < rows; ++r) {
      for (int32_t j = 0; j < width; ++j) {
        out[(c + j) * ld_out + r] = LoadFloat(in + r * ld_in + c + j);
      }
    }
  }
}

template <typename T>
HPMOE_INLINE void WidenBody(const T* in, float* __restrict out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = LoadFloat(in + i);
}

template <typename T>
HPMOE_INLINE void NarrowBody(const float* in, T* __restrict out,
                             int64_t count) {
  for (int64_t i = 0; i < count; ++i) StoreFloat(in[i], out + i);
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_GEMM_KERNELS_H_
