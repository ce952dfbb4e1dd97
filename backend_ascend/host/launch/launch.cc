#include "backend_ascend/host/launch/launch.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "backend_ascend/host/launch/runtime_workers.h"
#include "backend_ascend/host/load/worker_order.h"
#include "backend_ascend/host/tiles/float_environment.h"

namespace hpmoe {
namespace {

// What all workers share, before the first task.
void Start(const ImageView& view, const LaunchOptions& options,
           LaunchState* state) {
  state->view = &view;
  state->modes = options.modes;
  state->fault = options.fault;
  if (state->fault.kind == FaultKind::kNone) state->fault.task = -1;
  state->counters = std::vector<EventCounter>(view.header->events.count);
  state->progress.assign(view.header->tasks.count, Progress::kWaiting);
  const Layer& layer = state->layer;
  state->work =
      CountWork(view, layer.plan, [&](int b) { return layer.Has(b); });
  if (state->modes.trace) state->order.resize(view.num_tasks);
  if (state->modes.times) state->times.resize(view.num_tasks);
  if (state->modes.races) state->RecordOrder();
  if (state->modes.actions != nullptr) {
    state->replay = std::make_unique<Replay>(state->layer, state->modes);
  }
}

// Runs all tasks, and the faulty one when its fault says.
void RunTasks(const LaunchOptions& options, LaunchState* state, Held* held,
              LaunchReport* report) {
  const ImageView& view = *state->view;
  const int32_t threads = ThreadCount(view, options.modes, options.threads);
  // Fewer would lose what the others hold.
  held->scratch.resize(
      std::max<size_t>(held->scratch.size(), static_cast<size_t>(threads)));
  state->scratch = held->scratch.data();
  state->began = std::chrono::steady_clock::now();
  const auto faulty = static_cast<uint32_t>(state->fault.task);
  if (state->fault.kind == FaultKind::kSkippedWait) {
    state->unwaiting = view.tasks[faulty];
    state->unwaiting.wait_count = 0;
  } else if (state->fault.kind == FaultKind::kMissingWait) {
    HostPlatform(state).RunOutOfOrder(faulty);
  }
  WorkerPool pool(state, threads, options.deadline_s);
  const StopReason reason = pool.Run();
  if (state->fault.kind == FaultKind::kEarlySignal) {
    HostPlatform(state).RunOutOfOrder(faulty);
  }
  if (reason != StopReason::kNone) {
    report->diagnosis = Diagnose(*state, pool, reason);
  } else if (state->modes.races) {
    report->races = FindRaces(*state);
  }
}

// Refuses events to which more was added than all signals are worth: waits were
// met too early, though nobody may have read what they are for.
Status CheckEvents(const LaunchState& state) {
  const EventDesc* const events = state.view->events;
  const auto count = static_cast<int32_t>(state.counters.size());
  for (int32_t e = 0; e < count; ++e) {
    const int32_t value = state.counters[e].value.load();
    if (value <= events[e].threshold) continue;
    return Refused(kBroken, "%s: expected signals worth %d, got %d",
                   EventText(*state.view, e).c_str(), events[e].threshold,
                   value);
  }
  return Status{};
}

}  // namespace

int64_t Launch::arena_bytes() {
  int64_t bytes = 0;
  memory_.ForEach([&](const Held& held) { bytes += held.arena.bytes(); });
  return bytes;
}

Status Launch::Run(const LaunchTensors& tensors, const LaunchOptions& options,
                   LaunchReport* report) {
  const DefaultFloatEnvironment environment;
  *report = {};
  std::unique_ptr<Held> held = memory_.Take();
  const Status status = RunIn(tensors, options, held.get(), report);
  // Also after a refusal: the next launch wants its memory.
  memory_.Return(std::move(held));
  return status;
}

Status Launch::RunIn(const LaunchTensors& tensors, const LaunchOptions& options,
                     Held* held, LaunchReport* report) const {
  LaunchState state{};
  Status status = Prepare(view_, tensors, options, held, &state.layer);
  if (status.code != 0) return status;
  const Plan& plan = *held->routed.plan;
  if (options.modes.guards) PoisonPadding(plan, state.layer);
  Start(view_, options, &state);
  RunTasks(options, &state, held, report);
  if (options.modes.races) status = CheckEvents(state);
  if (options.modes.guards) ClearPadding(plan, state.layer);
  if (state.overrun_task >= 0) {
    status =
        Refused(kBroken, "%s: %s", TaskText(view_, state.overrun_task).c_str(),
                state.overrun.c_str());
  }
  report->fault_changed = state.fault_changed;
  report->order = std::move(state.order);
  report->times = std::move(state.times);
  return status;
}

}  // namespace hpmoe
