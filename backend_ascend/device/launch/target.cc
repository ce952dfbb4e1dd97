#include "backend_ascend/device/launch/target.h"

#include "backend_ascend/device/megakernel/tile_budget.h"

namespace hpmoe {
namespace {

// A cube core adds to an event by a move of a constant, which is 1.
Status CheckSignals(const ImageView& view) {
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    const TaskDesc& task = view.tasks[t];
    if (task.unit != kAic) continue;
    for (uint32_t s = 0; s < task.signal_count; ++s) {
      const int32_t amount = view.signals[task.signal_begin + s].amount;
      if (amount == 1) continue;
      return Refused(1,
                     "image: expected tasks of AIC that add 1, got %d at %s %d",
                     amount, KindName(task.kind), t);
    }
  }
  return Status{};
}

}  // namespace

Status CheckTarget(const ImageView& view) {
  const DType dtype{view.header->dtype};
  if (dtype != kFloat32 && dtype != kBFloat16) {
    return Refused(
        1, "policy.storage: expected float32 or bfloat16 for ascend, got %s",
        kDTypes[dtype].name);
  }
  if (view.header->accumulation_order != kAscending) {
    return Refused(
        1,
        "policy.accumulation_order: expected ascending for ascend, got "
        "even_odd_32");
  }
  if (view.header->placement == kInEpilogue) {
    return Refused(
        1,
        "policy.placement: expected combine or before_down for ascend, got "
        "epilogue");
  }
  const TooLarge found = FirstTooLarge(*view.header, view.tasks);
  if (found.shortage.memory != nullptr) {
    const TaskDesc& task = view.tasks[found.task];
    return Refused(
        1,
        "row_block, col_block: expected tiles that fit in %lld bytes of %s, "
        "got %lld for %s %lld of %d x %d",
        static_cast<long long>(found.shortage.available), found.shortage.memory,
        static_cast<long long>(found.shortage.needed), KindName(task.kind),
        static_cast<long long>(found.task), task.row_end - task.row_begin,
        task.col_end - task.col_begin);
  }
  return CheckSignals(view);
}

Status CheckNpuTarget(const ImageView& view) {
  if (IsQuantised(*view.header)) {
    return Refused(
        1,
        "policy.rows: expected '' on an NPU, whose launch passes no scales, "
        "got int8_token");
  }
  return CheckTarget(view);
}

}  // namespace hpmoe
