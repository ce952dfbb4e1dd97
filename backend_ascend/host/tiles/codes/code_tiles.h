// Vector tiles of int8 codes: quantise rows, the activation between sums and
// codes, and sums to stored values.  Same bits on every instruction set, for
// any split of rows.
//
// A row of values x with the largest magnitude a becomes codes and a scale,
// each operation rounded in float32:
//
//   e = 127 / a;  scale = 1 / e;  code = x * e, rounded to nearest even
//
// (Ascend's DynamicQuant).  Of a row of zeros both are 0.  NaN is code 0, in a
// row whose scale is NaN.
//
// A sum of codes means (float(sum) * scale of the row) * scale of the column,
// each rounded, then once to the storage type.

#ifndef BACKEND_ASCEND_HOST_TILES_CODES_CODE_TILES_H_
#define BACKEND_ASCEND_HOST_TILES_CODES_CODE_TILES_H_

#include <cstdint>

#include "backend_ascend/host/tiles/cpu_features.h"
#include "backend_ascend/image/image.h"

namespace hpmoe {

struct QuantiseRowsTile {
  const void* x;           // [rows, cols]
  int8_t* codes;           // [rows, cols]
  float* scales;           // [rows]
  int64_t ld_x, ld_codes;  // elements
  int32_t rows, cols;
  DType dtype;  // of x
};
void RunQuantiseRowsTile(const QuantiseRowsTile& tile, Isa isa);

// codes and scales of act(gate) * up [* row_weight], of SwigluTile, rounded to
// `dtype` first, as gate and up are.
struct CodeSwigluTile {
  const int32_t* gate;  // [rows, cols] sums
  const int32_t* up;
  const float* row_scales;   // [rows]
  const float* gate_scales;  // [cols]
  const float* up_scales;    // [cols]
  const float* row_weight;   // [rows], or null
  int8_t* codes;             // [rows, cols]
  float* scales;             // [rows]
  int64_t ld_in, ld_codes;   // elements; gate and up share one
  int32_t rows, cols;
  DType dtype;
  ActivationKind activation;
};
void RunCodeSwigluTile(const CodeSwigluTile& tile, Isa isa);

struct DequantiseRowsTile {
  const int32_t* sums;      // [rows, cols]
  const float* row_scales;  // [rows]
  const float* col_scales;  // [cols]
  void* out;                // [rows, cols]
  int64_t ld_sums, ld_out;  // elements
  int32_t rows, cols;
  DType dtype;  // of out
};
void RunDequantiseRowsTile(const DequantiseRowsTile& tile, Isa isa);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_TILES_CODES_CODE_TILES_H_
