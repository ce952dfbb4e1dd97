// An image of the same layer that runs only the tasks of one kind.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_SERIAL_IMAGE_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_SERIAL_IMAGE_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/kernels/host/load/image_loader.h"

namespace hpmoe {

// The image's bytes, changed: tasks of `kind` lie on the first core of their
// unit and rank, in the image's order, and neither wait nor signal; no other
// task is in a queue.  Of weight gradients, those of one `link` of their
// chains.
std::vector<uint64_t> ImageOfKind(const ImageView& view, uint16_t kind,
                                  int64_t link);

// How many images a kind takes: links read what those before them wrote.
int64_t NumLinks(const ImageHeader& header, uint16_t kind);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_SERIAL_IMAGE_H_
