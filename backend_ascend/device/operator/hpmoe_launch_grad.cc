// The kernel of operator HpmoeLaunchGrad: the backward pass of one rank.
// Operands and results stand in the order of launch_op.cc.

#include "backend_ascend/device/operator/launch_kernel.h"

extern "C" __global__ __aicore__ void hpmoe_launch_grad(
    GM_ADDR image, GM_ADDR tables, GM_ADDR state, GM_ADDR topk_weights,
    GM_ADDR w_gate_up, GM_ADDR w_down, GM_ADDR expert_in, GM_ADDR gate_up,
    GM_ADDR activation, GM_ADDR returned, GM_ADDR dy, GM_ADDR d_expert_out,
    GM_ADDR d_activation, GM_ADDR d_w_down, GM_ADDR d_gate_up,
    GM_ADDR d_w_gate_up, GM_ADDR d_expert_in, GM_ADDR d_returned, GM_ADDR dx,
    GM_ADDR d_topk_weights, GM_ADDR workspace, GM_ADDR tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
  REGISTER_TILING_DEFAULT(HpmoeLaunchTiling);
  GET_TILING_DATA(told, tiling);
  hpmoe::LaunchArgs args = hpmoe::ArgsOf({image, tables, state, topk_weights,
                                          AscendC::GetUserWorkspace(workspace)},
                                         told.deadline_us);
  args.buffers[hpmoe::kWGateUp] = w_gate_up;
  args.buffers[hpmoe::kWDown] = w_down;
  args.buffers[hpmoe::kExpertIn] = expert_in;
  args.buffers[hpmoe::kGateUpBuffer] = gate_up;
  args.buffers[hpmoe::kActivation] = activation;
  args.buffers[hpmoe::kReturned] = returned;
  args.buffers[hpmoe::kDy] = dy;
  args.buffers[hpmoe::kDExpertOut] = d_expert_out;
  args.buffers[hpmoe::kDActivation] = d_activation;
  args.buffers[hpmoe::kDWDown] = d_w_down;
  args.buffers[hpmoe::kDGateUp] = d_gate_up;
  args.buffers[hpmoe::kDWGateUp] = d_w_gate_up;
  args.buffers[hpmoe::kDExpertIn] = d_expert_in;
  args.buffers[hpmoe::kDReturned] = d_returned;
  args.buffers[hpmoe::kDx] = dx;
  args.buffers[hpmoe::kDTopkWeights] = d_topk_weights;
  hpmoe::RunMegakernel(args);
}
