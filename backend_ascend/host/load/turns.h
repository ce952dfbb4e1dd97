// In which order threads look at the workers of a launch.

#ifndef BACKEND_ASCEND_KERNELS_HOST_TURNS_H_
#define BACKEND_ASCEND_KERNELS_HOST_TURNS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/image/rows.h"

namespace hpmoe {

// Elements that each task multiplies into: what it takes grows with them.
// `made`: whether the launch makes a buffer; null: all of them.
std::vector<int64_t> WorkOf(const ImageView& view, const PlanView& plan,
                            const std::function<bool(int)>& made = nullptr);

// Workers, those with most work first: the last tasks to run are then small,
// and no thread waits long for another's.
std::vector<uint32_t> TurnsOf(const ImageView& view,
                              const std::vector<int64_t>& work);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_TURNS_H_
