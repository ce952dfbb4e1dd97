// The launch plan: where every routed row goes, from the routing alone.
//
// Row order on the owner of an expert is (source rank, token, slot), experts
// ascending, so every row has one address before it is sent.

#ifndef BACKEND_ASCEND_HOST_LOAD_PLAN_H_
#define BACKEND_ASCEND_HOST_LOAD_PLAN_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/image/image.h"
#include "backend_ascend/image/rows.h"

namespace hpmoe {

// Slices of (source rank, expert), packed on the owners of the experts.
struct Slices {
  std::vector<int32_t> counts;       // [R, E] rows of rank r for expert e
  std::vector<int32_t> row_base;     // [R, E] first of them on e's owner
  std::vector<int32_t> expert_rows;  // [E] rows of all ranks
  std::vector<int32_t> expert_base;  // [E] first of them on the owner
  std::vector<int32_t> rank_rows;    // [R] valid rows a rank holds
  std::vector<int64_t> slice_begin;  // [R * E + 1] into slice_slots
  std::vector<int32_t> slice_slots;  // token * K + slot, by (rank, expert)
};

struct Plan : Slices {
  std::vector<int32_t> row_of_slot;  // [R, T, K] row on the owner
  // With relay, else empty: slices of the tokens that have no lower expert on
  // the rank, and per row of theirs, in the order of once.slice_slots, up to
  // CopiesOf rows on the owner, -1 after the last, and their slots.
  Slices once;
  std::vector<int32_t> copy_rows;
  std::vector<int32_t> copy_slots;
};

// The slices that the rows of a packed buffer are of.
inline const Slices& SlicesOf(const Plan& plan, int buffer) {
  return IsRelayed(buffer) ? plan.once : plan;
}

// Valid while it lives and is not changed.
inline SliceTables TablesOf(const Slices& slices) {
  return {slices.counts.data(),      slices.row_base.data(),
          slices.expert_rows.data(), slices.expert_base.data(),
          slices.slice_begin.data(), slices.slice_slots.data()};
}

// Valid while both live and the plan is not changed.
inline PlanView ViewOf(const ImageHeader& image, const Plan& plan) {
  return {TablesOf(plan), &image, TablesOf(plan.once), plan.copy_rows.data(),
          plan.copy_slots.data()};
}

// `topk_ids`: [R, T, K].  Refuses an id outside [0, E), an expert named twice
// by a token, more rows than num_rows on a rank or than expert_capacity for an
// expert.
Status MakePlan(const ImageHeader& image, const int32_t* topk_ids, Plan* plan);

// The same in two steps, for a rank that knows only its own `topk_ids`, [T, K].
// First its row of counts, [E]; with relay [2E], the second half of relayed
// rows.  Then, from all ranks' rows, a plan whose row_of_slot, [T, K],
// slice_slots and copies are those of the rank.
int64_t CountsOf(const ImageHeader& image);
Status CountSlots(const ImageHeader& image, int32_t rank,
                  const int32_t* topk_ids, int32_t* counts);
Status MakeRankPlan(const ImageHeader& image, int32_t rank,
                    const int32_t* topk_ids, const int32_t* counts, Plan* plan);

// Every valid row of every owner, and every relayed one, is hit once, by the
// slots of the ranks held from `first_rank` whose ids these are.  Reads the
// tables that puts read; every launch checks its own.
Status CheckPlan(const ImageHeader& image, int32_t first_rank,
                 int32_t ranks_held, const int32_t* topk_ids, const Plan& plan);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LOAD_PLAN_H_
