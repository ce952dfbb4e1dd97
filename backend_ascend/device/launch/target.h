// What an image must keep for the device source to run it.

#ifndef BACKEND_ASCEND_DEVICE_LAUNCH_TARGET_H_
#define BACKEND_ASCEND_DEVICE_LAUNCH_TARGET_H_

#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe {

// Refuses a storage dtype that the kernels have not, weights on a cube core's
// sums, tiles that do not fit in the memories of a core, and what a cube core
// cannot signal.
Status CheckTarget(const ImageView& view);

// The same for NPUs, whose launches pass no scales of codes yet.
Status CheckNpuTarget(const ImageView& view);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_LAUNCH_TARGET_H_
