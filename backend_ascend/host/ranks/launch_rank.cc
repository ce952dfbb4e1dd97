#include "backend_ascend/host/ranks/launch_rank.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "backend_ascend/host/launch/launch_prepare.h"
#include "backend_ascend/host/launch/task_signals.h"
#include "backend_ascend/host/ranks/symmetric_heap.h"
#include "backend_ascend/host/tiles/float_environment.h"
#include "backend_ascend/host/tiles/poison.h"
#include "backend_ascend/host/tiles/storage.h"

namespace hpmoe {
namespace {

// Tasks of one queue before the rank looks at its others.
constexpr int64_t kMaxRun = 16;

// An idle rank looks again this soon, then ever later: the cores it leaves may
// run the rank that it waits for.
constexpr std::chrono::microseconds kFirstNap{20};
constexpr std::chrono::microseconds kLongestNap{1000};

// What one look counts at most towards the deadline: where this process could
// not look for longer, its machine's other ranks could not go on either.
constexpr std::chrono::milliseconds kLongestLook{100};

// The launch reads counters that other processes add to.
static_assert(sizeof(std::atomic<int32_t>) == sizeof(int32_t) &&
                  std::atomic<int32_t>::is_always_lock_free,
              "counters are plain words");

// Every rank polls its own memory only.
Status CheckWaits(const ImageView& view, int32_t rank) {
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    const TaskDesc& task = view.tasks[t];
    for (uint32_t w = 0; task.rank == rank && w < task.wait_count; ++w) {
      const int32_t event = view.waits[task.wait_begin + w].event;
      if (view.events[event].rank == rank) continue;
      return Refused(1,
                     "image: expected task %d to wait on rank %d, got event %d "
                     "of rank %d",
                     t, rank, event, view.events[event].rank);
    }
  }
  return Status{};
}

}  // namespace

// The worker loop's view of the rank.
class RankLaunch::Platform {
 public:
  explicit Platform(RankLaunch* launch) : launch_(*launch) {}

  const TaskDesc& Task(uint32_t index) const {
    return launch_.view_->tasks[index];
  }
  const WaitDesc& Wait(uint32_t index) const {
    return launch_.view_->waits[index];
  }
  bool Reached(const WaitDesc& wait) const {
    return launch_.Count(wait.event) >= wait.threshold;
  }
  void Run(uint32_t index) {
    if (Task(index).wait_count > 0) launch_.tensors_.transport->Sync();
    RunTask(Task(index), launch_.layer_, &launch_.scratch_);
  }
  void Signal(uint32_t index) {
    SignalTask(*this, *launch_.view_, Task(index), launch_.layer_);
    launch_.signalled_[index] = true;
  }
  void Add(const SignalDesc& signal, int32_t event, int32_t amount) {
    if (signal.rank == launch_.tensors_.rank) {
      launch_.own_counters_[event] += static_cast<uint32_t>(amount);
    } else {
      launch_.tensors_.transport->Add(signal.rank, event, amount);
    }
  }

 private:
  RankLaunch& launch_;
};

void RankLaunch::PlaceBuffers(const RankTensors& tensors) {
  const ImageHeader& image = *view_->header;
  for (int b = 0; b < kNumBuffers; ++b) {
    if (PassUse(image, b) == Use::kAbsent) continue;
    Array& array = layer_.buffers[b];
    array = ShapeOf(image, static_cast<BufferId>(b));
    array.slabs /= image.num_ranks;
    array.first = tensors.rank * array.slabs;
    array.data = heap_.buffers[b] >= 0 ? tensors.heap + heap_.buffers[b]
                                       : static_cast<char*>(tensors.buffers[b]);
    layer_.scales[b] =
        heap_.scales[b] >= 0
            ? reinterpret_cast<float*>(tensors.heap + heap_.scales[b])
            : tensors.scales[b];
    if (IsWritten(image, b)) {
      Poison(SlicesOf(*tensors.plan, b), BufferForm(image, b), array,
             layer_.scales[b]);
    }
  }
}

void RankLaunch::PlaceWorkspace() {
  const ImageHeader& image = *view_->header;
  char* const heap = tensors_.heap;
  layer_.header_slot = reinterpret_cast<int32_t*>(heap + heap_.header_slot);
  std::fill_n(layer_.header_slot, image.num_rows, -1);
  layer_.header_weight = reinterpret_cast<float*>(heap + heap_.header_weight);
  std::fill_n(layer_.header_weight, image.num_rows, BitsFloat(kPoison));
  if (image.relay != 0) {
    layer_.copies = reinterpret_cast<RowCopy*>(heap + heap_.copies);
    std::fill_n(layer_.copies, int64_t{image.num_rows} * CopiesOf(image),
                kNoCopy);
  }
  if (heap_.d_slot_weight >= 0) {
    d_row_weight_.assign(image.num_rows, BitsFloat(kPoison));
    layer_.d_row_weight = d_row_weight_.data();
    layer_.d_slot_weight = reinterpret_cast<float*>(heap + heap_.d_slot_weight);
    std::fill_n(layer_.d_slot_weight, layer_.Slots(), BitsFloat(kPoison));
  }
  for (int b = 0; LinksOf(image) > 1 && b < kNumBuffers; ++b) {
    const Array& grad = layer_.buffers[b];
    if (BufferForm(image, b) != Form::kWeightTile || grad.data == nullptr) {
      continue;
    }
    sums_[b].assign(grad.slabs * grad.rows * grad.cols, BitsFloat(kPoison));
    layer_.sums[b] = sums_[b].data();
  }
}

