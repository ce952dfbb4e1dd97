// The arrays that a rank's LaunchArgs point to: one list for who gives them
// memory on an NPU, who does so on the twin, and who reads what they are.

#ifndef BACKEND_ASCEND_DEVICE_LAUNCH_LAUNCH_ARRAYS_H_
#define BACKEND_ASCEND_DEVICE_LAUNCH_LAUNCH_ARRAYS_H_

#include <cstdint>

#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/host/load/plan.h"
#include "backend_ascend/image/regions.h"

namespace hpmoe {

// What an array holds when a launch begins.
enum class Content : uint8_t {
  kConstant,  // what the host wrote; no core writes it
  kMinusOne,  // -1 in every word
  kZero,
  kEmpty,     // nothing: reading what no core has written is an error
  kCounters,  // lines that cores wait at: zero
};

// A rank's part of a buffer: one slab, or those of its experts.
inline int64_t ElementsOfRank(const ImageHeader& h, int b) {
  const BufferInfo& info = kBuffers[b];
  const int64_t slabs = IsWeight(info.rows) ? LocalExperts(h) : 1;
  const int64_t rows =
      info.rows == Axis::kC ? h.num_rows : SizeOf(h, info.rows);
  return slabs * rows * SizeOf(h, info.cols);
}
inline int64_t BytesOfRank(const ImageHeader& h, int b) {
  return ElementsOfRank(h, b) * ElementBytes(h, b);
}

inline int64_t ScalesOfRank(const ImageHeader& h, int b) {
  return NumScales(h, b) / h.num_ranks;
}

// Slots in slice_slots, and tokens in once_slice_slots, of the ranks that a
// plan knows.
struct PlanSizes {
  int64_t slots, relayed;
};

inline PlanSizes SizesOf(const Plan& plan) {
  return {static_cast<int64_t>(plan.slice_slots.size()),
          static_cast<int64_t>(plan.once.slice_slots.size())};
}

// A `Placer` has
//   template <class T>
//   void Add(T** field, const char* name, int64_t count, Content content);
// which sets a field of LaunchArgs, or looks at it; none of zero elements.

// Constant during a launch.
template <class Placer>
void PlaceTables(const ImageHeader& h, uint64_t image_bytes,
                 const PlanSizes& sizes, Placer* p, LaunchArgs* args) {
  const Content same = Content::kConstant;
  const int64_t slices = int64_t{h.num_ranks} * h.num_experts;
  const int64_t image = static_cast<int64_t>(image_bytes);
  p->Add(&args->image, "image", image, same);
  p->Add(&args->counts, "counts", slices, same);
  p->Add(&args->row_base, "row_base", slices, same);
  p->Add(&args->expert_rows, "expert_rows", h.num_experts, same);
  p->Add(&args->expert_base, "expert_base", h.num_experts, same);
  p->Add(&args->slice_begin, "slice_begin", slices + 1, same);
  p->Add(&args->slice_slots, "slice_slots", sizes.slots, same);
  if (h.relay != 0) {
    const int64_t copies = sizes.relayed * CopiesOf(h);
    p->Add(&args->once_counts, "once_counts", slices, same);
    p->Add(&args->once_row_base, "once_row_base", slices, same);
    p->Add(&args->once_expert_rows, "once_expert_rows", h.num_experts, same);
    p->Add(&args->once_expert_base, "once_expert_base", h.num_experts, same);
    p->Add(&args->once_slice_begin, "once_slice_begin", slices + 1, same);
    p->Add(&args->once_slice_slots, "once_slice_slots", sizes.relayed, same);
    p->Add(&args->copy_rows, "copy_rows", copies, same);
    p->Add(&args->copy_slots, "copy_slots", copies, same);
  }
  p->Add(&args->constants, "constants", 1, same);
}

// What other ranks write: the same arrays in the same order on every rank, so
// the same offsets.  Not `ready`, which outlives an image.
template <class Placer>
void PlaceHeap(const ImageHeader& h, Placer* p, LaunchArgs* args) {
  for (int b = 0; b < kNumBuffers; ++b) {
    if (!IsWritten(h, b) || !IsPut(BufferForm(h, b))) continue;
    p->Add(&args->buffers[b], BufferName(b), BytesOfRank(h, b),
           Content::kEmpty);
    p->Add(&args->scales[b], "scales", ScalesOfRank(h, b), Content::kEmpty);
  }
  const int64_t rows = h.num_rows;
  const int64_t copies = h.relay == 0 ? 0 : rows * CopiesOf(h);
  const int64_t slots = int64_t{h.num_tokens} * h.top_k;
  p->Add(&args->header_slot, "header_slot", rows, Content::kMinusOne);
  p->Add(&args->header_weight, "header_weight", rows, Content::kEmpty);
  p->Add(&args->copy_row, "copy_row", copies, Content::kMinusOne);
  p->Add(&args->copy_slot, "copy_slot", copies, Content::kEmpty);
  p->Add(&args->copy_weight, "copy_weight", copies, Content::kEmpty);
  p->Add(&args->d_slot_weight, "d_slot_weight", WeightsTravel(h) ? slots : 0,
         Content::kEmpty);
  p->Add(&args->events, "events", static_cast<int64_t>(h.events.count),
         Content::kCounters);
}

template <class Placer>
void PlaceReady(Placer* p, LaunchArgs* args) {
  p->Add(&args->ready, "ready", kReadyLines, Content::kCounters);
}

// What only the rank itself touches.
template <class Placer>
void PlaceOwn(const ImageHeader& h, Placer* p, LaunchArgs* args) {
  for (int b = 0; b < kNumBuffers; ++b) {
    const Use use = UseOf(h, b);
    const Form form = BufferForm(h, b);
    const bool written = IsWritten(h, b);
    if (use == Use::kAbsent || (written && IsPut(form))) continue;
    p->Add(&args->buffers[b], BufferName(b), BytesOfRank(h, b),
           written ? Content::kEmpty : Content::kConstant);
    p->Add(&args->scales[b], "scales", ScalesOfRank(h, b),
           written ? Content::kEmpty : Content::kConstant);
    if (!written || form != Form::kWeightTile || LinksOf(h) == 1) continue;
    p->Add(&args->sums[b], "sums", ElementsOfRank(h, b), Content::kEmpty);
  }
  const int64_t slots = int64_t{h.num_tokens} * h.top_k;
  p->Add(&args->topk_weights, "topk_weights", slots, Content::kConstant);
  p->Add(&args->d_row_weight, "d_row_weight",
         WeightsTravel(h) ? int64_t{h.num_rows} : 0, Content::kEmpty);
  p->Add(&args->diagnosis, "diagnosis", int64_t{h.num_aic} + h.num_aiv,
         Content::kZero);
}

// Calls `copy(to, from, bytes)` for each table of a plan.
template <class Copy>
void CopyTables(const ImageHeader& h, const Plan& plan, const LaunchArgs& args,
                Copy copy) {
  const auto one = [&](const auto* to, const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    copy(const_cast<T*>(to), values.data(), values.size() * sizeof(T));
  };
  one(args.counts, plan.counts);
  one(args.row_base, plan.row_base);
  one(args.expert_rows, plan.expert_rows);
  one(args.expert_base, plan.expert_base);
  one(args.slice_begin, plan.slice_begin);
  one(args.slice_slots, plan.slice_slots);
  if (h.relay == 0) return;
  one(args.once_counts, plan.once.counts);
  one(args.once_row_base, plan.once.row_base);
  one(args.once_expert_rows, plan.once.expert_rows);
  one(args.once_expert_base, plan.once.expert_base);
  one(args.once_slice_begin, plan.once.slice_begin);
  one(args.once_slice_slots, plan.once.slice_slots);
  one(args.copy_rows, plan.copy_rows);
  one(args.copy_slots, plan.copy_slots);
}

// What `constants` holds.
inline void FillConstants(Constants* constants) {
  *constants = {};
  constants->one[0] = 1;
  constants->one[8] = kOneOfFloats;
  for (int32_t i = 0; i < kIdentityRows; ++i) {
    constants->identity[i * kIdentityRows + i] = 1.0f;
  }
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_LAUNCH_LAUNCH_ARRAYS_H_
