#include "backend_ascend/kernels/host/production/production.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "backend_ascend/kernels/host/launch/runtime_workers.h"
#include "backend_ascend/kernels/host/tiles/float_environment.h"

namespace hpmoe {
namespace {

constexpr int64_t kLine = 64;

Status Missing(const char* name) {
  Status status{1, {}};
  std::snprintf(status.message, sizeof(status.message),
                "%s: expected an array, got none", name);
  return status;
}

// Slots and weights of every row, as dispatches would bring them.
void FillHeaders(const Plan& plan, const Layer& layer) {
  const ImageHeader& image = *layer.image;
  for (int64_t s = 0; s < static_cast<int64_t>(plan.counts.size()); ++s) {
    const auto source = static_cast<int32_t>(s / image.num_experts);
    const auto expert = static_cast<int32_t>(s % image.num_experts);
    const int64_t at = layer.RowAt(layer.Owner(expert), plan.row_base[s]);
    for (int32_t i = 0; i < plan.counts[s]; ++i) {
      const int32_t slot = plan.slice_slots[plan.slice_begin[s] + i];
      layer.header_slot[at + i] = slot;
      layer.header_weight[at + i] =
          layer.topk_weights[layer.SlotAt(source, slot)];
    }
  }
  if (image.relay == 0) return;
  std::fill_n(layer.copies,
              int64_t{image.num_ranks} * image.num_rows * CopiesOf(image),
              RowCopy{-1, -1, 0.0f});
  ForEachPlannedCopy(
      layer.plan, [&](int64_t at, int32_t source, int32_t row, int32_t slot) {
        layer.copies[at] = {row, slot,
                            layer.topk_weights[layer.SlotAt(source, slot)]};
      });
}

// Elements that tasks multiply into: what a task takes grows with them.
std::vector<int64_t> WorkOf(const ImageView& view,
                            const ProductionLayer& production) {
  std::vector<int64_t> work(view.num_tasks, 0);
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    const TaskDesc& task = view.tasks[t];
    const KindInfo& kind = KindOf(task);
    if (!production.Makes(kind.written)) continue;
    const int64_t rows = RealRows(task, production.layer).count();
    const int64_t cols = task.col_end - task.col_begin;
    switch (kind.work) {
      case Work::kGemm:
      case Work::kGemmTransposed:
      case Work::kActivationGrad:
        work[t] = rows * view.header->d_model;
        break;
      case Work::kActivation:
        work[t] = production.Makes(kGateUpBuffer) ? 0 : rows * cols;
        break;
      case Work::kWeightGrad:
        work[t] = rows * cols / view.header->d_ff *
                  SummedRows(task, production.layer).count();
        break;
      default:
        break;
    }
  }
  return work;
}

}  // namespace

char* Arena::Reserve(int64_t bytes) {
  bytes = (bytes + kLine - 1) / kLine * kLine;
  if (bytes > bytes_) {
    bytes_ = 0;
    data_.reset();
    data_.reset(static_cast<char*>(std::aligned_alloc(kLine, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
    bytes_ = bytes;
  }
  return data_.get();
}

Production::Production(const ImageView& view) : view_(view) {
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    const TaskDesc& task = view.tasks[t];
    if (task.kind != kDown) continue;
    whole_down_ = whole_down_ && task.col_begin == 0 &&
                  task.col_end == view.header->d_model;
  }
}

std::unique_ptr<Production::Held> Production::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) return std::make_unique<Held>();
  std::unique_ptr<Held> held = std::move(free_.back());
  free_.pop_back();
  return held;
}

void Production::Return(std::unique_ptr<Held> held) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(held));
}

int64_t Production::arena_bytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const std::unique_ptr<Held>& held : free_) bytes += held->arena.bytes();
  return bytes;
}

// Whether tasks of the launch read a buffer that is not asked for, and cannot
// do without it.
bool Production::Needs(const LaunchTensors& tensors, int buffer) const {
  const auto asked = [&](BufferId b) { return tensors.buffers[b] != nullptr; };
  switch (buffer) {
    case kActivation:
      return !whole_down_;
    case kExpertOut:
      return asked(kReturned) || asked(kY);
    case kXRelayed:
      return asked(kExpertIn);
    case kDyRelayed:
      return asked(kDExpertOut) || Needs(tensors, kDExpertOut);
    case kDExpertOut:
      return view_.header->placement == kAtCombine;
    case kDGateUp:
      return true;
    case kDExpertIn:
      return asked(kDReturned) || asked(kDx);
    default:
      return false;
  }
}

