#include "backend_ascend/kernels/host/launch/launch.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "backend_ascend/kernels/host/launch/launch_prepare.h"
#include "backend_ascend/kernels/host/tiles/float_environment.h"

namespace hpmoe {

Status Launch(const ImageView& view, const LaunchTensors& tensors,
              const LaunchOptions& options, LaunchReport* report) {
  const DefaultFloatEnvironment environment;
  Prepared prepared;
  LaunchState state{};
  *report = {};
  Status status = Prepare(view, tensors, options.isa, &prepared, &state.layer,
                          options.modes.poison);
  if (status.code != 0) return status;
  const Plan& plan = *prepared.routed.plan;
  if (options.modes.guards) PoisonPadding(plan, state.layer);
  state.view = &view;
  state.modes = options.modes;
  state.fault = options.fault;
  if (state.fault.kind == FaultKind::kNone) state.fault.task = -1;
  state.counters = std::vector<EventCounter>(view.header->events.count);
  state.progress.assign(view.header->tasks.count, Progress::kWaiting);
  if (state.modes.trace) state.order.resize(view.num_tasks);
  if (state.modes.times) state.times.resize(view.num_tasks);
  if (state.modes.races) state.RecordOrder();
  if (state.modes.actions != nullptr) {
    state.replay = std::make_unique<Replay>(state.layer, state.modes);
  }

  state.began = std::chrono::steady_clock::now();
  const auto faulty = static_cast<uint32_t>(state.fault.task);
  if (state.fault.kind == FaultKind::kSkippedWait) {
    state.unwaiting = view.tasks[faulty];
    state.unwaiting.wait_count = 0;
  } else if (state.fault.kind == FaultKind::kMissingWait) {
    HostPlatform(&state).RunOutOfOrder(faulty);
  }
  WorkerPool pool(&state, ThreadCount(view, options.threads),
                  options.deadline_s);
  const StopReason reason = pool.Run();
  if (state.fault.kind == FaultKind::kEarlySignal) {
    HostPlatform(&state).RunOutOfOrder(faulty);
  }
  if (reason != StopReason::kNone) {
    report->diagnosis = Diagnose(state, pool, reason);
  } else if (state.modes.races) {
    report->races = FindRaces(state);
  }
  if (options.modes.guards) ClearPadding(plan, state.layer);
  if (state.overrun_task >= 0) {
    status.code = kBroken;
    std::snprintf(status.message, sizeof(status.message), "%s: %s",
                  TaskText(view, state.overrun_task).c_str(),
                  state.overrun.c_str());
  }
  report->fault_changed = state.fault_changed;
  report->order = std::move(state.order);
  report->times = std::move(state.times);
  return status;
}

Status LaunchSerial(const ImageView& view, const LaunchTensors& tensors,
                    Isa isa) {
  const DefaultFloatEnvironment environment;
  Prepared prepared;
  Layer layer{};
  const Status status = Prepare(view, tensors, isa, &prepared, &layer);
  if (status.code != 0) return status;
  GemmScratch scratch;
  for (uint16_t kind = 0; kind < kNumTaskKinds; ++kind) {
    for (uint64_t t = 0; t < view.header->tasks.count; ++t) {
      if (view.tasks[t].kind == kind) RunTask(view.tasks[t], layer, &scratch);
    }
  }
  return status;
}

}  // namespace hpmoe
