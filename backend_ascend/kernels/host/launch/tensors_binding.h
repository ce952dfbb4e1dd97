// The tensors of a launch out of Python's arrays by name.

#ifndef BACKEND_ASCEND_KERNELS_HOST_LAUNCH_TENSORS_BINDING_H_
#define BACKEND_ASCEND_KERNELS_HOST_LAUNCH_TENSORS_BINDING_H_

#include "backend_ascend/kernels/host/binding.h"
#include "backend_ascend/kernels/host/launch/runtime_tasks.h"

namespace hpmoe {

struct PlanBytes {
  int64_t by_expert, by_slot;  // of [R, E] and [R, T, K], four bytes each
  explicit PlanBytes(const ImageHeader& h)
      : by_expert(int64_t{h.num_ranks} * h.num_experts * 4),
        by_slot(int64_t{h.num_ranks} * h.num_tokens * h.top_k * 4) {}
};

// `plan`: of the routing, or null.  Arrays must outlive what is returned.
inline LaunchTensors TensorsOf(const ImageHeader& header, const Plan* plan,
                               const ConstArrays& inputs,
                               const Arrays& outputs) {
  const PlanBytes bytes(header);
  const auto ints = [&](const char* name, int64_t size) {
    return static_cast<int32_t*>(Find(outputs, name, size));
  };
  LaunchTensors tensors{};
  tensors.plan = plan;
  tensors.topk_ids =
      static_cast<const int32_t*>(Find(inputs, "topk_ids", bytes.by_slot));
  tensors.topk_weights =
      static_cast<const float*>(Find(inputs, "topk_weights", bytes.by_slot));
  tensors.counts = ints("counts", bytes.by_expert);
  tensors.row_base = ints("row_base", bytes.by_expert);
  tensors.row_of_slot = ints("row_of_slot", bytes.by_slot);
  for (int b = 0; b < kNumBuffers; ++b) {
    const BufferInfo& info = kBuffers[b];
    const Use use = UseOf(header, b);
    const int64_t size = ShapeOf(header, static_cast<BufferId>(b)).bytes();
    if (use == Use::kInput) {
      // Tasks only read it.
      tensors.buffers[b] = const_cast<void*>(Find(inputs, info.name, size));
    } else if (use == Use::kWritten) {
      // Who leaves relayed rows out does not ask for them.
      if (IsRelayed(b) && outputs.count(info.name) == 0) continue;
      tensors.buffers[b] = Find(outputs, info.name, size);
    }
  }
  return tensors;
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_LAUNCH_TENSORS_BINDING_H_
