// The kernel of operator HpmoeLaunch: the forward pass of one rank.  Operands
// and results stand in the order of launch_op.cc.

#include "backend_ascend/device/operator/launch_kernel.h"

extern "C" __global__ __aicore__ void hpmoe_launch(
    GM_ADDR image, GM_ADDR tables, GM_ADDR state, GM_ADDR topk_weights,
    GM_ADDR x, GM_ADDR w_gate_up, GM_ADDR w_down, GM_ADDR expert_in,
    GM_ADDR gate_up, GM_ADDR activation, GM_ADDR expert_out, GM_ADDR returned,
    GM_ADDR y, GM_ADDR workspace, GM_ADDR tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
  REGISTER_TILING_DEFAULT(HpmoeLaunchTiling);
  GET_TILING_DATA(told, tiling);
  hpmoe::LaunchArgs args = hpmoe::ArgsOf({image, tables, state, topk_weights,
                                          AscendC::GetUserWorkspace(workspace)},
                                         told.deadline_us);
  args.buffers[hpmoe::kX] = x;
  args.buffers[hpmoe::kWGateUp] = w_gate_up;
  args.buffers[hpmoe::kWDown] = w_down;
  args.buffers[hpmoe::kExpertIn] = expert_in;
  args.buffers[hpmoe::kGateUpBuffer] = gate_up;
  args.buffers[hpmoe::kActivation] = activation;
  args.buffers[hpmoe::kExpertOut] = expert_out;
  args.buffers[hpmoe::kReturned] = returned;
  args.buffers[hpmoe::kY] = y;
  hpmoe::RunMegakernel(args);
}
