// What the tasks of a launch would access and signal, without running them.

#ifndef BACKEND_ASCEND_HOST_CHECKS_LAUNCH_INSPECT_H_
#define BACKEND_ASCEND_HOST_CHECKS_LAUNCH_INSPECT_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/host/checks/runtime_accesses.h"
#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe {

struct TaskAccess {
  int32_t task;
  Access access;
};

struct TaskSignal {
  int32_t task, event;
};

struct Inspection {
  std::vector<TaskAccess> accesses;  // by task
  std::vector<TaskSignal> signals;   // by task
};

// `topk_ids`: [R, T, K], as planned; refused as a launch would.
Status Inspect(const ImageView& view, const Plan& plan, const int32_t* topk_ids,
               Inspection* inspection);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_CHECKS_LAUNCH_INSPECT_H_
