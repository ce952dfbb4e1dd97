// The tensors of a launch out of Python's arrays by name.

#ifndef BACKEND_ASCEND_HOST_LAUNCH_TENSORS_BINDING_H_
#define BACKEND_ASCEND_HOST_LAUNCH_TENSORS_BINDING_H_

#include "backend_ascend/host/binding.h"
#include "backend_ascend/host/launch/runtime_tasks.h"

namespace hpmoe {

struct PlanBytes {
  int64_t by_expert, by_slot;  // of [R, E] and [R, T, K], four bytes each
  explicit PlanBytes(const ImageHeader& h)
      : by_expert(int64_t{h.num_ranks} * h.num_experts * 4),
        by_slot(int64_t{h.num_ranks} * h.num_tokens * h.top_k * 4) {}
};

// What the arrays of a buffer are called: codes and sums take the place of
// values where an image quantises.
inline std::string ArrayName(const ImageHeader& header, int b) {
  const Element element = ElementOf(header, b);
  const std::string name = kBuffers[b].name;
  return element == Element::kCode  ? name + "_codes"
         : element == Element::kSum ? name + "_sums"
                                    : name;
}

// Of any tensors; `plan`: of the routing, or null.  Arrays must outlive what is
// returned.
inline LaunchTensors TensorsOf(const ImageHeader& header, const Plan* plan,
                               const ConstArrays& inputs,
                               const Arrays& outputs) {
  const PlanBytes bytes(header);
  const auto find = [](const auto& arrays, const std::string& name,
                       int64_t size) {
    using Data = decltype(Find(arrays, name, size));
    return arrays.count(name) == 0 ? Data{nullptr} : Find(arrays, name, size);
  };
  const auto ints = [&](const char* name, int64_t size) {
    return static_cast<int32_t*>(find(outputs, name, size));
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
    const std::string name = ArrayName(header, b);
    const int64_t size = ShapeOf(header, static_cast<BufferId>(b)).bytes();
    if (PassUse(header, b) == Use::kWritten) {
      tensors.buffers[b] = find(outputs, name, size);
    } else {  // tasks only read it
      tensors.buffers[b] =
          const_cast<void*>(static_cast<const void*>(find(inputs, name, size)));
    }
    const int64_t scales = NumScales(header, b) * 4;
    if (scales == 0) continue;
    const void* const found = PassUse(header, b) == Use::kWritten
                                  ? find(outputs, ScalesName(b), scales)
                                  : find(inputs, ScalesName(b), scales);
    tensors.scales[b] = static_cast<float*>(const_cast<void*>(found));
  }
  return tensors;
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LAUNCH_TENSORS_BINDING_H_
