// Images of the same layer whose tasks wait, signal or stand in their queues
// otherwise: faults of order, and the tasks of one kind alone.

#ifndef BACKEND_ASCEND_DEVICE_TWIN_LAUNCH_CHANGED_IMAGE_H_
#define BACKEND_ASCEND_DEVICE_TWIN_LAUNCH_CHANGED_IMAGE_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/host/checks/faults.h"
#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe {

// The most bytes by which a faulty image is larger.
uint64_t FaultyImageSlack(const ImageHeader& header);

// The image as a device gets it: with a fault of order, that of its task; else
// the image.  Of a task that signals before it works there are two, one that
// signals in its turn and one that works when the core has done all else.
std::vector<uint64_t> FaultyImage(const ImageView& view,
                                  const FaultSpec& fault);

// The image's bytes, changed: tasks of `kind` lie on the first core of their
// unit and rank, in the image's order, and neither wait nor signal; no other
// task is in a queue.  Of weight gradients, those of one `link` of their
// chains.
std::vector<uint64_t> ImageOfKind(const ImageView& view, uint16_t kind,
                                  int64_t link);

// How many images a kind takes: links read what those before them wrote.
int64_t NumLinks(const ImageHeader& header, uint16_t kind);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_TWIN_LAUNCH_CHANGED_IMAGE_H_
