#include "backend_ascend/kernels/host/gemm.h"

#include <algorithm>

#include "backend_ascend/kernels/host/bfloat16.h"
#include "backend_ascend/kernels/host/gemm_kernels.h"

namespace hpmoe {
namespace {

constexpr int32_t kDepth = 512;  // of a panel, so that it stays in cache

const GemmKernels& KernelsOf(Isa isa) {
#if HPMOE_X86
  if (isa == Isa::kAvx2) return kGemmAvx2;
  if (isa == Isa::kAvx512) return kGemmAvx512;
#elif HPMOE_NEON
  if (isa == Isa::kNeon) return kGemmNeon;
#endif
  (void)isa;
  return kGemmPortable;
}

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
  }
}

template <typename T>
void Pack(const GemmKernels& kernels, const GemmTile& t, int32_t p, int32_t j,
          int32_t depth, int32_t cols, float* out);

template <>
void Pack<float>(const GemmKernels& kernels, const GemmTile& t, int32_t p,
                 int32_t j, int32_t depth, int32_t cols, float* out) {
  kernels.pack_float(static_cast<const float*>(t.b) + p * t.ldb + j, t.ldb,
                     depth, cols, out);
}

template <>
void Pack<uint16_t>(const GemmKernels& kernels, const GemmTile& t, int32_t p,
                    int32_t j, int32_t depth, int32_t cols, float* out) {
  kernels.pack_bf16(static_cast<const uint16_t*>(t.b) + p * t.ldb + j, t.ldb,
                    depth, cols, out);
}

// c is carried in float32 between depths, so blocking over k changes no bit.
template <typename T>
void MultiplyDepth(const GemmKernels& kernels, const GemmTile& t, int32_t p,
                   const float* a, int64_t lda, float* c, int64_t ldc,
                   GemmScratch* scratch) {
  const int32_t depth = std::min(kDepth, t.k - p);
  float* panel = scratch->Reserve(
      GemmScratch::kPanel, static_cast<int64_t>(depth) * kernels.panel_cols);
  for (int32_t j = 0; j < t.n; j += kernels.panel_cols) {
    const int32_t cols = std::min(kernels.panel_cols, t.n - j);
    Pack<T>(kernels, t, p, j, depth, cols, panel);
    MultiplyPanel(
        kernels,
        MicroTile{a, panel, c + j, lda, ldc, /*rows=*/0, cols, depth, p > 0},
        t.m);
  }
}

void MultiplyFloat(const GemmKernels& kernels, const GemmTile& t,
                   GemmScratch* scratch) {
  for (int32_t p = 0; p == 0 || p < t.k; p += kDepth) {
    MultiplyDepth<float>(kernels, t, p, static_cast<const float*>(t.a) + p,
                         t.lda, static_cast<float*>(t.c), t.ldc, scratch);
  }
}

void MultiplyBf16(const GemmKernels& kernels, const GemmTile& t,
                  GemmScratch* scratch) {
  float* sum =
      scratch->Reserve(GemmScratch::kPartial, static_cast<int64_t>(t.m) * t.n);
  const int32_t max_depth = std::min(kDepth, t.k);
  float* a = scratch->Reserve(GemmScratch::kWideA,
                              static_cast<int64_t>(t.m) * max_depth);
  for (int32_t p = 0; p == 0 || p < t.k; p += kDepth) {
    const int32_t depth = std::min(kDepth, t.k - p);
    for (int32_t i = 0; i < t.m; ++i) {
      kernels.widen(static_cast<const uint16_t*>(t.a) + i * t.lda + p,
                    a + static_cast<int64_t>(i) * max_depth, depth);
    }
    MultiplyDepth<uint16_t>(kernels, t, p, a, max_depth, sum, t.n, scratch);
  }
  for (int32_t i = 0; i < t.m; ++i) {
    kernels.narrow(sum + static_cast<int64_t>(i) * t.n,
                   static_cast<uint16_t*>(t.c) + i * t.ldc, t.n);
  }
}

template <typename T>
void MultiplyBf16Accumulate(const GemmTile& t) {
  const T* a = static_cast<const T*>(t.a);
  const T* b = static_cast<const T*>(t.b);
  for (int32_t i = 0; i < t.m; ++i) {
    for (int32_t j = 0; j < t.n; ++j) {
      float acc = 0.0f;
      for (int32_t p = 0; p < t.k; ++p) {
        acc = RoundToBf16(__builtin_fmaf(LoadFloat(a + i * t.lda + p),
                                         LoadFloat(b + p * t.ldb + j), acc));
      }
      StoreFloat(acc, static_cast<T*>(t.c) + i * t.ldc + j);
    }
  }
}

}  // namespace

float* GemmScratch::Reserve(Slot slot, int64_t count) {
  if (count > sizes_[slot]) {
    constexpr int64_t kLine = 64;
    const int64_t bytes = (count * 4 + kLine - 1) / kLine * kLine;
    buffers_[slot].reset(static_cast<float*>(std::aligned_alloc(kLine, bytes)));
    if (buffers_[slot] == nullptr) std::abort();  // out of memory
    sizes_[slot] = count;
  }
  return buffers_[slot].get();
}

void RunGemmTile(const GemmTile& tile, Isa isa, GemmScratch* scratch) {
  if (tile.m <= 0 || tile.n <= 0) return;
  if (tile.dtype == kBFloat16) {
    MultiplyBf16(KernelsOf(isa), tile, scratch);
  } else {
    MultiplyFloat(KernelsOf(isa), tile, scratch);
  }
}

void RunGemmTileBf16Accumulate(const GemmTile& tile) {
  if (tile.dtype == kBFloat16) {
    MultiplyBf16Accumulate<uint16_t>(tile);
  } else {
    MultiplyBf16Accumulate<float>(tile);
  }
}

}  // namespace hpmoe
