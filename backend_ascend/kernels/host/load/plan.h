// The launch plan: where every routed row goes, from the routing alone.
//
// Row order on the owner of an expert is (source rank, token, slot), experts
// ascending, so every row has one address before it is sent.

#ifndef BACKEND_ASCEND_KERNELS_HOST_PLAN_H_
#define BACKEND_ASCEND_KERNELS_HOST_PLAN_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/kernels/host/load/image_loader.h"
#include "backend_ascend/kernels/image.h"
#include "backend_ascend/kernels/rows.h"

namespace hpmoe {

struct Plan {
  std::vector<int32_t> counts;       // [R, E] rows of rank r for expert e
  std::vector<int32_t> row_base;     // [R, E] first of them on e's owner
  std::vector<int32_t> row_of_slot;  // [R, T, K] row on the owner
  std::vector<int32_t> expert_rows;  // [E] rows of all ranks
  std::vector<int32_t> expert_base;  // [E] first of them on the owner
  std::vector<int32_t> rank_rows;    // [R] valid rows a rank holds
  std::vector<int64_t> slice_begin;  // [R * E + 1] into slice_slots
  std::vector<int32_t> slice_slots;  // token * K + slot, by (rank, expert)
};

// Valid while both live and the plan is not changed.
inline PlanView ViewOf(const ImageHeader& image, const Plan& plan) {
  return {&image,
          plan.counts.data(),
          plan.row_base.data(),
          plan.expert_rows.data(),
          plan.expert_base.data(),
          plan.slice_begin.data(),
          plan.slice_slots.data()};
}

// `topk_ids`: [R, T, K].  Refuses an id outside [0, E), an expert named twice
// by a token, more rows than num_rows on a rank or than expert_capacity for an
// expert.
Status MakePlan(const ImageHeader& image, const int32_t* topk_ids, Plan* plan);

// The same in two steps, for a rank that knows only its own `topk_ids`, [T, K].
// First its row of counts, [E].  Then, from all ranks' `counts`, [R, E], a plan
// whose row_of_slot, [T, K], and slice_slots are those of the rank.
Status CountSlots(const ImageHeader& image, int32_t rank,
                  const int32_t* topk_ids, int32_t* counts);
Status MakeRankPlan(const ImageHeader& image, int32_t rank,
                    const int32_t* topk_ids, const int32_t* counts, Plan* plan);

// Sender view and row view are in bijection: every valid row of every owner is
// hit once, by the slots of the ranks held from `first_rank` whose ids these
// are.  Reads the tables that puts read; every launch checks its own.
Status CheckPlan(const ImageHeader& image, int32_t first_rank,
                 int32_t ranks_held, const int32_t* topk_ids, const Plan& plan);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_PLAN_H_
