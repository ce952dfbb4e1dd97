// What the operator's host side tells its kernel.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_LAUNCH_TILING_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_LAUNCH_TILING_H_

#include <stdint.h>

struct HpmoeLaunchTiling {
  uint64_t deadline_us;  // of one wait
};

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_LAUNCH_TILING_H_