Status RankLaunch::Prepare(const ImageView& view, const RankTensors& tensors,
                           Isa isa) {
  const ImageHeader& image = *view.header;
  if (image.span == kSublayer) {
    return Refused(1,
                   "image: expected a layer for ranks in processes of their "
                   "own, got a sub-layer");
  }
  Status status = CheckWaits(view, tensors.rank);
  if (status.code != 0) return status;
  status = CheckPlan(image, tensors.rank, 1, tensors.topk_ids, *tensors.plan);
  if (status.code != 0) return status;
  view_ = &view;
  tensors_ = tensors;
  heap_ = MakeHeapLayout(image);
  layer_ = {};
  layer_.image = &image;
  layer_.plan = ViewOf(image, *tensors.plan);
  layer_.topk_weights = tensors.topk_weights;
  layer_.isa = isa;
  layer_.first_rank = tensors.rank;
  layer_.ranks_held = 1;
  layer_.transport = tensors.transport;
  layer_.heap = &heap_;
  PlaceBuffers(tensors);
  PlaceWorkspace();
  for (int32_t q = 0; q < view.num_queues; ++q) {
    const QueueDesc& queue = view.queues[q];
    if (queue.rank != tensors.rank) continue;
    cursors_.push_back({view.queue_tasks + queue.begin, queue.count, 0, 0});
  }
  own_counters_.assign(view.num_events, 0);
  signalled_.assign(view.num_tasks, false);
  return status;
}

// Own signals, and other ranks'.  Sums wrap as those of atomics do: an image
// that no proof has seen may signal more than a counter holds.
int32_t RankLaunch::Count(int32_t event) const {
  const auto* const remote =
      reinterpret_cast<const std::atomic<int32_t>*>(tensors_.counters + event);
  const auto others =
      static_cast<uint32_t>(remote->load(std::memory_order_acquire));
  return static_cast<int32_t>(own_counters_[event] + others);
}

StepResult RankLaunch::RunSome(int64_t max_tasks) {
  const DefaultFloatEnvironment environment;
  Platform platform(this);
  int64_t ran = 0;
  size_t done = 0;
  for (size_t i = 0; i < cursors_.size() && ran < max_tasks; ++i) {
    Cursor* const cursor = &cursors_[(at_ + i) % cursors_.size()];
    const int64_t end = std::min(max_tasks, ran + kMaxRun);
    while (ran < end && Step(cursor, platform) == StepResult::kRan) ++ran;
    if (cursor->next == cursor->count) ++done;
  }
  ++at_;
  if (done == cursors_.size()) return StepResult::kDone;
  return ran > 0 ? StepResult::kRan : StepResult::kBlocked;
}

bool RankLaunch::Run(double deadline_s) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<double> deadline(deadline_s);
  Clock::time_point looked = Clock::now();
  Clock::duration idle{0};
  std::chrono::microseconds nap = kFirstNap;
  for (;;) {
    const StepResult result = RunSome(std::numeric_limits<int64_t>::max());
    if (result == StepResult::kDone) return true;
    tensors_.transport->Progress();
    const Clock::time_point now = Clock::now();
    if (result == StepResult::kRan) {
      looked = now;
      idle = {};
      nap = kFirstNap;
      continue;
    }
    idle += std::min<Clock::duration>(now - looked, kLongestLook);
    looked = now;
    if (idle > deadline) return false;
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongestNap);
  }
}

bool RankLaunch::MayOwe(uint64_t task, int32_t event) const {
  return !signalled_[task] && MaySignal(*view_, view_->tasks[task], event);
}

Diagnosis RankLaunch::Describe(uint32_t task, const WaitDesc& wait) const {
  Diagnosis found{};
  found.reason = StopReason::kDeadline;
  found.task = task;
  found.event = wait.event;
  found.expected = wait.threshold;
  found.actual = Count(wait.event);
  // Own tasks first: a wait for one of them is a consequence.
  for (const bool own : {true, false}) {
    for (int32_t t = 0; t < view_->num_tasks; ++t) {
      if (found.suspects.size() == Diagnosis::kMaxTasks) break;
      if ((view_->tasks[t].rank == tensors_.rank) == own &&
          MayOwe(t, wait.event)) {
        found.suspects.push_back(t);
      }
    }
  }
  return found;
}

Diagnosis RankLaunch::FindBlocked() const {
  const auto consequence = [&](const Diagnosis& blocked) {
    return !blocked.suspects.empty() &&
           view_->tasks[blocked.suspects[0]].rank == tensors_.rank;
  };
  Diagnosis best{};
  best.reason = StopReason::kDeadline;
  best.task = -1;
  for (const Cursor& cursor : cursors_) {
    if (cursor.next == cursor.count) continue;
    const uint32_t index = cursor.tasks[cursor.next];
    const TaskDesc& task = view_->tasks[index];
    for (uint32_t w = 0; w < task.wait_count; ++w) {
      const WaitDesc& wait = view_->waits[task.wait_begin + w];
      if (Count(wait.event) >= wait.threshold) continue;
      const Diagnosis found = Describe(index, wait);
      const bool better =
          best.task < 0 ||
          (consequence(found) != consequence(best) ? consequence(best)
                                                   : found.task < best.task);
      if (better) best = found;
    }
  }
  best.text = TextOf(*view_, best);
  return best;
}

}  // namespace hpmoe
