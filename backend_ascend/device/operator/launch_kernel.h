// What both operators' kernels do: from operands to the arguments of a launch.

#ifndef BACKEND_ASCEND_DEVICE_OPERATOR_LAUNCH_KERNEL_H_
#define BACKEND_ASCEND_DEVICE_OPERATOR_LAUNCH_KERNEL_H_

#include "kernel_operator.h"

// After it, which says what __gm__ is.
#include "backend_ascend/device/megakernel/megakernel.h"
#include "backend_ascend/device/operator/launch_tiling.h"

namespace hpmoe {

// Operands of a call beside those of the layer.
struct CallOperands {
  GM_ADDR image;
  GM_ADDR tables;
  GM_ADDR state;
  GM_ADDR topk_weights;
  GM_ADDR workspace;
};

// Buffers are not set.
HPMOE_FUNCTION LaunchArgs ArgsOf(const CallOperands& call,
                                 uint64_t deadline_us) {
  typedef uint64_t __attribute__((__may_alias__)) Address;
  const GM_ADDR begins[kNumCallBlobs] = {call.tables, call.state,
                                         call.workspace};
  LaunchArgs args;
  CopyConstant(reinterpret_cast<const HPMOE_GM LaunchArgs*>(call.tables),
               &args);
  Address* const words = reinterpret_cast<Address*>(&args);
  for (uint32_t i = 0; i < sizeof(args) / sizeof(Address); ++i) {
    const uint64_t blob = words[i] >> kBlobBit;
    if (blob == 0) continue;
    words[i] -= blob << kBlobBit;
    words[i] += reinterpret_cast<uint64_t>(begins[blob - 1]);
  }
  args.image = call.image;
  args.topk_weights = reinterpret_cast<HPMOE_GM float*>(call.topk_weights);
  args.deadline_us = deadline_us;
  return args;
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_OPERATOR_LAUNCH_KERNEL_H_
