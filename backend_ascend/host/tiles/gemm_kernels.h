// What an instruction set provides to the GEMM tile; internal to gemm*.cc.

#ifndef BACKEND_ASCEND_HOST_TILES_GEMM_KERNELS_H_
#define BACKEND_ASCEND_HOST_TILES_GEMM_KERNELS_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "backend_ascend/host/tiles/storage.h"

namespace hpmoe {

// c[rows, cols] = a^T @ panel, the sums starting from `start`, which may be c,
// or from +0 where it is null.
struct MicroTile {
  const float* a;      // [k, rows]
  const float* panel;  // [k, panel_cols]; zero past `cols`
  float* c;
  const float* start;
  int64_t ldc, ld_start;
  int32_t rows, cols, k;  // rows <= max_rows, cols <= panel_cols
};

using MultiplyFn = void (*)(const MicroTile&);

// Between a storage type and float.
template <typename T>
struct GemmMoves {
  // out[rows, ld_out] = in[rows][first : first + cols], zero past `cols`.
  void (*pack)(const T* const* in, int64_t first, int32_t rows, int32_t cols,
               float* out, int32_t ld_out);
  // out[cols, ld_out] = transpose of in[rows][first : first + cols]; what is
  // past `rows` stays.
  void (*transpose)(const T* const* in, int64_t first, int32_t rows,
                    int32_t cols, float* out, int32_t ld_out);
  void (*widen)(const T* in, float* out, int64_t count);
  void (*narrow)(const float* in, T* out, int64_t count);
};

// Products of bfloat16 two of the depth at a time.  An element of a packed
// operand is a pair: the one that is multiplied first in the upper half.
struct PairKernels {
  // As GemmMoves::pack and transpose, of rows p and p + 1, or columns; where
  // their number is odd `odd` stands in for what follows the last.
  void (*pack)(const Bf16* const* in, int64_t first, int32_t rows, int32_t cols,
               uint16_t odd, float* out, int32_t ld_out);
  void (*transpose)(const Bf16* const* in, int64_t first, int32_t rows,
                    int32_t cols, uint16_t odd, float* out, int32_t ld_out);
  MultiplyFn multiply;  // k pairs
  // Of what `multiply` takes as a.
  int32_t max_rows;
  decltype(pack) pack_a;
  decltype(transpose) transpose_a;
  void (*release)() = nullptr;  // after a tile's products; or null
};

struct GemmKernels {
  int32_t max_rows;
  int32_t panel_cols;
  MultiplyFn multiply;           // ascending
  MultiplyFn multiply_even_odd;  // even_odd_32
  std::tuple<GemmMoves<float>, GemmMoves<Bf16>, GemmMoves<Half>> moves;
  // Of bfloat16, instead of its moves, by order; or null.
  const PairKernels* pairs = nullptr;
  const PairKernels* even_odd_pairs = nullptr;

