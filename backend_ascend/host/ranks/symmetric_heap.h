// What other ranks write on a rank, and where: the same on every rank.

#ifndef BACKEND_ASCEND_HOST_RANKS_SYMMETRIC_HEAP_H_
#define BACKEND_ASCEND_HOST_RANKS_SYMMETRIC_HEAP_H_

#include "backend_ascend/host/ranks/transport.h"
#include "backend_ascend/image/image.h"

namespace hpmoe {

// Of the buffers that puts write in the image's direction, in their order.
HeapLayout MakeHeapLayout(const ImageHeader& image);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_RANKS_SYMMETRIC_HEAP_H_
