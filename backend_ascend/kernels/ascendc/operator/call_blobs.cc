#include "backend_ascend/kernels/ascendc/operator/call_blobs.h"

#include <algorithm>
#include <cstring>

#include "backend_ascend/kernels/ascendc/launch/launch_arrays.h"
#include "backend_ascend/kernels/ascendc/npus/ends.h"
#include "backend_ascend/kernels/ascendc/operator/call_layout.h"

namespace hpmoe {
namespace {

template <class T>
void Put(const std::vector<T>& values, uint64_t at, std::vector<char>* blob) {
  std::memcpy(blob->data() + at, values.data(), values.size() * sizeof(T));
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
  return EndOf(view, 0, {ends, ends + header.num_aic + header.num_aiv}).text;
}

}  // namespace hpmoe
