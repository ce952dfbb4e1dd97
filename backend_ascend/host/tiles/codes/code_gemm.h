// One GEMM tile of int8 codes: c = a @ b in int32.
//
// Sums of integers are exact: every instruction set gives the same bits,
// whatever its order.  k is at most kMaxCodeDepth.

#ifndef BACKEND_ASCEND_HOST_TILES_CODES_CODE_GEMM_H_
#define BACKEND_ASCEND_HOST_TILES_CODES_CODE_GEMM_H_

#include <cstdint>

#include "backend_ascend/host/tiles/cpu_features.h"
#include "backend_ascend/host/tiles/gemm.h"

namespace hpmoe {

// c[m, n] = a[m, k] @ b[k, n], row-major; c overlaps nothing else.
struct CodeGemmTile {
  const int8_t* a;
  const int8_t* b;
  int32_t* c;
  int64_t lda, ldb, ldc;  // elements
  int32_t m, n, k;
};

// `isa` must be supported; AVX-512 uses VNNI where the CPU has it, else as
// AVX2.
void RunCodeGemmTile(const CodeGemmTile& tile, Isa isa, GemmScratch* scratch);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_TILES_CODES_CODE_GEMM_H_
