// Mutations of an image that know its tables and its checksum.
//
// A byte flipped anywhere is refused by the checksum, so mutants are sealed
// again.  Most change words of one row of one table, or rows as wholes: the
// loader refuses at the first field that does not fit, so only small changes
// come as far as the proofs and the launch.

#ifndef BACKEND_ASCEND_TASKFLOW_IMAGE_MUTATOR_FUZZ_H_
#define BACKEND_ASCEND_TASKFLOW_IMAGE_MUTATOR_FUZZ_H_

#include <cstddef>
#include <cstdint>

namespace hpmoe {

// Changes `data` in place, the same for the same seed, and returns its new
// size, at most `max_size`.  Uses libFuzzer's own mutations too.
size_t MutateImage(uint8_t* data, size_t size, size_t max_size, uint32_t seed);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_TASKFLOW_IMAGE_MUTATOR_FUZZ_H_
