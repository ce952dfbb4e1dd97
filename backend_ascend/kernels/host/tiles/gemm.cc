#include "backend_ascend/kernels/host/tiles/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <type_traits>

#include "backend_ascend/kernels/host/tiles/gemm_kernels.h"
#include "backend_ascend/kernels/host/tiles/storage.h"

namespace hpmoe {
namespace {

constexpr int32_t kDepth = 512;  // of a panel, so that it stays in cache

int32_t DivideUp(int32_t a, int32_t b) { return (a + b - 1) / b; }

// Rows in parts of nearly equal size: a short last part would leave the
// multipliers idle.
void MultiplyPanel(const GemmKernels& kernels, MicroTile micro, int32_t m) {
  const int32_t parts = DivideUp(m, kernels.max_rows);
  for (int32_t part = 0; part < parts; ++part) {
    micro.rows = m / parts + (part < m % parts ? 1 : 0);
    kernels.multiply(micro);
    micro.a += micro.rows * micro.lda;
    micro.c += micro.rows * micro.ldc;
    if (micro.start != nullptr) micro.start += micro.rows * micro.ld_start;
  }
}

// out[depth, panel_cols] = b[p : p + depth, j : j + cols], zero past `cols`.
template <typename T>
void PackPanel(const GemmKernels& kernels, const GemmTile& t, int32_t p,
               int32_t j, int32_t depth, int32_t cols, float* out) {
  const GemmMoves<T>& moves = kernels.Moves<T>();
  const T* b = static_cast<const T*>(t.b);
  if (!t.trans_b) {
    return moves.pack(b + p * t.ldb + j, t.ldb, depth, cols, out);
  }
  if (cols < kernels.panel_cols) {
    std::fill_n(out, int64_t{depth} * kernels.panel_cols, 0.0f);
  }
  moves.transpose(b + j * t.ldb + p, t.ldb, cols, depth, out,
                  kernels.panel_cols);
}

struct Rows {
  float* data;
  int64_t ld;
};

struct ConstRows {
  const float* data;
  int64_t ld;
};

// a[:, p : p + depth] in float32, in place where it is stored so.
template <typename T>
ConstRows RowsOfA(const GemmKernels& kernels, const GemmTile& t, int32_t p,
                  int32_t depth, GemmScratch* scratch) {
  const GemmMoves<T>& moves = kernels.Moves<T>();
  const T* a = static_cast<const T*>(t.a);
  if constexpr (std::is_same_v<T, float>) {
    if (!t.trans_a) return {a + p, t.lda};
  }
  float* wide =
      scratch->Reserve(GemmScratch::kWideA, static_cast<int64_t>(t.m) * depth);
  if (t.trans_a) {
    moves.transpose(a + p * t.lda, t.lda, depth, t.m, wide, depth);
  } else {
    for (int32_t i = 0; i < t.m; ++i) {
      moves.widen(a + i * t.lda + p, wide + static_cast<int64_t>(i) * depth,
                  depth);
    }
  }
  return {wide, depth};
}

// sum = start + a[:, p : p + depth] @ b[p : p + depth]; from +0 where `start`
// is null.
template <typename T>
void MultiplyDepth(const GemmKernels& kernels, const GemmTile& t, int32_t p,
                   ConstRows start, Rows sum, GemmScratch* scratch) {
  const int32_t depth = std::min(kDepth, t.k - p);
  const ConstRows a = RowsOfA<T>(kernels, t, p, depth, scratch);
  float* panel = scratch->Reserve(
      GemmScratch::kPanel, static_cast<int64_t>(depth) * kernels.panel_cols);
  for (int32_t j = 0; j < t.n; j += kernels.panel_cols) {
    const int32_t cols = std::min(kernels.panel_cols, t.n - j);
    PackPanel<T>(kernels, t, p, j, depth, cols, panel);
    MultiplyPanel(kernels,
                  MicroTile{a.data, panel, sum.data + j,
                            start.data == nullptr ? nullptr : start.data + j,
                            a.ld, sum.ld, start.ld, /*rows=*/0, cols, depth},
                  t.m);
  }
}

// The sums are carried in float32 between depths and between calls, so
// blocking over k changes no bit.
template <typename T>
void Multiply(const GemmKernels& kernels, const GemmTile& t, Rows sum,
              GemmScratch* scratch) {
  ConstRows start = {nullptr, 0};
  if (t.carry != nullptr && t.carry_in) start = {t.carry, t.ld_carry};
  for (int32_t p = 0; p == 0 || p < t.k; p += kDepth) {
    MultiplyDepth<T>(kernels, t, p, start, sum, scratch);
    start = {sum.data, sum.ld};
  }
}

bool EndsInCarry(const GemmTile& t) {
  return t.carry != nullptr && t.carry_out;
}

template <typename T>
void MultiplyStored(const GemmKernels& kernels, const GemmTile& t,
                    GemmScratch* scratch) {
  if (EndsInCarry(t)) {
    return Multiply<T>(kernels, t, {t.carry, t.ld_carry}, scratch);
  }
  if constexpr (std::is_same_v<T, float>) {
    return Multiply<T>(kernels, t, {static_cast<T*>(t.c), t.ldc}, scratch);
  }
  float* sum =
      scratch->Reserve(GemmScratch::kPartial, static_cast<int64_t>(t.m) * t.n);
  Multiply<T>(kernels, t, {sum, t.n}, scratch);
  for (int32_t i = 0; i < t.m; ++i) {
    kernels.Moves<T>().narrow(sum + static_cast<int64_t>(i) * t.n,
                              static_cast<T*>(t.c) + i * t.ldc, t.n);
  }
}

template <typename T>
void MultiplyBf16Accumulate(const GemmTile& t) {
  const T* a = static_cast<const T*>(t.a);
  const T* b = static_cast<const T*>(t.b);
  for (int32_t i = 0; i < t.m; ++i) {
    for (int32_t j = 0; j < t.n; ++j) {
      float* carry =
          t.carry == nullptr ? nullptr : t.carry + i * t.ld_carry + j;
      float acc = carry != nullptr && t.carry_in ? *carry : 0.0f;
      for (int32_t p = 0; p < t.k; ++p) {
        const T* x = t.trans_a ? a + p * t.lda + i : a + i * t.lda + p;
        const T* y = t.trans_b ? b + j * t.ldb + p : b + p * t.ldb + j;
        acc = RoundToBf16(__builtin_fmaf(LoadFloat(x), LoadFloat(y), acc));
      }
      if (EndsInCarry(t)) {
        StoreFloat(acc, carry);
      } else {
        StoreFloat(acc, static_cast<T*>(t.c) + i * t.ldc + j);
      }
    }
  }
}

}  // namespace

float* GemmScratch::Reserve(Slot slot, int64_t count) {
  if (count > sizes_[slot]) {
    constexpr int64_t kLine = 64;
    const int64_t bytes = (count * 4 + kLine - 1) / kLine * kLine;
    sizes_[slot] = 0;
    buffers_[slot].reset(static_cast<float*>(std::aligned_alloc(kLine, bytes)));
    if (buffers_[slot] == nullptr) throw std::bad_alloc();
    sizes_[slot] = count;
  }
  return buffers_[slot].get();
}

const GemmKernels& GemmKernelsOf(Isa isa) {
#if HPMOE_X86
  if (isa == Isa::kAvx2) return kGemmAvx2;
  if (isa == Isa::kAvx512) return kGemmAvx512;
#elif HPMOE_NEON
  if (isa == Isa::kNeon) return kGemmNeon;
#endif
  (void)isa;
  return kGemmPortable;
}

void RunGemmTile(const GemmTile& tile, Isa isa, GemmScratch* scratch) {
  if (tile.m <= 0 || tile.n <= 0) return;
  HPMOE_STORED(tile.dtype,
               MultiplyStored<T>(GemmKernelsOf(isa), tile, scratch));
}

void RunGemmTileBf16Accumulate(const GemmTile& tile) {
  HPMOE_STORED(tile.dtype, MultiplyBf16Accumulate<T>(tile));
}

}  // namespace hpmoe
