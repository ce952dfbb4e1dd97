// Why a launch did not end, out of what the cores of one rank left behind.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_NPUS_ENDS_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_NPUS_ENDS_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/kernels/ascendc/launch_args.h"
#include "backend_ascend/kernels/ascendc/npus/end.h"
#include "backend_ascend/kernels/host/load/image_loader.h"

namespace hpmoe {

// `cores`: AICs, then AIVs.  Of several blocked tasks it is one that waits for
// other ranks, the first in dependency order; the ranks named are theirs.
End EndOf(const ImageView& view, int32_t rank,
          const std::vector<CoreDiagnosis>& cores);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_NPUS_ENDS_H_
