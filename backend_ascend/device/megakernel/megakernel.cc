// The entry of the megakernel: `args` is one LaunchArgs in global memory.

#include "backend_ascend/device/megakernel/megakernel.h"

extern "C" __global__ __aicore__ void hpmoe_megakernel(GM_ADDR args) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
  hpmoe::LaunchArgs launch;
  hpmoe::CopyConstant(reinterpret_cast<const HPMOE_GM hpmoe::LaunchArgs*>(args),
                      &launch);
  hpmoe::RunMegakernel(launch);
}
