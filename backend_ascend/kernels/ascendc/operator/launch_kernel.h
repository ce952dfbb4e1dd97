// What both operators' kernels do: from operands to the arguments of a launch.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_LAUNCH_KERNEL_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_LAUNCH_KERNEL_H_

#include "kernel_operator.h"

// After it, which says what __gm__ is.
#include "backend_ascend/kernels/ascendc/megakernel.h"
#include "backend_ascend/kernels/ascendc/operator/call_layout.h"
#include "backend_ascend/kernels/ascendc/operator/launch_tiling.h"

namespace hpmoe {

// Operands of a call beside those of the layer.
struct CallOperands {
  GM_ADDR image;
  GM_ADDR tables;
  GM_ADDR state;
  GM_ADDR topk_weights;
  GM_ADDR workspace;
};

template <class T>
HPMOE_FUNCTION HPMOE_GM T* At(GM_ADDR begin, uint64_t offset) {
  return reinterpret_cast<HPMOE_GM T*>(begin + offset);
}

// A launch of one rank: what puts write are its own results, so that no heap
// is needed.  Buffers are not set.
HPMOE_FUNCTION LaunchArgs ArgsOf(const CallOperands& call,
                                 uint64_t deadline_us) {
  ImageHeader header;
  CopyConstant(reinterpret_cast<const HPMOE_GM ImageHeader*>(call.image),
               &header);
  const TablesLayout tables = TablesOf(header);
  const StateLayout state = StateOf(header);
  const WorkspaceLayout own = WorkspaceOf(header);
  LaunchArgs args = {};
  args.image = call.image;
  args.counts = At<int32_t>(call.tables, tables.counts);
  args.row_base = At<int32_t>(call.tables, tables.row_base);
  args.expert_rows = At<int32_t>(call.tables, tables.expert_rows);
  args.expert_base = At<int32_t>(call.tables, tables.expert_base);
  args.slice_begin = At<int64_t>(call.tables, tables.slice_begin);
  args.slice_slots = At<int32_t>(call.tables, tables.slice_slots);
  args.constants = At<Constants>(call.tables, tables.constants);
  args.heaps = At<uint64_t>(call.tables, tables.heaps);
  args.topk_weights = At<float>(call.topk_weights, 0);
  args.header_slot = At<int32_t>(call.state, state.header_slot);
  args.events = At<CounterLine>(call.state, state.events);
  args.ready = At<CounterLine>(call.state, state.ready);
  args.diagnosis = At<CoreDiagnosis>(call.state, state.diagnosis);
  args.header_weight = At<float>(call.workspace, own.header_weight);
  if (WeightsTravel(header)) {
    args.d_row_weight = At<float>(call.workspace, own.d_row_weight);
    args.d_slot_weight = At<float>(call.workspace, own.d_slot_weight);
  }
  for (int b = 0; b < kNumBuffers; ++b) {
    if (!HasSums(header, b)) continue;
    args.sums[b] = At<float>(call.workspace, own.sums[b]);
  }
  args.deadline_us = deadline_us;
  args.rank = 0;
  args.generation = 1;  // counters are made anew for each launch
  return args;
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_LAUNCH_KERNEL_H_
