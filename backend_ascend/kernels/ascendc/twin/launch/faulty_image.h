// Faults of order: a task waits, signals or stands in its queue otherwise.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_FAULTY_IMAGE_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_FAULTY_IMAGE_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/kernels/host/checks/faults.h"
#include "backend_ascend/kernels/host/load/image_loader.h"

namespace hpmoe {

// The most bytes by which a faulty image is larger.
uint64_t FaultyImageSlack(const ImageHeader& header);

// The image as a device gets it: with a fault of order, that of its task; else
// the image.  Of a task that signals before it works there are two, one that
// signals in its turn and one that works when the core has done all else.
std::vector<uint64_t> FaultyImage(const ImageView& view,
                                  const FaultSpec& fault);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_FAULTY_IMAGE_H_
