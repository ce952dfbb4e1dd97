// How places, cores and events are spelt in errors.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_ENGINE_ERRORS_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_ENGINE_ERRORS_H_

#include <string>

#include "backend_ascend/kernels/ascendc/twin/engine/launch.h"
#include "backend_ascend/kernels/ascendc/twin/engine/sync.h"

namespace ascend_twin {

std::string SiteText(Site site);             // FILE:LINE
std::string CoreText(const CoreName& core);  // AIV 3 of rank 1
std::string PlaceText(const Place& place);   // FILE:LINE (pipe V, DataCopy)
std::string EventName(PipeEvent event);      // V_MTE3
std::string Range(uint64_t begin, uint64_t end);  // [0x0, 0x20)

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_ENGINE_ERRORS_H_
