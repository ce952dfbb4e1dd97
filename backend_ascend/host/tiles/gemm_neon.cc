#include "backend_ascend/host/tiles/gemm_kernels.h"

#if HPMOE_NEON

#include <arm_neon.h>

#define HPMOE_TARGET
#define HPMOE_UNROLL_DEPTH

namespace hpmoe {
namespace {

// 8 x 3 sums, 3 vectors of b and a broadcast of a: 28 of 32 registers.
constexpr int kRows = 8;
constexpr int kVectors = 3;
constexpr int kLanes = 4;
using Vector = float32x4_t;

HPMOE_INLINE Vector Zero() { return vdupq_n_f32(0.0f); }
HPMOE_INLINE Vector Broadcast(const float* p) { return vld1q_dup_f32(p); }
HPMOE_INLINE Vector LoadAligned(const float* p) { return vld1q_f32(p); }
HPMOE_INLINE Vector Add(Vector x, Vector y) { return vaddq_f32(x, y); }
HPMOE_INLINE Vector MultiplyAdd(Vector x, Vector y, Vector sum) {
  return vfmaq_f32(sum, x, y);
}
HPMOE_INLINE Vector Load(const float* p, int32_t count) {
  float lanes[kLanes] = {};
  for (int32_t j = 0; j < count && j < kLanes; ++j) lanes[j] = p[j];
  return vld1q_f32(lanes);
}
HPMOE_INLINE void Store(Vector x, float* p, int32_t count) {
  float lanes[kLanes];
  vst1q_f32(lanes, x);
  for (int32_t j = 0; j < count && j < kLanes; ++j) {
    p[j] = CanonicalNan(lanes[j]);
  }
}

#include "backend_ascend/host/tiles/gemm_micro.h"
#include "backend_ascend/host/tiles/gemm_moves.h"

}  // namespace

const GemmKernels kGemmNeon = kKernels;

}  // namespace hpmoe

#endif  // HPMOE_NEON
