// What a task signals when it has run, on any platform.

#ifndef BACKEND_ASCEND_HOST_LAUNCH_TASK_SIGNALS_H_
#define BACKEND_ASCEND_HOST_LAUNCH_TASK_SIGNALS_H_

#include <algorithm>
#include <cstdint>

#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/image/worker.h"

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

template <class Platform>
void SignalTask(Platform& platform, const ImageView& view, const TaskDesc& task,
                const Layer& layer) {
  if (FormOf(task) == Form::kRelayTile) {
    return SignalTask(platform, task, view.signals, view.events, layer.plan,
                      CopyRowsOf(layer, task.rank));
  }
  SignalTask(platform, task, view.signals, view.events, layer.plan,
             layer.HeaderSlots(task.rank));
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LAUNCH_TASK_SIGNALS_H_
