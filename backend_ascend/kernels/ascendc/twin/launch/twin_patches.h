// Which bytes of global memory a faulty task sees, and what in their place.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_TWIN_PATCHES_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_TWIN_PATCHES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "backend_ascend/kernels/ascendc/twin/launch/device_memory.h"
#include "backend_ascend/kernels/host/checks/faults.h"
#include "backend_ascend/kernels/host/load/image_loader.h"
#include "backend_ascend/kernels/host/load/plan.h"

namespace hpmoe {

// Bytes from address `begin`.
struct Patch {
  uint64_t begin;
  uint64_t bytes;
  // Writes `count` of them, from `offset`.
  std::function<void(uint64_t offset, uint64_t count, char* to)> make;
};

// None for a fault of another kind, or one that this task cannot commit.
std::vector<Patch> PatchesOf(const ImageView& view, const Plan& plan,
                             const DeviceMemory& memory,
                             const FaultSpec& fault);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_TWIN_PATCHES_H_
