// What one task of a production launch does.

#ifndef BACKEND_ASCEND_KERNELS_HOST_PRODUCTION_TASKS_H_
#define BACKEND_ASCEND_KERNELS_HOST_PRODUCTION_TASKS_H_

#include <cstdint>

#include "backend_ascend/kernels/host/launch/runtime_tasks.h"

namespace hpmoe {

// What tasks of a production launch work on.
struct ProductionLayer {
  Layer layer;                 // buffers that are not made have no data
  const int32_t* topk_ids;     // [R, T * K]
  const int32_t* row_of_slot;  // [R, T * K]
  // Buffers that this pass does not have by its table, or only for its reader:
  // `x` in place of expert_in, `expert_out` in place of `returned`.
  Array x, expert_out;

  bool Makes(BufferId buffer) const {
    return layer.buffers[buffer].data != nullptr;
  }
};

void RunProductionTask(const TaskDesc& task, const ProductionLayer& production,
                       GemmScratch* scratch);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_PRODUCTION_TASKS_H_
