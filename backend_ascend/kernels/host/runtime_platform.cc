#include "backend_ascend/kernels/host/runtime_platform.h"

#include <algorithm>

namespace hpmoe {
namespace {

// The task that sends an expert's last row; source rank 0's first where the
// expert has none.
bool SendsLastRow(const TaskDesc& task, const Layer& layer) {
  const ImageHeader& image = *layer.image;
  const Plan& plan = *layer.plan;
  if (plan.expert_rows[task.expert] == 0) {
    return task.rank == 0 && task.row_begin == 0;
  }
  const int32_t* counts = plan.counts.data() + task.expert;
  int64_t source = image.num_ranks - 1;
  while (counts[source * image.num_experts] == 0) --source;
  const int32_t last = counts[source * image.num_experts] - 1;
  return task.rank == source && task.row_begin <= last && last < task.row_end;
}

}  // namespace

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

void HostPlatform::Run(uint32_t index) {
  if (state_.modes.races) state_.turn[index] = state_.num_turns.fetch_add(1);
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
  const TaskDesc& task = Task(index);
  state_.fault_changed =
      task.wait_count > 0 && RealRows(task, state_.layer).count() > 0;
  Work(index);
}

// A task's place in the order is taken before it signals, so that the order
// agrees with what waits for what.
void HostPlatform::Work(uint32_t index) {
  if (state_.replay == nullptr) {
    Compute(index);
  } else {
    const TaskDesc& task = state_.view->tasks[index];
    const uint8_t actions = state_.modes.actions[index];
    if (state_.replay->Runs(task, actions)) Compute(index);
    state_.replay->After(task, actions);
  }
  if (state_.modes.order != nullptr) {
    state_.modes.order[index] = state_.num_ended.fetch_add(1);
  }
}

void HostPlatform::Compute(uint32_t index) {
  const TaskDesc& task = state_.view->tasks[index];
  const bool faulty = static_cast<int64_t>(index) == state_.fault.task;
  if (faulty && !IsOrderFault(state_.fault.kind)) {
    state_.fault_changed =
        RunFaulty(task, state_.fault.kind, state_.layer, &scratch_);
  } else {
    RunTask(task, state_.layer, &scratch_);
  }
  if (state_.HasFault(index, FaultKind::kSkippedWait)) {
    state_.fault_changed =
        task.wait_count > 0 && RealRows(task, state_.layer).count() > 0;
  }
}

void HostPlatform::Announce(uint32_t index) {
  const TaskDesc& task = Task(index);
  announced_ = index;
  if (state_.HasFault(index, FaultKind::kMissingSignal)) {
    state_.fault_changed = task.signal_count > 0;
    return;
  }
  for (uint32_t s = 0; s < task.signal_count; ++s) {
    const SignalDesc& signal = state_.view->signals[task.signal_begin + s];
    if (signal.amount == kPerRow) {
      SignalRows(task, signal);
    } else {
      Add(signal, signal.event, signal.amount);
    }
  }
  state_.progress[index] = Progress::kSignalled;
}

void HostPlatform::SignalRows(const TaskDesc& task, const SignalDesc& signal) {
  const Layer& layer = state_.layer;
  const EventDesc* events = state_.view->events + signal.event;
  RowSignal<HostPlatform> rows(*this, signal, events->part_rows);
  if (FormOf(task) == Form::kHomePut) {
    ForEachReturned(task, layer, [&](int32_t, int32_t source, int32_t slot) {
      if (source == signal.rank) rows.Row(slot);
    });
    return rows.Flush();
  }
  if (FormOf(task) != Form::kSlicePut) return;  // only puts count rows
  const int32_t first =
      FirstRow(task, layer) - layer.plan->expert_base[task.expert];
  const int32_t count = RealRows(task, layer).count();
  for (int32_t row = first; row < first + count; ++row) rows.Row(row);
  rows.Flush();
  if (SendsLastRow(task, layer)) {
    AddPadding(*this, signal, events, layer.plan->expert_rows[task.expert]);
  }
}

}  // namespace hpmoe
