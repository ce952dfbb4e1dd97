// What a core asks of itself: its index, its clock.

#ifndef BACKEND_ASCEND_TWIN_API_SYSTEM_H_
#define BACKEND_ASCEND_TWIN_API_SYSTEM_H_

#include <cstdint>
#include <string>

#include "backend_ascend/twin/api/types.h"
#include "backend_ascend/twin/engine/sync.h"

// The launch says which cores a block has.
#define KERNEL_TASK_TYPE_DEFAULT(type) static_assert(true, #type)

// The control register, of which the twin has float's saturation: bit 48.
inline int64_t get_ctrl() {
  return int64_t{!ascend_twin::ThisNumerics().saturate} << 48;
}
inline void set_ctrl(uint64_t bits,
                     ascend_twin::Site site = ascend_twin::Site::Here()) {
  for (int at = 0; at < 64; ++at) {
    if (at == 48 || (bits >> at & 1) == 0) continue;
    ascend_twin::Refuse(
        "set_ctrl", site,
        "bit " + std::to_string(at) + ": expected 0: the twin has bit 48 only");
  }
  ascend_twin::SetSaturate((bits >> 48 & 1) == 0);
}
inline uint64_t sbitset0(uint64_t bits, int64_t at) {
  return bits & ~(uint64_t{1} << at);
}
inline uint64_t sbitset1(uint64_t bits, int64_t at) {
  return bits | uint64_t{1} << at;
}

namespace AscendC {

using ascend_twin::Site;

inline void InitSocState() { ascend_twin::Initialise(false); }

enum class SaturationMode : uint8_t { FLOAT, FLOAT8, INT, CAST };

// Whether results that no float holds become the largest one, and NaN zero.
template <SaturationMode mode>
void SetSaturationFlag(bool enable) {
  static_assert(mode == SaturationMode::FLOAT,
                "the twin has float's flag only");
  ascend_twin::SetSaturate(enable);
}

inline int64_t GetBlockIdx() { return ascend_twin::ThisBlock(); }
inline int64_t GetBlockNum() { return ascend_twin::NumBlocks(); }
inline int64_t GetSubBlockIdx() { return ascend_twin::ThisSubBlock(); }
inline int64_t GetSubBlockNum() { return ascend_twin::NumSubBlocks(); }
// AIVs of a block on an AIV, 1 on an AIC.
inline int64_t GetTaskRatio() { return ascend_twin::NumSubBlocks(); }
inline int64_t GetTaskRation() { return GetTaskRatio(); }

// 50 MHz.
inline int64_t GetSystemCycle(Site site = Site::Here()) {
  return ascend_twin::Cycle(site);
}

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_API_SYSTEM_H_
