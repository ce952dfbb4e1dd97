// Why a launch did not end, out of what the cores of some ranks left behind.

#ifndef BACKEND_ASCEND_DEVICE_NPUS_DIAGNOSE_CORES_H_
#define BACKEND_ASCEND_DEVICE_NPUS_DIAGNOSE_CORES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/device/npus/end.h"
#include "backend_ascend/host/launch/diagnosis.h"
#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe {

struct CoresEnd {
  Diagnosis diagnosis;         // task -1: not of a wait for an event
  std::vector<int32_t> ranks;  // at fault
};

// None: all ended.  `cores`: of each rank from `first`, AICs, then AIVs.  Of
// several blocked tasks it is one for which all ran, of these ranks, that
// should have signalled, the first in dependency order; suspects are those of
// other ranks or, where there are none, who ran and did not signal.
std::optional<CoresEnd> DiagnoseCores(
    const ImageView& view, int32_t first,
    const std::vector<std::vector<CoreDiagnosis>>& cores);

// The same of one rank.
End EndOf(const ImageView& view, int32_t rank,
          const std::vector<CoreDiagnosis>& cores);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_NPUS_DIAGNOSE_CORES_H_