// Points the layer at what is given and at the arena, and makes the headers.
Status Production::Place(const LaunchTensors& tensors, Held* held,
                         ProductionLayer* production) const {
  const ImageHeader& image = *view_.header;
  Layer& layer = production->layer;
  int64_t bytes = 0;
  std::vector<std::pair<int64_t, char**>> places;
  const auto place = [&](int64_t size, auto** to) {
    places.emplace_back(bytes, reinterpret_cast<char**>(to));
    bytes += (size + kLine - 1) / kLine * kLine;
  };
  const auto given = [&](BufferId b) {
    Array array = ShapeOf(image, b);
    array.data = static_cast<char*>(tensors.buffers[b]);
    return array;
  };
  production->x = given(kX);
  production->expert_out = given(kExpertOut);
  for (int b = 0; b < kNumBuffers; ++b) {
    const Use use = PassUse(image, b);
    if (use == Use::kAbsent) continue;
    Array& array = layer.buffers[b];
    array = given(static_cast<BufferId>(b));
    if (array.data != nullptr) continue;
    if (use == Use::kWritten) {
      if (Needs(tensors, b)) place(array.bytes(), &array.data);
      continue;
    }
    const bool spared =
        (b == kExpertIn && production->x.data != nullptr) ||
        (b == kReturned && (production->expert_out.data != nullptr ||
                            image.placement == kBeforeDown));
    if (!spared) return Missing(kBuffers[b].name);
  }
  const int64_t rows = int64_t{image.num_ranks} * image.num_rows;
  place(rows * 4, &layer.header_slot);
  place(rows * 4, &layer.header_weight);
  if (image.relay != 0) {
    place(rows * CopiesOf(image) * int64_t{sizeof(RowCopy)}, &layer.copies);
  }
  if (image.direction == kBackward && image.placement == kBeforeDown) {
    place(rows * 4, &layer.d_row_weight);
  }
  for (int b = 0; LinksOf(image) > 1 && b < kNumBuffers; ++b) {
    if (BufferForm(image, b) != Form::kWeightTile) continue;
    if (!production->Makes(static_cast<BufferId>(b))) continue;
    const Array& grad = layer.buffers[b];
    place(grad.slabs * grad.rows * grad.cols * 4, &layer.sums[b]);
  }
  char* const arena = held->arena.Reserve(bytes);
  for (const auto& [offset, to] : places) *to = arena + offset;
  return {};
}

Status Production::Launch(const LaunchTensors& tensors,
                          const ProductionOptions& options,
                          Diagnosis* diagnosis) {
  const DefaultFloatEnvironment environment;
  *diagnosis = {};
  std::unique_ptr<Held> held = Take();
  const Status status = LaunchIn(tensors, options, held.get(), diagnosis);
  // Also after a refusal: the next launch wants its memory.
  Return(std::move(held));
  return status;
}

Status Production::LaunchIn(const LaunchTensors& tensors,
                            const ProductionOptions& options, Held* held,
                            Diagnosis* diagnosis) const {
  const ImageHeader& image = *view_.header;
  if (tensors.topk_ids == nullptr) return Missing("topk_ids");
  if (tensors.topk_weights == nullptr) return Missing("topk_weights");
  Status status = Route(image, tensors, &held->routed);
  if (status.code != 0) return status;
  const Plan& plan = *held->routed.plan;

  ProductionLayer production{};
  Layer& layer = production.layer;
  layer.image = view_.header;
  layer.ranks_held = image.num_ranks;
  layer.plan = ViewOf(image, plan);
  layer.topk_weights = tensors.topk_weights;
  layer.isa = options.isa;
  production.topk_ids = held->routed.ids.data();
  production.row_of_slot = plan.row_of_slot.data();
  status = Place(tensors, held, &production);
  if (status.code != 0) return status;
  FillHeaders(plan, layer);

  LaunchState state{};
  state.view = &view_;
  state.layer = layer;
  state.production = &production;
  state.fault.task = -1;
  state.counters = std::vector<EventCounter>(image.events.count);
  state.progress.assign(image.tasks.count, Progress::kWaiting);
  state.work = WorkOf(view_, production);
  const int32_t threads = ThreadCount(view_, options.threads);
  // Fewer would lose what the others hold.
  held->scratch.resize(
      std::max<size_t>(held->scratch.size(), static_cast<size_t>(threads)));
  state.scratch = held->scratch.data();
  WorkerPool pool(&state, threads, options.deadline_s);
  const StopReason reason = pool.Run();
  if (reason != StopReason::kNone) *diagnosis = Diagnose(state, pool, reason);
  return status;
}

}  // namespace hpmoe
