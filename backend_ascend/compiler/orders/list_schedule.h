// List scheduling: a core that is free takes, of what is ready, a task of the
// kind that has the longest way to the end.
//
// A task is ready when all that may signal what it waits for have ended: which
// of them do is known at launch only.  All tasks of a kind are as urgent: the
// way of a single one would leave out that it waits for its turn.

#ifndef BACKEND_ASCEND_COMPILER_ORDERS_LIST_SCHEDULE_H_
#define BACKEND_ASCEND_COMPILER_ORDERS_LIST_SCHEDULE_H_

#include <cstdint>

#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe::schedule {

struct ListProblem {
  const double* seconds;  // [tasks] each
  const int32_t* pool;    // [tasks] whose cores can run it
  const int32_t* first;   // [pools] first core
  const int32_t* cores;   // [pools] how many
  int64_t num_pools;
  const int32_t* sequence;  // [tasks] an order, producers before consumers; of
                            // tasks that are as urgent the first one is taken
};

// Fills `core` and `order` `[tasks]`, as placement.Placement.  Returns how many
// tasks it placed: all, if producers come before consumers in `sequence`.
int64_t ListSchedule(const ImageView& view, const ListProblem& problem,
                     int64_t* core, int64_t* order);

}  // namespace hpmoe::schedule

#endif  // BACKEND_ASCEND_COMPILER_ORDERS_LIST_SCHEDULE_H_
