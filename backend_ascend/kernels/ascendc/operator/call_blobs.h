// The operands of an operator that are no tensors, as a host makes them.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_CALL_BLOBS_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_CALL_BLOBS_H_

#include <string>
#include <vector>

#include "backend_ascend/kernels/host/load/image_loader.h"
#include "backend_ascend/kernels/host/load/plan.h"

namespace hpmoe {

// Operand `tables` of a routing.
std::vector<char> MakeTables(const ImageHeader& header, const Plan& plan);

// Operand `state`, anew for each launch.
std::vector<char> MakeState(const ImageHeader& header);

// What went wrong, out of `state` as a launch left it; empty: nothing.
std::string EndOf(const ImageView& view, const std::vector<char>& state);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_OPERATOR_CALL_BLOBS_H_
