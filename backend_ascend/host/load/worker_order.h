// The order in which threads poll the workers of a launch, by their work.

#ifndef BACKEND_ASCEND_HOST_LOAD_WORKER_ORDER_H_
#define BACKEND_ASCEND_HOST_LOAD_WORKER_ORDER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/image/rows.h"

namespace hpmoe {

// Returns for each task how many elements it multiplies into, in proportion to
// its time.  `is_made`: whether the launch makes a buffer; null: all of them.
std::vector<int64_t> CountWork(
    const ImageView& view, const PlanView& plan,
    const std::function<bool(int)>& is_made = nullptr);

// Returns the workers, those with the most work first.  So the last tasks to
// run are small, and no thread waits long for another.
std::vector<uint32_t> OrderWorkers(const ImageView& view,
                                   const std::vector<int64_t>& work);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LOAD_WORKER_ORDER_H_
