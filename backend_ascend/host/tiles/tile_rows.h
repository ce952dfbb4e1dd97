// Parts of tiles: some of their rows, which are tiles of their own.

#ifndef BACKEND_ASCEND_HOST_TILES_TILE_ROWS_H_
#define BACKEND_ASCEND_HOST_TILES_TILE_ROWS_H_

#include <cstdint>

#include "backend_ascend/host/tiles/gemm.h"
#include "backend_ascend/host/tiles/storage.h"
#include "backend_ascend/host/tiles/tile_kernels.h"

namespace hpmoe {

inline const void* Advance(const void* data, int64_t elements, DType dtype) {
  return static_cast<const char*>(data) + elements * BytesOf(dtype);
}

inline void* Advance(void* data, int64_t elements, DType dtype) {
  return static_cast<char*>(data) + elements * BytesOf(dtype);
}

template <class T>
inline T* Advance(T* values, int64_t elements) {
  return values == nullptr ? nullptr : values + elements;
}

// Tiles from a row on, of so many; rows lie where their buffers have them.

inline GemmTile RowsOf(GemmTile t, int32_t row, int32_t count) {
  t.a = Advance(t.a, t.trans_a ? row : row * t.lda, t.dtype);
  t.c = Advance(t.c, row * t.ldc, t.dtype);
  t.carry = Advance(t.carry, row * t.ld_carry);
  t.row_weight = Advance(t.row_weight, row);
  t.m = count;
  return t;
}

inline SwigluTile RowsOf(SwigluTile t, int32_t row, int32_t count) {
  t.gate = Advance(t.gate, row * t.ld_in, t.dtype);
  t.up = Advance(t.up, row * t.ld_in, t.dtype);
  t.out = Advance(t.out, row * t.ld_out, t.dtype);
  t.row_weight = Advance(t.row_weight, row);
  t.rows = count;
  return t;
}

inline SwigluGradTile RowsOf(SwigluGradTile t, int32_t row, int32_t count) {
  t.d_out = Advance(t.d_out, row * t.ld_d_out, t.dtype);
  t.gate = Advance(t.gate, row * t.ld_in, t.dtype);
  t.up = Advance(t.up, row * t.ld_in, t.dtype);
  t.d_gate = Advance(t.d_gate, row * t.ld_grad, t.dtype);
  t.d_up = Advance(t.d_up, row * t.ld_grad, t.dtype);
  t.row_weight = Advance(t.row_weight, row);
  t.d_row_weight = Advance(t.d_row_weight, row);
  t.rows = count;
  return t;
}

inline CombineTile RowsOf(CombineTile t, int32_t row, int32_t count) {
  t.returned = Advance(t.returned, int64_t{row} * t.top_k * t.ld, t.dtype);
  t.weights = Advance(t.weights, int64_t{row} * t.top_k);
  t.rows = Advance(t.rows, int64_t{row} * t.top_k);
  t.y = Advance(t.y, row * t.ld_y, t.dtype);
  t.tokens = count;
  return t;
}

// Of a norm or its gradient.
inline NormTile RowsOf(NormTile t, int32_t row, int32_t count) {
  t.dx = t.dx == nullptr ? nullptr : Advance(t.dx, row * t.ld, t.dtype);
  t.y = Advance(t.y, row * t.ld, t.dtype);
  t.out = Advance(t.out, row * t.ld, t.dtype);
  t.rows = count;
  return t;
}

inline RowDotTile RowsOf(RowDotTile t, int32_t row, int32_t count) {
  t.a = Advance(t.a, row * t.ld_a, t.dtype);
  t.b = Advance(t.b, row * t.ld_b, t.dtype);
  t.out += row;
  t.rows = count;
  return t;
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_TILES_TILE_ROWS_H_
