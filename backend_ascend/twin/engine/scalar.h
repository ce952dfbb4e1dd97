// What the scalar unit does itself: loads and stores, on chip and through its
// cache of global memory.

#ifndef BACKEND_ASCEND_TWIN_ENGINE_SCALAR_H_
#define BACKEND_ASCEND_TWIN_ENGINE_SCALAR_H_

#include <cstdint>

#include "backend_ascend/twin/engine/instruction.h"

namespace ascend_twin {

// `to` and `from` are the host's.  On chip: kUb only, on an AIV.  Global memory
// goes through the core's cache lines of 64 B: a load of a line that is cached
// sees what was cached, a store stays in the line until it is cleaned.
void ScalarLoad(Memory memory, uint64_t begin, uint64_t bytes, void* to,
                Site site);
void ScalarStore(Memory memory, uint64_t begin, uint64_t bytes,
                 const void* from, Site site);

// DataCacheCleanAndInvalid: writes dirty lines back and forgets them.  The line
// of `begin`, or all of the core's.
void CleanAndInvalidateLine(uint64_t begin, Site site);
void CleanAndInvalidateAll(Site site);

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_ENGINE_SCALAR_H_
