// How long an instruction takes, by a few figures of a machine.

#ifndef BACKEND_ASCEND_TWIN_WATCH_RATES_H_
#define BACKEND_ASCEND_TWIN_WATCH_RATES_H_

#include "backend_ascend/twin/engine/kernel_launch.h"

namespace ascend_twin {

// X(name): what a machine says of one core, in SI units; SecondsOf reads it.
#define HPMOE_TWIN_RATES(X)                               \
  X(cube_bf16)                                            \
  X(cube_f32)                                             \
  X(cube_efficiency)                                      \
  X(aic_read)                                             \
  X(aic_write)                                            \
  X(aic_l0a) /* B/s, L1 to L0A */                         \
  X(aic_l0b) /* B/s, L1 to L0B */                         \
  X(aiv_read)                                             \
  X(aiv_write)                                            \
  X(vector)                                               \
  X(read_latency) /* s, until flags see what MTE2 read */ \
  X(move_head)    /* s, of an instruction of MTE1 */      \
  X(product_head) /* s, of an Mmad */

struct Rates {
#define HPMOE_TWIN_RATE(name) double name = 0;
  HPMOE_TWIN_RATES(HPMOE_TWIN_RATE)
#undef HPMOE_TWIN_RATE
};

// Of an instruction of the core that runs.
Seconds SecondsOf(const Rates& rates, const Instruction& work);

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_WATCH_RATES_H_
