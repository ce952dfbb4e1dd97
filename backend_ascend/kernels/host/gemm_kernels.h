// What an instruction set provides to the GEMM tile; internal to gemm*.cc.

#ifndef BACKEND_ASCEND_KERNELS_HOST_GEMM_KERNELS_H_
#define BACKEND_ASCEND_KERNELS_HOST_GEMM_KERNELS_H_

#include <cstdint>

#include "backend_ascend/kernels/host/bfloat16.h"

namespace hpmoe {

// c[rows, cols] = a[rows, k] @ panel, or += where `resume`.
struct MicroTile {
  const float* a;
  const float* panel;  // [k, panel_cols]; zero past `cols`
  float* c;
  int64_t lda, ldc;
  int32_t rows, cols, k;  // rows <= max_rows, cols <= panel_cols
  bool resume;
};

struct GemmKernels {
  int32_t max_rows;
  int32_t panel_cols;
  void (*multiply)(const MicroTile&);
  // out[k, panel_cols] = b[k, cols], zero past `cols`.
  void (*pack_float)(const float* b, int64_t ldb, int32_t k, int32_t cols,
                     float* out);
  void (*pack_bf16)(const uint16_t* b, int64_t ldb, int32_t k, int32_t cols,
                    float* out);
  void (*widen)(const uint16_t* in, float* out, int64_t count);
  void (*narrow)(const float* in, uint16_t* out, int64_t count);
};

extern const GemmKernels kGemmPortable;
#if HPMOE_X86
extern const GemmKernels kGemmAvx2;
extern const GemmKernels kGemmAvx512;
#elif HPMOE_NEON
extern const GemmKernels kGemmNeon;
#endif

// Bodies that every instruction set compiles for itself.
template <int kPanelCols, typename T>
HPMOE_INLINE void PackBody(const T* b, int64_t ldb, int32_t k, int32_t cols,
                           float* __restrict out) {
  for (int32_t p = 0; p < k; ++p, b += ldb, out += kPanelCols) {
    if (cols == kPanelCols) {
      for (int32_t j = 0; j < kPanelCols; ++j) out[j] = LoadFloat(b + j);
    } else {
      for (int32_t j = 0; j < cols; ++j) out[j] = LoadFloat(b + j);
      for (int32_t j = cols; j < kPanelCols; ++j) out[j] = 0.0f;
    }
  }
}

HPMOE_INLINE void WidenBody(const uint16_t* in, float* __restrict out,
                            int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = Bf16ToFloat(in[i]);
}

HPMOE_INLINE void NarrowBody(const float* in, uint16_t* __restrict out,
                             int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = FloatToBf16(in[i]);
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_GEMM_KERNELS_H_
