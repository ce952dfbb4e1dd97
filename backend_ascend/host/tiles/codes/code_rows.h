// Parts of tiles of codes, as tile_rows.h has those of others.

#ifndef BACKEND_ASCEND_HOST_TILES_CODES_CODE_ROWS_H_
#define BACKEND_ASCEND_HOST_TILES_CODES_CODE_ROWS_H_

#include <cstdint>

#include "backend_ascend/host/tiles/codes/code_gemm.h"
#include "backend_ascend/host/tiles/codes/code_tiles.h"
#include "backend_ascend/host/tiles/tile_rows.h"

namespace hpmoe {

inline CodeGemmTile RowsOf(CodeGemmTile t, int32_t row, int32_t count) {
  t.a += row * t.lda;
  t.c += row * t.ldc;
  t.m = count;
  return t;
}

inline QuantiseRowsTile RowsOf(QuantiseRowsTile t, int32_t row, int32_t count) {
  t.x = Advance(t.x, row * t.ld_x, t.dtype);
  t.codes += row * t.ld_codes;
  t.scales += row;
  t.rows = count;
  return t;
}

inline CodeSwigluTile RowsOf(CodeSwigluTile t, int32_t row, int32_t count) {
  t.gate += row * t.ld_in;
  t.up += row * t.ld_in;
  t.row_scales += row;
  t.row_weight = Advance(t.row_weight, row);
  t.codes += row * t.ld_codes;
  t.scales += row;
  t.rows = count;
  return t;
}

inline DequantiseRowsTile RowsOf(DequantiseRowsTile t, int32_t row,
                                 int32_t count) {
  t.sums += row * t.ld_sums;
  t.row_scales += row;
  t.out = Advance(t.out, row * t.ld_out, t.dtype);
  t.rows = count;
  return t;
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_TILES_CODES_CODE_ROWS_H_
