// What a task signals when it has run, on any platform.

#ifndef BACKEND_ASCEND_KERNELS_HOST_TASK_SIGNALS_H_
#define BACKEND_ASCEND_KERNELS_HOST_TASK_SIGNALS_H_

#include <algorithm>
#include <cstdint>

#include "backend_ascend/kernels/host/launch/runtime_tasks.h"
#include "backend_ascend/kernels/host/load/image_loader.h"
#include "backend_ascend/kernels/worker.h"

namespace hpmoe {

inline int32_t SpanOf(const SignalDesc& signal) {
  return signal.amount == kPerRow ? signal.span : 1;
}

// Whether the task may signal the event.
inline bool MaySignal(const ImageView& view, const TaskDesc& task,
                      int32_t event) {
  const SignalDesc* const begin = view.signals + task.signal_begin;
  return std::any_of(
      begin, begin + task.signal_count, [&](const SignalDesc& signal) {
        return event >= signal.event && event < signal.event + SpanOf(signal);
      });
}

// The task that sends an expert's last row; source rank 0's first where the
// expert has none.
inline bool SendsLastRow(const TaskDesc& task, const Layer& layer) {
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

// Only puts count rows.
template <class Platform>
void SignalRows(Platform& platform, const TaskDesc& task,
                const SignalDesc& signal, const EventDesc* events,
                const Layer& layer) {
  RowSignal<Platform> rows(platform, signal, events->part_rows);
  if (FormOf(task) == Form::kHomePut) {
    ForEachReturned(task, layer, [&](int32_t, int32_t source, int32_t slot) {
      if (source == signal.rank) rows.Row(slot);
    });
    return rows.Flush();
  }
  if (FormOf(task) != Form::kSlicePut) return;
  const int32_t first =
      FirstRow(task, layer) - layer.plan->expert_base[task.expert];
  const int32_t count = RealRows(task, layer).count();
  for (int32_t row = first; row < first + count; ++row) rows.Row(row);
  rows.Flush();
  if (SendsLastRow(task, layer)) {
    AddPadding(platform, signal, events, layer.plan->expert_rows[task.expert]);
  }
}

template <class Platform>
void SignalTask(Platform& platform, const ImageView& view, const TaskDesc& task,
                const Layer& layer) {
  for (uint32_t s = 0; s < task.signal_count; ++s) {
    const SignalDesc& signal = view.signals[task.signal_begin + s];
    if (signal.amount == kPerRow) {
      SignalRows(platform, task, signal, view.events + signal.event, layer);
    } else {
      platform.Add(signal, signal.event, signal.amount);
    }
  }
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_TASK_SIGNALS_H_
