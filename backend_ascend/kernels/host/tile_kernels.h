// Vector tiles on the host: activation and combine, float32 arithmetic, one
// rounding to the storage type.  Same bits on every instruction set, for any
// split of rows, tokens and columns; NaN results are the canonical quiet NaN.

#ifndef BACKEND_ASCEND_KERNELS_HOST_TILE_KERNELS_H_
#define BACKEND_ASCEND_KERNELS_HOST_TILE_KERNELS_H_

#include <cstdint>

#include "backend_ascend/kernels/host/cpu_features.h"
#include "backend_ascend/kernels/image.h"

namespace hpmoe {

// out[rows, cols] = act(gate) * up [* row_weight], products left to right.
// silu(g) = g / (1 + exp(-g)); silu(-inf) is NaN, as in JAX and torch.
struct SwigluTile {
  const void* gate;
  const void* up;
  void* out;
  int64_t ld_in, ld_out;  // elements; gate and up share one
  int32_t rows, cols;
  const float* row_weight;  // [rows], or null
  DType dtype;
  ActivationKind activation;
  bool early_rounding;  // fault injection: silu rounded to bfloat16
};
void RunSwigluTile(const SwigluTile& tile, Isa isa);

// y[tokens, cols]: sum over slots in slot order of w_k * row_k, each product
// rounded and then added (no fma); of row_k where `weights` is null.
struct CombineTile {
  const void* returned;  // [tokens, top_k] rows, `ld` apart
  const float* weights;  // [tokens, top_k] contiguous, or null
  void* y;
  int64_t ld, ld_y;  // elements
  int32_t tokens, top_k, cols;
  DType dtype;
};
void RunCombineTile(const CombineTile& tile, Isa isa);

// y[i] = exp(x[i]); less than 1 ulp from the exact value for every float32 (the
// exhaustive test finds 0.892).  Overflows to inf, underflows through
// subnormals.
void RunExp(const float* x, float* y, int64_t count, Isa isa);

// Largest error of RunExp, in ulp of float32, over the inputs whose bits are
// in [begin, end); infinite if a NaN, an infinity or a zero is wrong.
double ExpMaxUlp(uint64_t begin, uint64_t end, Isa isa);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_TILE_KERNELS_H_
