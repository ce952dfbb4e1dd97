// What an operator passes beside a layer's tensors, and where in it each array
// lies: one reading for the host that makes it and the device that uses it.
// Freestanding, as worker.h is.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_CALL_LAYOUT_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_CALL_LAYOUT_H_

#include "backend_ascend/kernels/ascendc/launch_args.h"
#include "backend_ascend/kernels/regions.h"

namespace hpmoe {

// Places arrays one behind the other, each on a line of its own.
class Placing {
 public:
  HPMOE_FUNCTION uint64_t Place(int64_t count, uint64_t element_bytes) {
    const uint64_t at = bytes_;
    const uint64_t end = at + static_cast<uint64_t>(count) * element_bytes;
    bytes_ = (end + kLineBytes - 1) / kLineBytes * kLineBytes;
    return at;
  }
  HPMOE_FUNCTION uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
};

// Operand `tables`: constant during a launch.
struct TablesLayout {
  uint64_t counts, row_base, expert_rows, expert_base, slice_begin, slice_slots;
  uint64_t constants, heaps;
  uint64_t bytes;
};
HPMOE_FUNCTION TablesLayout TablesOf(const ImageHeader& h) {
  const int64_t slices = int64_t{h.num_ranks} * h.num_experts;
  const int64_t slots = int64_t{h.num_tokens} * h.top_k;
  Placing placing;
  TablesLayout layout = {};
  layout.counts = placing.Place(slices, 4);
  layout.row_base = placing.Place(slices, 4);
  layout.expert_rows = placing.Place(h.num_experts, 4);
  layout.expert_base = placing.Place(h.num_experts, 4);
  layout.slice_begin = placing.Place(slices + 1, 8);
  layout.slice_slots = placing.Place(h.num_ranks * slots, 4);
  layout.constants = placing.Place(1, sizeof(Constants));
  layout.heaps = placing.Place(h.num_ranks, 8);
  layout.bytes = placing.bytes();
  return layout;
}

// Operand `state`: what a launch counts in, made anew for each; the diagnosis
// is read out of it when the launch has ended.
struct StateLayout {
  uint64_t header_slot;  // -1 at launch, all else 0
  uint64_t events, ready, diagnosis;
  uint64_t bytes;
};
HPMOE_FUNCTION StateLayout StateOf(const ImageHeader& h) {
  Placing placing;
  StateLayout layout = {};
  layout.header_slot = placing.Place(h.num_rows, 4);
  layout.events =
      placing.Place(static_cast<int64_t>(h.events.count), sizeof(CounterLine));
  layout.ready = placing.Place(kReadyLines, sizeof(CounterLine));
  layout.diagnosis =
      placing.Place(int64_t{h.num_aic} + h.num_aiv, sizeof(CoreDiagnosis));
  layout.bytes = placing.bytes();
  return layout;
}

// Whether a weight gradient's links hand float32 sums on.
HPMOE_FUNCTION bool HasSums(const ImageHeader& h, int buffer) {
  return BufferForm(h, buffer) == Form::kWeightTile && IsWritten(h, buffer) &&
         LinksOf(h) > 1;
}

// The operator's workspace, which holds anything at launch.
struct WorkspaceLayout {
  uint64_t header_weight, d_row_weight, d_slot_weight;
  uint64_t sums[kNumBuffers];  // where HasSums
  uint64_t bytes;
};
HPMOE_FUNCTION WorkspaceLayout WorkspaceOf(const ImageHeader& h) {
  const int64_t travel = WeightsTravel(h) ? 1 : 0;
  Placing placing;
  WorkspaceLayout layout = {};
  layout.header_weight = placing.Place(h.num_rows, 4);
  layout.d_row_weight = placing.Place(travel * h.num_rows, 4);
  layout.d_slot_weight = placing.Place(travel * h.num_tokens * h.top_k, 4);
  for (int b = 0; b < kNumBuffers; ++b) {
    if (!HasSums(h, b)) continue;
    const int64_t elements = LocalExperts(h) * SizeOf(h, kBuffers[b].rows) *
                             SizeOf(h, kBuffers[b].cols);
    layout.sums[b] = placing.Place(elements, 4);
  }
  layout.bytes = placing.bytes();
  return layout;
}

// A tensor of the layer as reference/contract/tensors.py has it: its sizes, of
// which `count` are used.
struct TensorSizes {
  int64_t of[4];
  int32_t count;
};
HPMOE_FUNCTION TensorSizes SizesOf(const ImageHeader& h, int buffer) {
  const BufferInfo& info = kBuffers[buffer];
  const int64_t cols = SizeOf(h, info.cols);
  switch (info.rows) {
    case Axis::kT:
      return {{h.num_ranks, h.num_tokens, cols}, 3};
    case Axis::kTK:
      return {{h.num_ranks, h.num_tokens, h.top_k, cols}, 4};
    case Axis::kC:
      return {{h.num_ranks, h.num_rows, cols}, 3};
    default:
      return {{h.num_ranks, LocalExperts(h), SizeOf(h, info.rows), cols}, 4};
  }
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_CALL_LAYOUT_H_
