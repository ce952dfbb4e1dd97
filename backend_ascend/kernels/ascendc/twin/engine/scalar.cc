#include "backend_ascend/kernels/ascendc/twin/engine/scalar.h"

#include "backend_ascend/kernels/ascendc/twin/engine/machine.h"

namespace ascend_twin {

void ScalarLoad(Memory memory, uint64_t begin, uint64_t bytes, void* to,
                Site site) {
  ThisMachine()->Load(memory, begin, bytes, to, site);
}

void ScalarStore(Memory memory, uint64_t begin, uint64_t bytes,
                 const void* from, Site site) {
  ThisMachine()->Store(memory, begin, bytes, from, site);
}

void CleanAndInvalidateLine(uint64_t begin, Site site) {
  Machine& machine = *ThisMachine();
  machine.WriteBack(begin / kLineBytes, site);
  // Whoever polls comes by here: others get their turn.
  machine.Poll("DataCacheCleanAndInvalid", site);
}

void CleanAndInvalidateAll(Site site) {
  Machine& machine = *ThisMachine();
  machine.WriteBackAll(site);
  machine.Poll("DataCacheCleanAndInvalid", site);
}

}  // namespace ascend_twin
