// The element types and positions of Ascend C.

#ifndef BACKEND_ASCEND_TWIN_API_TYPES_H_
#define BACKEND_ASCEND_TWIN_API_TYPES_H_

#include <cstdint>

#include "backend_ascend/twin/engine/instruction.h"

#define __global__
#define __aicore__
#define __gm__
#define __mix__(aic, aiv)
#define GM_ADDR uint8_t*

// Bits only: the units convert, the scalar unit does not.
struct half {
  uint16_t bits;
};
struct bfloat16_t {
  uint16_t bits;
};
static_assert(sizeof(half) == 2 && sizeof(bfloat16_t) == 2, "16 bits");

namespace AscendC {

enum class TPosition : uint8_t {
  GM,
  A1,
  A2,
  B1,
  B2,
  C1,
  C2,
  CO1,
  CO2,
  VECIN,
  VECOUT,
  VECCALC,
  LCM,
  SPM,
  MAX
};

constexpr ascend_twin::Memory MemoryOf(TPosition position) {
  switch (position) {
    case TPosition::A1:
    case TPosition::B1:
    case TPosition::C1:
    case TPosition::SPM:
      return ascend_twin::Memory::kL1;
    case TPosition::A2:
      return ascend_twin::Memory::kL0A;
    case TPosition::B2:
      return ascend_twin::Memory::kL0B;
    case TPosition::C2:
      return ascend_twin::Memory::kBias;
    case TPosition::CO1:
      return ascend_twin::Memory::kL0C;
    case TPosition::GM:
    case TPosition::CO2:
      return ascend_twin::Memory::kGm;
    default:
      return ascend_twin::Memory::kUb;
  }
}

constexpr int32_t AIC = 1;
constexpr int32_t AIV = 2;

}  // namespace AscendC

// `if ASCEND_IS_AIC {`: on the device a constant of the compilation, here of
// the core, so that one compilation serves both.
#define ASCEND_IS_AIC \
  (ascend_twin::ThisCoreType() == ascend_twin::CoreType::kAic)
#define ASCEND_IS_AIV \
  (ascend_twin::ThisCoreType() == ascend_twin::CoreType::kAiv)

#endif  // BACKEND_ASCEND_TWIN_API_TYPES_H_
