// Vector tiles on the host: activation, combine and their gradients, float32
// arithmetic, one rounding to the storage type.  Same bits on every instruction
// set, for any split of rows, tokens and columns (dots over columns: of rows
// only); NaN results are the canonical quiet NaN.

#ifndef BACKEND_ASCEND_HOST_TILES_TILE_KERNELS_H_
#define BACKEND_ASCEND_HOST_TILES_TILE_KERNELS_H_

#include <cstdint>

#include "backend_ascend/host/tiles/cpu_features.h"
#include "backend_ascend/image/image.h"

namespace hpmoe {

// out[rows, cols] = act(gate) * up [* row_weight], products left to right.
// silu(g) = g / (1 + exp(-g)); silu(-inf) is NaN, as in JAX and torch.
// `out` overlaps neither input, or is `gate`, with its ld.
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

// Gradients of SwigluTile, of unrounded activations: with d = d_out
// [* row_weight], e = exp(-gate), s = 1 / (1 + e), silu = gate / (1 + e),
//
//   kSwigluActivation:  d_up = d * silu;  d_gate = (d * up) * slope,
//     slope = fma(silu, rest, s), rest = 1 - s = gate < 0 ? 1 - s : e * s
//   kAbsolute:          d_up = d * |gate|;  d_gate = (d * up) * sign(gate)
//
// rest keeps its digits where s nears 1.  Finite down to the lowest gate, where
// e is inf and s, silu and slope are zero; d_gate is NaN at an infinite gate.
//   d_row_weight[row] = the dot (RowDotTile) of d_out and act(gate) * up,
// that product rounded to float32 first; over the columns of this tile, so a
// tile that is asked for it holds whole rows.
struct SwigluGradTile {
  const void* d_out;
  const void* gate;
  const void* up;
  void* d_gate;
  void* d_up;
  int64_t ld_d_out, ld_in, ld_grad;  // elements; gate and up share one, and
                                     // d_gate and d_up
  int32_t rows, cols;
  const float* row_weight;  // [rows], or null
  float* d_row_weight;      // [rows], or null
  DType dtype;
  ActivationKind activation;
};
void RunSwigluGradTile(const SwigluGradTile& tile, Isa isa);

// out[rows, cols] = weight[row] * x[row]; the bits of x where `weight` is null.
struct ScaleRowsTile {
  const void* x;
  void* out;
  const float* weight;   // [rows], or null
  int64_t ld_x, ld_out;  // elements; ld_x = 0 repeats one row
  int32_t rows, cols;
  DType dtype;
};
void RunScaleRowsTile(const ScaleRowsTile& tile, Isa isa);

// out[row] = dot of a[row] and b[row].  Order: kDotLanes chains,
//
//   lane[l] = +0;  lane[l] = fma(a[j], b[j], lane[l]) for j = l, l + kDotLanes,
//   ...
//
// then lane[0] + lane[1] + ... from the left, lanes past cols (+0) too.
constexpr int32_t kDotLanes = 16;
struct RowDotTile {
  const void* a;
  const void* b;
  float* out;          // [rows]
  int64_t ld_a, ld_b;  // elements; 0 repeats one row
  int32_t rows, cols;
  DType dtype;  // of a and b
};
void RunRowDotTile(const RowDotTile& tile, Isa isa);

// The norm of rows of y, or a gradient of it.  Of each row, with the dot of
// RowDotTile,
//
//   s = 1 / sqrt(dot(y, y) / cols + epsilon)
//   kNorm:      out = (y * s) * gain
//   kNormGrad:  h = dx * gain;  c = dot(y, h) * (s * s) / cols
//               out = (h - y * c) * s
//   kGainGrad:  out[j] = +0 + dx * (y * s), rows ascending, in float32
//
// each operation rounded, no fma beside the dots.  `plain`: s is 1 and c is 0,
// so that integers stay exact.  A row whose squares overflow has s = 0.
struct NormTile {
  Work work;
  const void* dx;    // not of kNorm; of kGainGrad from the first column written
  const void* y;     // [rows, cols]
  const void* gain;  // [cols]; not of kGainGrad
  void* out;         // [rows, cols]; of kGainGrad [out_cols] float32
  int64_t ld;        // elements, of dx, y and out
  int32_t rows, cols;
  int32_t first_col, out_cols;  // of kGainGrad
  DType dtype;
  float epsilon;
  bool plain;
};
void RunNormTile(const NormTile& tile, Isa isa);

// y[tokens, cols]: sum over slots in slot order of w_k * row_k, each product
// rounded and then added (no fma); of row_k where `weights` is null.
struct CombineTile {
  const void* returned;  // [tokens, top_k] rows, `ld` apart
  const float* weights;  // [tokens, top_k] contiguous, or null
  void* y;
  int64_t ld, ld_y;  // elements
  int32_t tokens, top_k, cols;
  DType dtype;
  // [tokens, top_k] addresses of rows, in place of `returned`; or null.
  const void* const* rows = nullptr;
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

#endif  // BACKEND_ASCEND_HOST_TILES_TILE_KERNELS_H_
