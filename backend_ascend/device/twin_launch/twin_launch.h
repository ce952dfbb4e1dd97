// Runs a task image on the twin: the bytes that the host runtime runs, by the
// source that an NPU runs.

#ifndef BACKEND_ASCEND_DEVICE_TWIN_LAUNCH_TWIN_LAUNCH_H_
#define BACKEND_ASCEND_DEVICE_TWIN_LAUNCH_TWIN_LAUNCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend_ascend/host/checks/faults.h"
#include "backend_ascend/host/launch/diagnosis.h"
#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/load/plan.h"
#include "backend_ascend/twin/engine/kernel_launch.h"
#include "backend_ascend/twin/watch/rates.h"

namespace hpmoe {

struct TwinOptions {
  ascend_twin::Mode mode = ascend_twin::Mode::kInOrder;
  uint64_t seed = 0;
  bool hazards = true;
  bool auto_sync = false;
  ascend_twin::Numerics numerics;
  uint64_t deadline_us = 1000000;           // modelled, of one wait
  std::optional<ascend_twin::Rates> rates;  // none: no time is counted
  FaultSpec fault = {FaultKind::kNone, -1};
  // Libraries of the device source over real headers, as build_kernel.py makes
  // them; empty: the source over our own.
  std::string vector;
  std::string cube;
};

// Makes a launch go as the options say.
void SetModes(const TwinOptions& options, ascend_twin::LaunchSpec* spec);

struct TwinReport {
  std::vector<ascend_twin::Error> errors;
  std::vector<ascend_twin::Counts> counts;
  std::optional<Diagnosis> diagnosis;  // why cores gave up waiting
  uint64_t cycles = 0;                 // modelled, 50 MHz
  bool fault_changed = false;          // whether the fault made a difference
};

// Runs the image.  Buffers that tasks write must arrive zeroed; with a fault
// that is none of order, as a faulty launch left them: what the task stores is
// replaced by what they hold there.  The status speaks of inputs only; the
// report of what the kernel did.
Status LaunchTwin(const ImageView& view, const LaunchTensors& tensors,
                  const TwinOptions& options, TwinReport* report);

// The same tasks kind by kind, each kind a launch on one core of its unit and
// rank, in the image's order, without waits or signals.
Status LaunchTwinSerial(const ImageView& view, const LaunchTensors& tensors,
                        const TwinOptions& options, TwinReport* report);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_TWIN_LAUNCH_TWIN_LAUNCH_H_
