// One GEMM tile of a cube core: what host/tiles/gemm.h says of the host's, with
// addresses of global memory.
//
// c[m, n] = a[m, k] @ b[k, n], in float32 sums over the whole depth that are
// rounded once.  The order of a sum is that of the cube unit.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_TILE_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_TILE_H_

#include <stdint.h>

#include "backend_ascend/device/megakernel/launch_args.h"

namespace hpmoe {

struct CubeTile {
  HPMOE_GM uint8_t* a;  // elements are of the image's storage
  HPMOE_GM uint8_t* b;
  HPMOE_GM uint8_t* c;
  int64_t lda, ldb, ldc;  // elements
  int32_t m, n, k;        // k = 0: an empty sum, zeros
  bool trans_a;           // a is stored [k, m], rows lda apart
  bool trans_b;           // b is stored [n, k], rows ldb apart
  HPMOE_GM float* carry;  // [m, n], rows ld_carry apart; null: the flags below
                          // have no effect
  int64_t ld_carry;
  bool carry_in;   // sums start from carry, whose elements are finite: an
                   // infinity makes NaN of its column
  bool carry_out;  // sums end in carry; c is not touched
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_TILE_H_
