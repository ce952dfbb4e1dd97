// A program that launches kernels on the twin: its code for both types of core,
// its device memory, and what the launches found.

#ifndef BACKEND_ASCEND_TWIN_INTRINSICS_PROGRAM_H_
#define BACKEND_ASCEND_TWIN_INTRINSICS_PROGRAM_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend_ascend/twin/engine/kernel_launch.h"
#include "backend_ascend/twin/intrinsics/modules.h"
#include "backend_ascend/twin/watch/event_lines.h"
#include "backend_ascend/twin/watch/rates.h"
#include "backend_ascend/twin/watch/timeline.h"

namespace ascend_twin {

struct Program {
  Modules modules;
  LaunchSpec spec;      // what all launches share
  std::string cores;    // where a kernel does not say: aiv, aic, mix11, mix12
  bool begins = false;  // kernels need not call InitSocState
  std::map<uint64_t, GlobalRange> memory;  // by address
  std::vector<int> flags;  // numbers of allocations that cores wait at
  int allocations = 0;
  bool zeroed = false;  // device memory begins as zeros, not as nobody's
  bool slack = false;   // it is as long as aclrtMalloc makes it, not as asked
  std::vector<std::string> found;  // what the launches say
  int launches = 0;
  std::optional<Rates> rates;  // how long instructions take
  Timeline timeline;
  EventLog events;
};

Program& ThisProgram();

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_INTRINSICS_PROGRAM_H_
