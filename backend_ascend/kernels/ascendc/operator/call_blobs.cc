#include "backend_ascend/kernels/ascendc/operator/call_blobs.h"

#include <algorithm>
#include <cstring>

#include "backend_ascend/kernels/ascendc/launch/launch_arrays.h"
#include "backend_ascend/kernels/ascendc/operator/call_layout.h"

namespace hpmoe {
namespace {

template <class T>
void Put(const std::vector<T>& values, uint64_t at, std::vector<char>* blob) {
  std::memcpy(blob->data() + at, values.data(), values.size() * sizeof(T));
}

std::string CoreText(const ImageHeader& header, int32_t core) {
  const bool aic = core < header.num_aic;
  return std::string(UnitName(aic ? kAic : kAiv)) + " " +
         std::to_string(aic ? core : core - header.num_aic);
}

std::string EndText(const ImageView& view, int32_t core,
                    const CoreDiagnosis& end) {
  const std::string who = CoreText(*view.header, core);
  switch (end.reason) {
    case kReadyDeadline:
      return "deadline: " + who + " waited for all ranks to start";
    case kEventDeadline:
      break;
    default:
      return who + ": expected it to end, got no word of it";
  }
  const bool known = end.task >= 0 && end.task < view.num_tasks;
  const std::string task =
      known ? std::string(KindName(view.tasks[end.task].kind)) + " task " +
                  std::to_string(end.task)
            : "no task";
  return "deadline: " + task + " on " + who + " waits for event " +
         std::to_string(end.event) + ": expected " +
         std::to_string(end.expected) + ", got " + std::to_string(end.actual);
}

}  // namespace

std::vector<char> MakeTables(const ImageHeader& header, const Plan& plan) {
  const TablesLayout layout = TablesOf(header);
  std::vector<char> blob(layout.bytes);
  Put(plan.counts, layout.counts, &blob);
  Put(plan.row_base, layout.row_base, &blob);
  Put(plan.expert_rows, layout.expert_rows, &blob);
  Put(plan.expert_base, layout.expert_base, &blob);
  Put(plan.slice_begin, layout.slice_begin, &blob);
  Put(plan.slice_slots, layout.slice_slots, &blob);
  FillConstants(reinterpret_cast<Constants*>(blob.data() + layout.constants));
  return blob;
}

std::vector<char> MakeState(const ImageHeader& header) {
  const StateLayout layout = StateOf(header);
  std::vector<char> blob(layout.bytes);
  std::fill_n(reinterpret_cast<int32_t*>(blob.data() + layout.header_slot),
              header.num_rows, -1);
  return blob;
}

std::string EndOf(const ImageView& view, const std::vector<char>& state) {
  const ImageHeader& header = *view.header;
  const auto* const ends = reinterpret_cast<const CoreDiagnosis*>(
      state.data() + StateOf(header).diagnosis);
  for (int32_t core = 0; core < header.num_aic + header.num_aiv; ++core) {
    if (ends[core].reason != kEnded) return EndText(view, core, ends[core]);
  }
  return "";
}

}  // namespace hpmoe
