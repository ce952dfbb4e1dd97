#include "backend_ascend/kernels/host/launch.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <vector>

namespace hpmoe {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Owns what a launch needs beside its tensors.
struct Prepared {
  Plan plan;
  std::vector<int32_t> header_slot;
  std::vector<float> header_weight;
  std::vector<float> d_row_weight;
  std::vector<float> d_slot_weight;
  std::vector<float> sums[kNumBuffers];
};

// Whether the rows of what a form of task writes are packed: those past the
// rank's last valid one belong to nobody.
bool IsPacked(Form form) {
  return form == Form::kSlicePut || form == Form::kExpertTile;
}

void FillNan(const Plan& plan, Form form, const Array& array) {
  for (int64_t slab = 0; slab < array.slabs; ++slab) {
    const int64_t rows = IsPacked(form) ? plan.rank_rows[slab] : array.rows;
    char* const begin = array.At(slab, 0, 0);
    if (array.element_bytes == 2) {
      std::fill_n(reinterpret_cast<uint16_t*>(begin), rows * array.cols,
                  0x7FC0);
    } else {
      std::fill_n(reinterpret_cast<float*>(begin), rows * array.cols, kNan);
    }
  }
}

// Points the layer at the buffers of the image's direction.
void PlaceBuffers(const LaunchTensors& tensors, Layer* layer) {
  const ImageHeader& image = *layer->image;
  for (int b = 0; b < kNumBuffers; ++b) {
    if (kBuffers[b].use[image.direction] == Use::kAbsent) continue;
    layer->buffers[b] = ShapeOf(image, static_cast<BufferId>(b));
    layer->buffers[b].data = static_cast<char*>(tensors.buffers[b]);
    if (kBuffers[b].use[image.direction] == Use::kWritten) {
      FillNan(*layer->plan, kBuffers[b].form, layer->buffers[b]);
    }
  }
}

// What tasks hand on to each other outside of any tensor.
void PlaceWorkspace(Prepared* prepared, Layer* layer) {
  const ImageHeader& image = *layer->image;
  const auto place = [](int64_t count, std::vector<float>* values) {
    values->assign(count, kNan);
    return values->data();
  };
  const int64_t rows = int64_t{image.num_ranks} * image.num_rows;
  prepared->header_slot.assign(rows, -1);
  layer->header_slot = prepared->header_slot.data();
  layer->header_weight = place(rows, &prepared->header_weight);
  if (image.direction != kBackward) return;
  if (image.placement == kBeforeDown) {
    layer->d_row_weight = place(rows, &prepared->d_row_weight);
    layer->d_slot_weight =
        place(image.num_ranks * layer->Slots(), &prepared->d_slot_weight);
  }
  for (int b = 0; LinksOf(image) > 1 && b < kNumBuffers; ++b) {
    if (kBuffers[b].form != Form::kWeightTile) continue;
    const Array& grad = layer->buffers[b];
    layer->sums[b] =
        place(grad.slabs * grad.rows * grad.cols, &prepared->sums[b]);
  }
}

Status Prepare(const ImageView& view, const LaunchTensors& tensors, Isa isa,
               Prepared* prepared, Layer* layer) {
  Plan& plan = prepared->plan;
  const Status status = MakePlan(*view.header, tensors.topk_ids, &plan);
  if (status.code != 0) return status;
  std::copy(plan.counts.begin(), plan.counts.end(), tensors.counts);
  std::copy(plan.row_base.begin(), plan.row_base.end(), tensors.row_base);
  std::copy(plan.row_of_slot.begin(), plan.row_of_slot.end(),
            tensors.row_of_slot);
  *layer = {};
  layer->image = view.header;
  layer->plan = &plan;
  layer->topk_weights = tensors.topk_weights;
  layer->isa = isa;
  PlaceBuffers(tensors, layer);
  PlaceWorkspace(prepared, layer);
  return status;
}

bool Covers(const SignalDesc& signal, int32_t event) {
  const int32_t span = signal.amount == kPerRow ? signal.span : 1;
  return event >= signal.event && event < signal.event + span;
}

bool Signals(const ImageView& view, uint64_t task, int32_t event) {
  const SignalDesc* begin = view.signals + view.tasks[task].signal_begin;
  return std::any_of(begin, begin + view.tasks[task].signal_count,
                     [&](const SignalDesc& s) { return Covers(s, event); });
}

// Tasks of the given progress that should have signalled the event.
void AddSuspects(const LaunchState& state, Progress progress,
                 Diagnosis* diagnosis) {
  for (uint64_t t = 0; t < state.progress.size(); ++t) {
    if (diagnosis->num_suspects == Diagnosis::kMaxSuspects) return;
    if (state.progress[t] == progress &&
        Signals(*state.view, t, diagnosis->event)) {
      diagnosis->suspects[diagnosis->num_suspects++] = static_cast<int64_t>(t);
    }
  }
}

Diagnosis Diagnose(const LaunchState& state, uint32_t task,
                   const WaitDesc& wait) {
  Diagnosis diagnosis{};
  diagnosis.task = task;
  diagnosis.event = wait.event;
  diagnosis.expected = wait.threshold;
  diagnosis.actual = state.counters[wait.event].value.load();
  AddSuspects(state, Progress::kRan, &diagnosis);
  AddSuspects(state, Progress::kWaiting, &diagnosis);
  return diagnosis;
}

// The cause is a wait for a task that ran and did not signal, or that no task
// is left to meet; failing both, the first blocked task in dependency order.
bool MoreTelling(const LaunchState& state, const Diagnosis& a,
                 const Diagnosis& b) {
  const auto innocent = [&](const Diagnosis& d) {
    return d.num_suspects > 0 &&
           state.progress[d.suspects[0]] != Progress::kRan;
  };
  if (innocent(a) != innocent(b)) return innocent(b);
  return a.task < b.task;
}

Diagnosis Diagnose(const LaunchState& state, const WorkerPool& pool,
                   StopReason reason) {
  Diagnosis best{};
  best.task = -1;
  for (size_t i = 0; i < pool.size(); ++i) {
    const Cursor& cursor = pool.cursor(i);
    if (cursor.next == cursor.count) continue;
    const uint32_t index = cursor.tasks[cursor.next];
    const TaskDesc& task = state.view->tasks[index];
    for (uint32_t w = 0; w < task.wait_count; ++w) {
      const WaitDesc& wait = state.view->waits[task.wait_begin + w];
      if (state.counters[wait.event].value.load() >= wait.threshold) continue;
      const Diagnosis found = Diagnose(state, index, wait);
      if (best.task < 0 || MoreTelling(state, found, best)) best = found;
    }
  }
  best.reason = reason;
  return best;
}

int32_t ThreadCount(const ImageView& view, int32_t wanted) {
  if (wanted > 0) return wanted;
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  const auto workers = static_cast<int64_t>(view.header->queues.count);
  return static_cast<int32_t>(std::max<int64_t>(1, std::min(cores, workers)));
}

}  // namespace

Status Launch(const ImageView& view, const LaunchTensors& tensors,
              const LaunchOptions& options, LaunchReport* report) {
  Prepared prepared;
  LaunchState state{};
  *report = {};
  const Status status =
      Prepare(view, tensors, options.isa, &prepared, &state.layer);
  if (status.code != 0) return status;
  state.view = &view;
  state.fault = options.fault;
  if (state.fault.kind == FaultKind::kNone) state.fault.task = -1;
  state.counters = std::vector<EventCounter>(view.header->events.count);
  state.progress.assign(view.header->tasks.count, Progress::kWaiting);

  const auto faulty = static_cast<uint32_t>(state.fault.task);
  if (state.fault.kind == FaultKind::kMissingWait) {
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
  }
  report->fault_changed = state.fault_changed;
  return status;
}

Status LaunchSerial(const ImageView& view, const LaunchTensors& tensors,
                    Isa isa) {
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
