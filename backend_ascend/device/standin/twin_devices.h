// The devices of a rehearsal: the twin runs what ranks in other processes have
// launched.

#ifndef BACKEND_ASCEND_DEVICE_STANDIN_TWIN_DEVICES_H_
#define BACKEND_ASCEND_DEVICE_STANDIN_TWIN_DEVICES_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/device/standin/board.h"
#include "backend_ascend/device/twin_launch/twin_launch.h"

namespace hpmoe {

// Waits up to `wait_s` for a launch, then for those of the other ranks as long
// as its kernel would wait for them, and runs what is there.  A rank that is
// not, or whose process has ended, has no cores.  Of faults only missing
// signals and skipped waits are known.  Returns the ranks that ran: none, where
// none launched.
std::vector<int32_t> Serve(Board* board, const TwinOptions& options,
                           double wait_s, TwinReport* report);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_STANDIN_TWIN_DEVICES_H_
