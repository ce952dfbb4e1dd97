// One image, launched many times: inputs and the routing in, the tensors that
// are asked for out.
//
// A launch that only computes asks for some tensors, has no modes, and fills
// and scans nothing beyond what memory safety needs: ids and capacity.  A
// launch that checks asks for any tensors, and has modes: checks/modes.h.

#ifndef BACKEND_ASCEND_HOST_LAUNCH_LAUNCH_H_
#define BACKEND_ASCEND_HOST_LAUNCH_LAUNCH_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/host/checks/races.h"
#include "backend_ascend/host/launch/diagnosis.h"
#include "backend_ascend/host/launch/launch_prepare.h"
#include "backend_ascend/host/launch/runtime_platform.h"
#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/pool.h"

namespace hpmoe {

constexpr int32_t kMaxThreads = 4096;
constexpr double kMaxDeadlineS = 1e9;  // what clocks count

struct LaunchReport {
  Diagnosis diagnosis;  // reason kNone: every task ran
  bool fault_changed;   // the fault made a difference to its own task
  Races races;          // where asked for, of a launch that was not stopped
  std::vector<uint32_t> order;  // of a traced one: when each task ended
  std::vector<TaskTime> times;  // by task, where they were asked for
};

class Launch {
 public:
  // `view` must outlive it.
  explicit Launch(const ImageView& view) : view_(view) {}

  // What lies past a rank's last valid row stays as it was.  The status speaks
  // of inputs only; a launch that stopped says so in the report.  Thread-safe:
  // launches at the same time have memory of their own.
  Status Run(const LaunchTensors& tensors, const LaunchOptions& options,
             LaunchReport* report);

  const ImageView& view() const { return view_; }
  const ImageHeader& image() const { return *view_.header; }

  // Of all arenas.
  int64_t arena_bytes();

 private:
  Status RunIn(const LaunchTensors& tensors, const LaunchOptions& options,
               Held* held, LaunchReport* report) const;

  const ImageView& view_;
  Pool<Held> memory_;
};

// The same tasks on one thread, kind by kind in the image's order, without
// waits or signals; some rows of every kind in plain C++.  Broken where the
// sums of an instruction set are not those of plain C++.  All tensors of the
// pass are given.  Of the options, the instruction set and actions.
Status LaunchSerial(const ImageView& view, const LaunchTensors& tensors,
                    const LaunchOptions& options);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LAUNCH_LAUNCH_H_
