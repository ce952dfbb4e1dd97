// What the operator's host side tells its kernel.

#ifndef BACKEND_ASCEND_DEVICE_OPERATOR_LAUNCH_TILING_H_
#define BACKEND_ASCEND_DEVICE_OPERATOR_LAUNCH_TILING_H_

#include <stdint.h>

namespace hpmoe {

// What holds the arrays of a launch that are no tensors: two operands, of which
// `tables` is constant during a launch and `state` made anew for each, and the
// operator's workspace, which holds anything at launch.
enum CallBlob : uint32_t { kTables, kState, kWorkspace, kNumCallBlobs };

// `tables` begins with a LaunchArgs.  An address there is a distance from the
// begin of a blob, and from this bit on the blob's number + 1; or null.
constexpr uint32_t kBlobBit = 56;

}  // namespace hpmoe

struct HpmoeLaunchTiling {
  uint64_t deadline_us;  // of one wait
};

#endif  // BACKEND_ASCEND_DEVICE_OPERATOR_LAUNCH_TILING_H_
