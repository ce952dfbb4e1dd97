// The operands and results of a launch as front ends pass them: in one order,
// which the image alone decides.

#ifndef BACKEND_ASCEND_FRONTENDS_OPERANDS_H_
#define BACKEND_ASCEND_FRONTENDS_OPERANDS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "backend_ascend/kernels/host/launch/runtime_tasks.h"
#include "backend_ascend/kernels/host/load/image_loader.h"

namespace hpmoe {

struct Operand {
  const char* name;  // of reference/contract/tensors.py
  int64_t bytes;
  DType finite;  // what its values must be finite as; kNumDTypes: any will do
  std::function<void(void*, LaunchTensors*)> place;
};

// topk_ids, topk_weights, then the buffers that the image's direction only
// reads, in the order of kBuffers; without those that its policy never reads.
std::vector<Operand> InputsOf(const ImageHeader& image);

// counts, row_base, row_of_slot, then the buffers that tasks write.
std::vector<Operand> OutputsOf(const ImageHeader& image);

// What a launch can be given and asked for, in the one order in
// which the two above are: a call names some of them by a mask of bits.
struct KnownOperand {
  Operand operand;
  bool made;  // by a launch
};
std::vector<KnownOperand> KnownOperands(const ImageHeader& image);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_FRONTENDS_OPERANDS_H_
