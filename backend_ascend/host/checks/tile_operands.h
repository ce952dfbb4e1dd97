// What each kernel reads and writes of its tile, said once for all checks.

#ifndef BACKEND_ASCEND_HOST_CHECKS_TILE_OPERANDS_H_
#define BACKEND_ASCEND_HOST_CHECKS_TILE_OPERANDS_H_

#include <cstdint>

#include "backend_ascend/host/tiles/codes/code_gemm.h"
#include "backend_ascend/host/tiles/codes/code_tiles.h"
#include "backend_ascend/host/tiles/gemm.h"
#include "backend_ascend/host/tiles/tile_kernels.h"

namespace hpmoe {

// A row-major rectangle in memory; null is none.
struct TileOperand {
  const char* name;
  const void* data;
  int64_t rows, cols, ld;  // ld in elements
  int64_t element_bytes;
  // Addresses of the rows, in place of `data` and `ld`; or null.
  const void* const* at = nullptr;

  bool IsNone() const { return data == nullptr && at == nullptr; }
  char* Row(int64_t row) const {
    const void* const begin = at != nullptr ? at[row] : data;
    const int64_t past = at != nullptr ? 0 : row * ld * element_bytes;
    return static_cast<char*>(const_cast<void*>(begin)) + past;
  }
};

// kInPlace: read, and no copy can stand for it.
enum class TileUse { kRead, kWrite, kUpdate, kInPlace };

// `count` floats side by side.
inline TileOperand Floats(const char* name, const float* data, int64_t count) {
  return {name, data, 1, count, count, sizeof(float)};
}

// VisitOperands calls visit(use, operand, field, ld) for all operands of a
// tile; the latter two are the tile's members that say where the operand is and
// how far apart its rows are, which is null for one that has no such member.
template <class Tile, class Visit>
struct TileVisitor {
  const Tile& t;
  Visit& visit;

  template <class T>
  void operator()(TileUse use, const char* name, T Tile::* field,
                  int64_t Tile::* ld, int64_t rows, int64_t cols) const {
    visit(use, {name, t.*field, rows, cols, t.*ld, BytesOf(t.dtype)}, field,
          ld);
  }
  template <class T>
  void operator()(TileUse use, const char* name, T Tile::* field,
                  int64_t count) const {
    visit(use, Floats(name, t.*field, count), field, kNoLd);
  }

