#include "backend_ascend/kernels/host/runtime_platform.h"

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

void HostPlatform::Run(uint32_t index) {
  const TaskDesc& task = Task(index);
  const bool faulty = static_cast<int64_t>(index) == state_.fault.task;
  if (!faulty || state_.fault.kind == FaultKind::kMissingSignal) {
    RunTask(task, state_.layer, &scratch_);
  } else if (!IsOrderFault(state_.fault.kind)) {
    state_.fault_changed =
        RunFaulty(task, state_.fault.kind, state_.layer, &scratch_);
  }
  state_.progress[index] = Progress::kRan;
}

void HostPlatform::RunOutOfOrder(uint32_t index) {
  const TaskDesc& task = Task(index);
  state_.fault_changed =
      task.wait_count > 0 && RealRows(task, state_.layer).count() > 0;
  RunTask(task, state_.layer, &scratch_);
}

void HostPlatform::Signal(uint32_t index) {
  const TaskDesc& task = Task(index);
  if (static_cast<int64_t>(index) == state_.fault.task &&
      state_.fault.kind == FaultKind::kMissingSignal) {
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
