// One GEMM tile on the host: c = a @ b, float32 accumulation; a and b as
// stored or transposed.
//
// Order.  Every element of c is a float32 sum in one of two orders
// (AccumulationOrder), rounded once, to nearest even, to the storage type.
// `ascending` is one chain:
//
//   acc = +0;  acc = fma(a[i, p], b[p, j], acc) for p = 0 .. k - 1.
//
// `even_odd_32`, of bfloat16 only, takes steps of 32 terms, counted from p = 0;
// the last may have fewer, and no terms are no step:
//
//   acc = +0;  for each step:
//     even = +0;  even = fma(a[i, p], b[p, j], even) for its even p, ascending;
//     odd  = +0;  odd  = fma(a[i, p], b[p, j], odd)  for its odd p, ascending;
//     acc = acc + (even + odd).
//
// Every fma and every + rounds once.  It is what TDPBF16PS (AMX) does with a
// step.  In bfloat16 storage, subnormal numbers are read and written as zeros
// of their sign, in either order.
//
// So an element's bits depend on the order, its row of a, its column of b and k
// only: not on the tile around it, not on the instruction set, not on how a and
// b are stored.  NaN results are the canonical quiet NaN.
//
// Where rows have weights an element is its weight times its sum, in float32,
// rounded once more to the storage type: the sum itself is not.
//
// A sum may be split over k into calls that hand on `carry`, the accumulators
// themselves: first {carry_out}, then {carry_in, carry_out}, last {carry_in}.
// Weights multiply what does not end in carry.  The bits are those of one call;
// in order even_odd_32 where every call but the
// last has whole steps, a multiple of 32 terms.

#ifndef BACKEND_ASCEND_HOST_TILES_GEMM_H_
#define BACKEND_ASCEND_HOST_TILES_GEMM_H_

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "backend_ascend/host/tiles/cpu_features.h"
#include "backend_ascend/image/image.h"

namespace hpmoe {

// c[m, n] = a[m, k] @ b[k, n], row-major; c and carry overlap nothing else.
struct GemmTile {
  const void* a;
  const void* b;
  void* c;
  int64_t lda, ldb, ldc;  // elements
  int32_t m, n, k;
  DType dtype;             // storage of a, b and c
  bool trans_a = false;    // a is stored [k, m], rows lda apart
  bool trans_b = false;    // b is stored [n, k], rows ldb apart
  float* carry = nullptr;  // [m, n], rows ld_carry apart; null: the flags below
                           // have no effect
  int64_t ld_carry = 0;
  bool carry_in = false;   // acc starts from carry, which is only read
                           // unless carry_out
  bool carry_out = false;  // acc ends in carry; c is not touched, may be null
  // Addresses of a's rows as stored, of each of them, in place of `a` and
  // `lda`; or null.
  const void* const* a_rows = nullptr;
  AccumulationOrder order = kAscending;  // kEvenOdd32: dtype is bfloat16
  const float* row_weight = nullptr;     // [m], or null
};

// Packing buffers, kept between tiles; one per OS thread.
class GemmScratch {
 public:
  enum Slot { kPanel, kPackedA, kPartial, kGateUpTile, kActTile, kNumSlots };

  // At least `count` floats, 64-byte aligned, contents undefined.  Throws
  // bad_alloc.
  float* Reserve(Slot slot, int64_t count);

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> buffers_[kNumSlots];
  int64_t sizes_[kNumSlots] = {};
};

// `isa` must be supported.
void RunGemmTile(const GemmTile& tile, Isa isa, GemmScratch* scratch);

// Fault injection only: every partial sum rounded to bfloat16.
void RunGemmTileBf16Accumulate(const GemmTile& tile);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_TILES_GEMM_H_