  static constexpr int64_t Tile::* kNoLd = nullptr;
};

template <class Visit>
void VisitOperands(const GemmTile& t, Visit visit) {
  using T = GemmTile;
  const TileVisitor<T, Visit> of{t, visit};
  const int64_t bytes = BytesOf(t.dtype);
  const int64_t a[] = {t.m, t.k}, b[] = {t.k, t.n};
  const bool ta = t.trans_a, tb = t.trans_b;
  of(TileUse::kRead, "a", &T::a, &T::lda, a[ta], a[!ta]);
  visit(TileUse::kRead, {"a", nullptr, a[ta], a[!ta], 0, bytes, t.a_rows},
        &T::a_rows, of.kNoLd);
  of(TileUse::kRead, "b", &T::b, &T::ldb, b[tb], b[!tb]);
  of(TileUse::kRead, "row_weight", &T::row_weight, t.m);
  const bool in = t.carry != nullptr && t.carry_in;
  const bool out = t.carry != nullptr && t.carry_out;
  if (!out) of(TileUse::kWrite, "c", &T::c, &T::ldc, t.m, t.n);
  if (!in && !out) return;
  const TileUse use = !out ? TileUse::kRead
                      : in ? TileUse::kUpdate
                           : TileUse::kWrite;
  visit(use, {"carry", t.carry, t.m, t.n, t.ld_carry, sizeof(float)}, &T::carry,
        &T::ld_carry);
}

template <class Visit>
void VisitOperands(const SwigluTile& t, Visit visit) {
  using T = SwigluTile;
  const TileVisitor<T, Visit> of{t, visit};
  of(TileUse::kRead, "gate", &T::gate, &T::ld_in, t.rows, t.cols);
  of(TileUse::kRead, "up", &T::up, &T::ld_in, t.rows, t.cols);
  of(TileUse::kRead, "row_weight", &T::row_weight, t.rows);
  of(TileUse::kWrite, "out", &T::out, &T::ld_out, t.rows, t.cols);
}

template <class Visit>
void VisitOperands(const SwigluGradTile& t, Visit visit) {
  using T = SwigluGradTile;
  const TileVisitor<T, Visit> of{t, visit};
  of(TileUse::kRead, "d_out", &T::d_out, &T::ld_d_out, t.rows, t.cols);
  of(TileUse::kRead, "gate", &T::gate, &T::ld_in, t.rows, t.cols);
  of(TileUse::kRead, "up", &T::up, &T::ld_in, t.rows, t.cols);
  of(TileUse::kRead, "row_weight", &T::row_weight, t.rows);
  of(TileUse::kWrite, "d_gate", &T::d_gate, &T::ld_grad, t.rows, t.cols);
  of(TileUse::kWrite, "d_up", &T::d_up, &T::ld_grad, t.rows, t.cols);
  of(TileUse::kWrite, "d_row_weight", &T::d_row_weight, t.rows);
}

template <class Visit>
void VisitOperands(const CombineTile& t, Visit visit) {
  using T = CombineTile;
  const TileVisitor<T, Visit> of{t, visit};
  const int64_t slots = int64_t{t.tokens} * t.top_k, bytes = BytesOf(t.dtype);
  of(TileUse::kRead, "returned", &T::returned, &T::ld, slots, t.cols);
  visit(TileUse::kRead, {"rows", nullptr, slots, t.cols, 0, bytes, t.rows},
        &T::rows, of.kNoLd);
  of(TileUse::kRead, "weights", &T::weights, slots);
  of(TileUse::kWrite, "y", &T::y, &T::ld_y, t.tokens, t.cols);
}

// Rows that are none apart are one row, again and again.
template <class Visit>
void VisitOperands(const RowDotTile& t, Visit visit) {
  using T = RowDotTile;
  const TileVisitor<T, Visit> of{t, visit};
  of(TileUse::kRead, "a", &T::a, &T::ld_a, t.ld_a == 0 ? 1 : t.rows, t.cols);
  of(TileUse::kRead, "b", &T::b, &T::ld_b, t.ld_b == 0 ? 1 : t.rows, t.cols);
  of(TileUse::kWrite, "out", &T::out, t.rows);
}

template <class Visit>
void VisitOperands(const ScaleRowsTile& t, Visit visit) {
  using T = ScaleRowsTile;
  const TileVisitor<T, Visit> of{t, visit};
  of(TileUse::kRead, "x", &T::x, &T::ld_x, t.ld_x == 0 ? 1 : t.rows, t.cols);
  of(TileUse::kRead, "weight", &T::weight, t.rows);
  of(TileUse::kWrite, "out", &T::out, &T::ld_out, t.rows, t.cols);
}

template <class Visit>
void VisitOperands(const CodeGemmTile& t, Visit visit) {
  using T = CodeGemmTile;
  visit(TileUse::kRead, {"a", t.a, t.m, t.k, t.lda, 1}, &T::a, &T::lda);
  visit(TileUse::kRead, {"b", t.b, t.k, t.n, t.ldb, 1}, &T::b, &T::ldb);
  visit(TileUse::kWrite, {"c", t.c, t.m, t.n, t.ldc, 4}, &T::c, &T::ldc);
}

template <class Visit>
void VisitOperands(const QuantiseRowsTile& t, Visit visit) {
  using T = QuantiseRowsTile;
  const TileVisitor<T, Visit> of{t, visit};
  of(TileUse::kRead, "x", &T::x, &T::ld_x, t.rows, t.cols);
  visit(TileUse::kWrite, {"codes", t.codes, t.rows, t.cols, t.ld_codes, 1},
        &T::codes, &T::ld_codes);
  of(TileUse::kWrite, "scales", &T::scales, t.rows);
}

template <class Visit>
void VisitOperands(const CodeSwigluTile& t, Visit visit) {
  using T = CodeSwigluTile;
  const TileVisitor<T, Visit> of{t, visit};
  visit(TileUse::kRead, {"gate", t.gate, t.rows, t.cols, t.ld_in, 4}, &T::gate,
        &T::ld_in);
  visit(TileUse::kRead, {"up", t.up, t.rows, t.cols, t.ld_in, 4}, &T::up,
        &T::ld_in);
  of(TileUse::kRead, "row_scales", &T::row_scales, t.rows);
  of(TileUse::kRead, "gate_scales", &T::gate_scales, t.cols);
  of(TileUse::kRead, "up_scales", &T::up_scales, t.cols);
  of(TileUse::kRead, "row_weight", &T::row_weight, t.rows);
  visit(TileUse::kWrite, {"codes", t.codes, t.rows, t.cols, t.ld_codes, 1},
        &T::codes, &T::ld_codes);
  of(TileUse::kWrite, "scales", &T::scales, t.rows);
}

template <class Visit>
void VisitOperands(const DequantiseRowsTile& t, Visit visit) {
  using T = DequantiseRowsTile;
  const TileVisitor<T, Visit> of{t, visit};
  visit(TileUse::kRead, {"sums", t.sums, t.rows, t.cols, t.ld_sums, 4},
        &T::sums, &T::ld_sums);
  of(TileUse::kRead, "row_scales", &T::row_scales, t.rows);
  of(TileUse::kRead, "col_scales", &T::col_scales, t.cols);
  of(TileUse::kWrite, "out", &T::out, &T::ld_out, t.rows, t.cols);
}

// What sums over tokens read is read in place: rows of two widths.
template <class Visit>
void VisitOperands(const NormTile& t, Visit visit) {
  using T = NormTile;
  const TileVisitor<T, Visit> of{t, visit};
  const bool sums = t.work == Work::kGainGrad;
  const TileUse read = sums ? TileUse::kInPlace : TileUse::kRead;
  of(read, "dx", &T::dx, &T::ld, t.rows, sums ? t.out_cols : t.cols);
  of(read, "y", &T::y, &T::ld, t.rows, t.cols);
  visit(read, {"gain", t.gain, 1, t.cols, t.cols, BytesOf(t.dtype)}, &T::gain,
        of.kNoLd);
  if (!sums) return of(TileUse::kWrite, "out", &T::out, &T::ld, t.rows, t.cols);
  visit(TileUse::kWrite,
        Floats("out", static_cast<const float*>(t.out), t.out_cols), &T::out,
        of.kNoLd);
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_CHECKS_TILE_OPERANDS_H_
