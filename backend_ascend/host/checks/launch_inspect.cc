#include "backend_ascend/host/checks/launch_inspect.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "backend_ascend/host/launch/launch_prepare.h"
#include "backend_ascend/host/launch/runtime_platform.h"

namespace hpmoe {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Memory that is only pointed into: zero pages that nothing touches.
class Untouched {
 public:
  void* Take(int64_t bytes) {
    taken_.emplace_back(std::calloc(bytes, 1));
    return taken_.back().get();
  }
  bool AllTaken() const {
    for (const auto& memory : taken_) {
      if (memory == nullptr) return false;
    }
    return true;
  }

 private:
  std::vector<std::unique_ptr<void, Free>> taken_;
};

LaunchTensors TensorsIn(const ImageHeader& image, const Plan& plan,
                        const int32_t* topk_ids, Untouched* memory) {
  const int64_t by_expert = int64_t{image.num_ranks} * image.num_experts;
  const int64_t by_slot =
      int64_t{image.num_ranks} * image.num_tokens * image.top_k;
  LaunchTensors tensors{};
  tensors.plan = &plan;
  tensors.topk_ids = topk_ids;
  tensors.topk_weights = static_cast<float*>(memory->Take(by_slot * 4));
  tensors.counts = static_cast<int32_t*>(memory->Take(by_expert * 4));
  tensors.row_base = static_cast<int32_t*>(memory->Take(by_expert * 4));
  tensors.row_of_slot = static_cast<int32_t*>(memory->Take(by_slot * 4));
  for (int b = 0; b < kNumBuffers; ++b) {
    if (PassUse(image, b) == Use::kAbsent) continue;
    tensors.buffers[b] =
        memory->Take(ShapeOf(image, static_cast<BufferId>(b)).bytes());
    tensors.scales[b] = static_cast<float*>(
        memory->Take(std::max<int64_t>(NumScales(image, b), 1) * 4));
  }
  return tensors;
}

}  // namespace

Status Inspect(const ImageView& view, const Plan& plan, const int32_t* topk_ids,
               Inspection* inspection) {
  Untouched memory;
  const LaunchTensors tensors =
      TensorsIn(*view.header, plan, topk_ids, &memory);
  if (!memory.AllTaken()) {
    return {1, "topk_ids: expected a layer that fits into memory, got none"};
  }
  Held held;
  LaunchState state{};
  const Status status = Prepare(view, tensors, {}, &held, &state.layer);
  if (status.code != 0) return status;
  SentRows sent(state.layer);
  // As puts home find them.
  state.layer.header_slot = sent.slot.data();
  if (!sent.copies.empty()) state.layer.copies = sent.copies.data();
  state.view = &view;
  state.fault = {FaultKind::kNone, -1};
  state.modes.races = true;
  state.counters = std::vector<EventCounter>(view.header->events.count);
  state.progress.assign(view.header->tasks.count, Progress::kWaiting);
  state.RecordOrder();
  HostPlatform platform(&state);
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    for (const Access& access : AccessesOf(view.tasks[t], state.layer, sent)) {
      inspection->accesses.push_back({t, access});
    }
    platform.Signal(t);
    for (const int32_t event : state.signalled[t]) {
      inspection->signals.push_back({t, event});
    }
  }
  return status;
}

}  // namespace hpmoe
