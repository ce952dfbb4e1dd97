// What a core keeps for its intrinsics, from one to the next.

#ifndef BACKEND_ASCEND_TWIN_INTRINSICS_CORE_STATE_H_
#define BACKEND_ASCEND_TWIN_INTRINSICS_CORE_STATE_H_

#include <cstdint>
#include <string>

#include "backend_ascend/twin/engine/instruction.h"
#include "backend_ascend/twin/instructions/operand.h"

namespace ascend_twin {

// Registers that set_* writes and later intrinsics read.
struct CoreState {
  Site site{"", 0};  // of the user's source, where the core is
  uint64_t control = 0;
  uint64_t pad = 0;  // set_mov_pad_val
  bool has_pad = false;
  uint64_t nd = 1;            // set_nd_para: count, source and target strides
  uint64_t image = 0;         // set_fmatrix
  uint64_t image_b = 0;       // set_fmatrix_b
  uint64_t quant = 0;         // set_quant_pre
  uint64_t compare_mask = 0;  // set_cmpmask: a byte of UB
  uint64_t duplicated_at = ~uint64_t{0};  // byte of UB that vector_dup filled
  uint64_t duplicated = 0;                // last, and with what
  uint64_t dequant = 0;                   // set_deqscale
  uint64_t kept = 0;                      // elements, by the last vreducev2
  uint64_t sum = 0;                       // bits, of the last vcadd of all
  uint64_t merged = 0;  // of each list, 16 bits, by the last vmrgsort4
  uint64_t addresses[9][8] = {};  // set_va_reg_sb: bytes of UB
};

// Of the core that runs.
CoreState& ThisState();

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_INTRINSICS_CORE_STATE_H_
