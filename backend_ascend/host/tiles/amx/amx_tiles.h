// The instructions of AMX that sums of bfloat16 take, as functions.
//
// Not the compilers' intrinsics: those of GCC read memory without saying so,
// and take a tile's number as a piece of text.

#ifndef BACKEND_ASCEND_HOST_TILES_AMX_AMX_TILES_H_
#define BACKEND_ASCEND_HOST_TILES_AMX_AMX_TILES_H_

#include <cstdint>

#include "backend_ascend/host/tiles/cpu_features.h"

namespace hpmoe {
namespace amx {

constexpr int32_t kNumTiles = 8;
constexpr int32_t kSide = 16;  // most rows of a tile, and its 4-byte columns
constexpr int64_t kRowBytes = 4 * kSide;

// Operand of LDTILECFG.
struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64, "TileConfig is 64 bytes");

#if defined(HPMOE_AMX_MODEL)
// A test defines the same functions by what the instructions are known to do.
void Configure(const TileConfig& config);
void Release();
template <int kTile>
void Load(const void* from, int64_t stride);
template <int kTile>
void Store(void* to, int64_t stride);
template <int kSum, int kA, int kB>
void MultiplyPairs();
#elif HPMOE_X86
HPMOE_INLINE void Configure(const TileConfig& config) {
  asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
}

HPMOE_INLINE void Release() { asm volatile("tilerelease" : : : "memory"); }

template <int kTile>
HPMOE_INLINE void Load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(stride), "i"(kTile)
               : "memory");
}

template <int kTile>
HPMOE_INLINE void Store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(to), "r"(stride), "i"(kTile)
               : "memory");
}

// TDPBF16PS: of row i of kA and column j of kB, pairs of bfloat16,
//   even = fma chain over the lower halves, odd = over the upper ones, from +0;
//   kSum[i, j] += even + odd,
// subnormal numbers read and written as zeros.  MXCSR has no say.
template <int kSum, int kA, int kB>
HPMOE_INLINE void MultiplyPairs() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
               :
               : "i"(kSum), "i"(kA), "i"(kB));
}
#endif

}  // namespace amx
}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_TILES_AMX_AMX_TILES_H_
