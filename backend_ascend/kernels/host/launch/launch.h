// One launch: a task image, its inputs and the routing in, every tensor out.

#ifndef BACKEND_ASCEND_KERNELS_HOST_LAUNCH_H_
#define BACKEND_ASCEND_KERNELS_HOST_LAUNCH_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/kernels/host/checks/faults.h"
#include "backend_ascend/kernels/host/checks/modes.h"
#include "backend_ascend/kernels/host/checks/races.h"
#include "backend_ascend/kernels/host/launch/diagnosis.h"
#include "backend_ascend/kernels/host/launch/runtime_platform.h"
#include "backend_ascend/kernels/host/launch/runtime_tasks.h"
#include "backend_ascend/kernels/host/load/image_loader.h"

namespace hpmoe {

constexpr int32_t kMaxThreads = 4096;
constexpr double kMaxDeadlineS = 1e9;  // what clocks count

struct LaunchOptions {
  int32_t threads = 0;     // 0: one per core, no more than there are workers
  double deadline_s = 60;  // without any task ending
  Isa isa = BestIsa();
  FaultSpec fault = {FaultKind::kNone, -1};
  Modes modes;
};

struct LaunchReport {
  Diagnosis diagnosis;  // reason kNone: every task ran
  bool fault_changed;   // the fault made a difference to its own task
  Races races;          // where asked for, of a launch that was not stopped
  std::vector<uint32_t> order;  // of a traced one: when each task ended
  std::vector<TaskTime> times;  // by task, where they were asked for
};

// Runs the image.  Buffers that tasks write must arrive zeroed: what lies past
// a rank's last valid row is left as it is, the rest is poisoned first.  The
// status speaks of inputs only; a launch that stopped says so in the report.
Status Launch(const ImageView& view, const LaunchTensors& tensors,
              const LaunchOptions& options, LaunchReport* report);

// The same tasks on one thread, kind by kind in the image's order, without
// waits or signals.
Status LaunchSerial(const ImageView& view, const LaunchTensors& tensors,
                    Isa isa);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_LAUNCH_H_
