// The operands and results of a launch as front ends pass them: in one order,
// which the image alone decides.

#ifndef BACKEND_ASCEND_FRONTENDS_OPERANDS_H_
#define BACKEND_ASCEND_FRONTENDS_OPERANDS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe {

struct Operand {
  const char* name;  // of reference/contract/tensors.py
  int64_t bytes;
  DType finite;  // what its values must be finite as; kNumDTypes: any will do
  std::function<void(void*, LaunchTensors*)> place;
  bool made;  // by a launch
  bool used;  // not one that the image's policy never reads
};

// What a launch can be given and asked for, in one order: topk_ids,
// topk_weights, counts, row_base, row_of_slot, then the buffers in the order of
// kBuffers.  A call takes and makes all that are used, or those that a mask of
// bits names.
std::vector<Operand> KnownOperands(const ImageHeader& image);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_FRONTENDS_OPERANDS_H_