  template <typename T>
  const GemmMoves<T>& Moves() const {
    return std::get<GemmMoves<T>>(moves);
  }
};

// `isa` must be supported.
const GemmKernels& GemmKernelsOf(Isa isa);

// One step of even_odd_32: c = start + the sum of `terms`, which lie at a and b
// as those of a MicroTile do.
using StepFn = void (*)(const MicroTile&, const float* a, const float* b,
                        int32_t terms);

// All steps of a tile, at least one.
template <int kCols>
inline void EvenOddSteps(const MicroTile& t, StepFn step) {
  MicroTile part = t;
  for (int32_t p = 0; p < t.k; p += kEvenOddTerms) {
    const int32_t left = t.k - p;
    step(part, t.a + p * t.rows, t.panel + p * kCols,
         left < kEvenOddTerms ? left : kEvenOddTerms);
    part.start = t.c;
    part.ld_start = t.ldc;
  }
}

extern const GemmKernels kGemmPortable;
#if HPMOE_X86
extern const GemmKernels kGemmAvx2;
extern const GemmKernels kGemmAvx512;
extern const GemmKernels kGemmAvx512Bf16;
extern const GemmKernels kGemmAvx512Amx;
extern const PairKernels kEvenOddAmx;
#elif HPMOE_NEON
extern const GemmKernels kGemmNeon;
#endif

// Whether a call of `widen` is faster than what a compiler makes of LoadFloat.
template <typename T>
constexpr bool kWidenByCall = std::is_same_v<T, Half>;

template <typename T>
using WidenFn = void (*)(const T* in, float* out, int64_t count);

// Bodies that every instruction set compiles for itself.
template <int kCols, typename T>
HPMOE_INLINE void PackRows(const T* const* in, int64_t first, int32_t rows,
                           int32_t cols, float* __restrict out, int32_t ld_out,
                           WidenFn<T> widen) {
  for (int32_t p = 0; p < rows; ++p, out += ld_out) {
    const T* const row = in[p] + first;
    if constexpr (kWidenByCall<T>) {
      widen(row, out, cols);
    } else if constexpr (kCols > 0) {
      for (int32_t j = 0; j < kCols; ++j) out[j] = LoadFloat(row + j);
    } else {
      for (int32_t j = 0; j < cols; ++j) out[j] = LoadFloat(row + j);
    }
    for (int32_t j = cols; j < ld_out; ++j) out[j] = 0.0f;
  }
}

// kFull and kPart: numbers of columns that are worth code of their own.
template <int kFull, int kPart, typename T>
HPMOE_INLINE void PackBody(const T* const* in, int64_t first, int32_t rows,
                           int32_t cols, float* out, int32_t ld_out,
                           WidenFn<T> widen) {
  if (cols == kFull) {
    PackRows<kFull, T>(in, first, rows, cols, out, ld_out, widen);
  } else if (cols == kPart) {
    PackRows<kPart, T>(in, first, rows, cols, out, ld_out, widen);
  } else {
    PackRows<0, T>(in, first, rows, cols, out, ld_out, widen);
  }
}

// Vectors of 4 in the compiler's notation: in every baseline, and what is wider
// would be split before the body is inlined where it could be used.
constexpr int kQuad = 4;
typedef float Float4 __attribute__((vector_size(4 * kQuad)));

// out[kQuad, kQuad] = transpose of kQuad columns of kQuad rows.
HPMOE_INLINE void TransposeQuad(const float* const* rows, int32_t col,
                                float* __restrict out, int64_t ld_out) {
  Float4 x[kQuad];
  for (int i = 0; i < kQuad; ++i) {
    std::memcpy(&x[i], rows[i] + col, sizeof(Float4));
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

// out[kQuad, 2] = transpose of kQuad columns of two rows.
HPMOE_INLINE void TransposeTwo(const float* const* rows, int32_t col,
                               float* __restrict out, int64_t ld_out) {
  typedef int64_t Two __attribute__((vector_size(4 * kQuad)));
  Float4 x[2];
  for (int i = 0; i < 2; ++i) std::memcpy(&x[i], rows[i] + col, sizeof(Float4));
  const Two y[2] = {
      reinterpret_cast<Two>(__builtin_shufflevector(x[0], x[1], 0, 4, 1, 5)),
      reinterpret_cast<Two>(__builtin_shufflevector(x[0], x[1], 2, 6, 3, 7))};
  for (int i = 0; i < kQuad; ++i) {
    const int64_t two = y[i / 2][i % 2];
    std::memcpy(out + i * ld_out, &two, sizeof(two));
  }
}

constexpr int kLine = 16;  // columns: whole cache lines of float32

// out[kLine, kRows] = transpose of kLine columns, from `col`, of kRows rows.
template <int kRows, typename T>
HPMOE_INLINE void TransposeLine(const T* const* in, int64_t col,
                                float* __restrict out, int64_t ld_out,
                                WidenFn<T> widen) {
  float wide[kRows][kLine];
  const float* rows[kRows];
  for (int i = 0; i < kRows; ++i) {
    const T* const row = in[i] + col;
    rows[i] = wide[i];
    if constexpr (std::is_same_v<T, float>) {
      rows[i] = row;
    } else if constexpr (kWidenByCall<T>) {
      widen(row, wide[i], kLine);
    } else {
      for (int j = 0; j < kLine; ++j) wide[i][j] = LoadFloat(row + j);
    }
  }
  for (int j = 0; j < kLine; j += kQuad) {
    if constexpr (kRows == kQuad) {
      TransposeQuad(rows, j, out + j * ld_out, ld_out);
    } else {
      TransposeTwo(rows, j, out + j * ld_out, ld_out);
    }
  }
}

// A block is `kLine` columns of four or two rows: whole cache lines of each
// row, each read once.
template <typename T>
HPMOE_INLINE void TransposeBody(const T* const* in, int64_t first, int32_t rows,
                                int32_t cols, float* __restrict out,
                                int64_t ld_out, WidenFn<T> widen) {
  for (int32_t c = 0; c < cols; c += kLine, out += kLine * ld_out) {
    const int32_t width = cols - c < kLine ? cols - c : kLine;
    int32_t r = 0;
    for (; width == kLine && r + kQuad <= rows; r += kQuad) {
      TransposeLine<kQuad>(in + r, first + c, out + r, ld_out, widen);
    }
    for (; width == kLine && r + 2 <= rows; r += 2) {
      TransposeLine<2>(in + r, first + c, out + r, ld_out, widen);
    }
    for (; r < rows; ++r) {
      for (int32_t j = 0; j < width; ++j) {
        out[j * ld_out + r] = LoadFloat(in[r] + first + c + j);
      }
    }
  }
}

// A pair of bfloat16 side by side, as a float of PairKernels.
struct Bf16Pair {
  Bf16 first, second;
};

HPMOE_INLINE float PairOf(Bf16 first, Bf16 second) {
  return BitsFloat(uint32_t{first.bits} << 16 | second.bits);
}

HPMOE_INLINE float LoadFloat(const Bf16Pair* p) {
  return PairOf(p->first, p->second);
}

template <int kCols>
HPMOE_INLINE void PackPairRows(const Bf16* const* in, int64_t first,
                               int32_t rows, int32_t cols, uint16_t odd,
                               float* __restrict out, int32_t ld_out) {
  const int32_t count = kCols > 0 ? kCols : cols;
  int32_t p = 0;
  for (; p + 1 < rows; p += 2, out += ld_out) {
    const Bf16* const a = in[p] + first;
    const Bf16* const b = in[p + 1] + first;
    for (int32_t j = 0; j < count; ++j) out[j] = PairOf(a[j], b[j]);
    for (int32_t j = count; j < ld_out; ++j) out[j] = 0.0f;
  }
  if (p == rows) return;
  for (int32_t j = 0; j < count; ++j) {
    out[j] = PairOf(in[p][first + j], Bf16{odd});
  }
  for (int32_t j = count; j < ld_out; ++j) out[j] = 0.0f;
}

template <int kFull, int kPart>
HPMOE_INLINE void PackPairBody(const Bf16* const* in, int64_t first,
                               int32_t rows, int32_t cols, uint16_t odd,
                               float* out, int32_t ld_out) {
  if (cols == kFull) {
    PackPairRows<kFull>(in, first, rows, cols, odd, out, ld_out);
  } else if (cols == kPart) {
    PackPairRows<kPart>(in, first, rows, cols, odd, out, ld_out);
  } else {
    PackPairRows<0>(in, first, rows, cols, odd, out, ld_out);
  }
}

// `first` is even.
HPMOE_INLINE void TransposePairBody(const Bf16* const* in, int64_t first,
                                    int32_t rows, int32_t cols, uint16_t odd,
                                    float* __restrict out, int32_t ld_out) {
  TransposeBody<Bf16Pair>(reinterpret_cast<const Bf16Pair* const*>(in),
                          first / 2, rows, cols / 2, out, ld_out, nullptr);
  if (cols % 2 == 0) return;
  float* const last = out + int64_t{cols / 2} * ld_out;
  for (int32_t r = 0; r < rows; ++r) {
    last[r] = PairOf(in[r][first + cols - 1], Bf16{odd});
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

#endif  // BACKEND_ASCEND_HOST_TILES_GEMM_KERNELS_H_
