#include "backend_ascend/host/launch/runtime_platform.h"

#include <algorithm>

#include "backend_ascend/host/launch/task_signals.h"

namespace hpmoe {
void LatePuts::Add(uint32_t task) {
  std::lock_guard<std::mutex> lock(mutex_);
  tasks_.insert(std::lower_bound(tasks_.begin(), tasks_.end(), task), task);
}

int64_t LatePuts::Take(size_t at) {
  if (at >= tasks_.size()) return -1;
  const uint32_t task = tasks_[at];
  tasks_.erase(tasks_.begin() + at);
  return task;
}

int64_t LatePuts::TakeDrawn(SplitMix* draw) {
  std::lock_guard<std::mutex> lock(mutex_);
  return tasks_.empty() ? -1 : Take(draw->Below(tasks_.size()));
}

int64_t LatePuts::TakeFirst() {
  std::lock_guard<std::mutex> lock(mutex_);
  return Take(0);
}

int64_t LatePuts::TakeFirstOf(const std::vector<uint32_t>& wanted) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const uint32_t task : wanted) {
    const auto at = std::lower_bound(tasks_.begin(), tasks_.end(), task);
    if (at != tasks_.end() && *at == task) return Take(at - tasks_.begin());
  }
  return -1;
}

// Its queue has come to a task: it runs, or signals before it does.
void HostPlatform::TakeTurn(uint32_t index) {
  uint32_t& turn = state_.turn[index];
  if (turn == LaunchState::kNoTurn) turn = state_.num_turns.fetch_add(1);
}

void HostPlatform::RecordSignal(int32_t event) {
  TakeTurn(announced_);
  state_.signalled[announced_].push_back(event);
}

void HostPlatform::Run(uint32_t index) {
  if (state_.modes.races) TakeTurn(index);
  if (IsLate(index)) return state_.late_puts.Add(index);
  DoTurn(index);
}

void HostPlatform::Signal(uint32_t index) {
  if (!IsLate(index)) Announce(index);
}

void HostPlatform::Deliver(uint32_t put) {
  DoTurn(put);
  Announce(put);
}

void HostPlatform::DoTurn(uint32_t index) {
  const bool faulty = static_cast<int64_t>(index) == state_.fault.task;
  if (!faulty || !IsMoved(state_.fault.kind)) Work(index);
  state_.progress[index] = Progress::kRan;
}

void HostPlatform::RunOutOfOrder(uint32_t index) {
  state_.fault_changed = state_.Waits(index);
  Work(index);
}

// A task's place in the order is taken before it signals, so that the order
// agrees with what waits for what.
void HostPlatform::Work(uint32_t index) {
  if (state_.modes.races) {
    const bool signalled = state_.progress[index] == Progress::kSignalled;
    const bool early = state_.turn[index] == LaunchState::kNoTurn;
    state_.moments[index] = early       ? Moment::kBeforeTurn
                            : signalled ? Moment::kAfterSignals
                                        : Moment::kInTurn;
  }
  const int64_t start = state_.modes.times ? state_.Now() : 0;
  if (state_.replay == nullptr) {
    Compute(index);
  } else {
    state_.replay->Do(state_.view->tasks[index], index,
                      [&] { Compute(index); });
  }
  if (state_.modes.times) {
    TaskTime& time = state_.times[index];
    time = {time.blocked, start, state_.Now(), thread_};
  }
  if (state_.modes.trace) state_.order[index] = state_.num_ended.fetch_add(1);
}

void HostPlatform::Compute(uint32_t index) {
  const TaskDesc& task = state_.view->tasks[index];
  const bool faulty = static_cast<int64_t>(index) == state_.fault.task;
  HostKernels kernels(state_.layer.isa, scratch_,
                      state_.modes.start == Modes::Start::kPoison);
  if (faulty && !IsOrderFault(state_.fault.kind)) {
    state_.fault_changed =
        RunFaulty(task, state_.fault.kind, state_.layer, scratch_, &kernels);
  } else if (state_.modes.guards) {
    GuardedKernels guarded(&kernels, &margins_);
    RunTask(task, state_.layer, &guarded);
    if (!guarded.found().empty()) state_.AddOverrun(index, guarded.found());
  } else {
    RunTask(task, state_.layer, &kernels);
  }
  if (state_.HasFault(index, FaultKind::kSkippedWait)) {
    state_.fault_changed = state_.Waits(index);
  }
}

void HostPlatform::Announce(uint32_t index) {
  const TaskDesc& task = Task(index);
  announced_ = index;
  if (state_.HasFault(index, FaultKind::kMissingSignal)) {
    state_.fault_changed = task.signal_count > 0;
    return;
  }
  SignalTask(*this, *state_.view, task, state_.layer);
  state_.progress[index] = Progress::kSignalled;
}

}  // namespace hpmoe
