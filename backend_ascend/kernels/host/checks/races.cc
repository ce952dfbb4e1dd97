#include "backend_ascend/kernels/host/checks/races.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "backend_ascend/kernels/host/checks/runtime_accesses.h"
#include "backend_ascend/kernels/host/launch/runtime_platform.h"

namespace hpmoe {
namespace {

constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

// Vector clocks, one row of counts by queue each.
class Clocks {
 public:
  explicit Clocks(const LaunchState& state);

  // Whether all of `a` happened before all of `b`.
  bool Before(uint32_t a, uint32_t b) const {
    return at_[b * width_ + queue_[a]] >= done_[a];
  }

 private:
  static void Join(const uint32_t* from, size_t width, uint32_t* to) {
    for (size_t i = 0; i < width; ++i) to[i] = std::max(to[i], from[i]);
  }
  void Place(const LaunchState& state);

  const size_t width_;
  std::vector<uint32_t> queue_;  // by task
  std::vector<uint32_t> done_;   // by task: count of its queue that includes
                                 // its work, or kNever
  std::vector<uint32_t> at_;     // [tasks, queues] what it knew as it worked
};

void Clocks::Place(const LaunchState& state) {
  const ImageView& view = *state.view;
  for (int32_t q = 0; q < view.num_queues; ++q) {
    const QueueDesc& queue = view.queues[q];
    for (uint32_t i = 0; i < queue.count; ++i) {
      const uint32_t task = view.queue_tasks[queue.begin + i];
      queue_[task] = q;
      done_[task] = i + 1;
    }
  }
}

Clocks::Clocks(const LaunchState& state)
    : width_(state.view->num_queues),
      queue_(state.view->num_tasks),
      done_(state.view->num_tasks),
      at_(width_ * state.view->num_tasks) {
  const ImageView& view = *state.view;
  Place(state);
  std::vector<uint32_t> in_turn(view.num_tasks);
  for (int32_t t = 0; t < view.num_tasks; ++t) in_turn[state.turn[t]] = t;
  std::vector<uint32_t> workers(width_ * width_),
      events(width_ * view.num_events);
  for (const uint32_t t : in_turn) {
    const TaskDesc& task = state.Task(t);
    uint32_t* const clock = workers.data() + width_ * queue_[t];
    for (uint32_t w = 0; w < task.wait_count; ++w) {
      const WaitDesc& wait = view.waits[task.wait_begin + w];
      if (wait.threshold < state.counters[wait.event].value.load()) continue;
      Join(events.data() + width_ * wait.event, width_, clock);
    }
    if (!state.HasFault(t, FaultKind::kMissingWait)) {
      std::copy_n(clock, width_, at_.data() + width_ * t);
    }
    clock[queue_[t]] = done_[t];
    for (const int32_t event : state.signalled[t]) {
      Join(clock, width_, events.data() + width_ * event);
    }
    if (state.HasFault(t, FaultKind::kEarlySignal)) done_[t] = kNever;
  }
}

struct Box {
  uint32_t task;
  bool write;
  int32_t row_begin, row_end, col_begin, col_end;
};

bool Overlap(const Box& a, const Box& b) {
  return a.row_begin < b.row_end && b.row_begin < a.row_end &&
         a.col_begin < b.col_end && b.col_begin < a.col_end;
}

// Everything that is accessed of one buffer that tasks write, by slab.
using Slabs = std::vector<std::vector<Box>>;

std::vector<Slabs> BoxesOf(const LaunchState& state) {
  const ImageView& view = *state.view;
  const SentRows sent(state.layer);
  std::vector<Slabs> boxes(kNumBuffers);
  for (int b = 0; b < kNumBuffers; ++b) {
    if (kBuffers[b].use[view.header->direction] == Use::kWritten) {
      boxes[b].resize(state.layer.buffers[b].slabs);
    }
  }
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    for (const Access& a : AccessesOf(view.tasks[t], state.layer, sent)) {
      if (boxes[a.buffer].empty()) continue;
      boxes[a.buffer][a.slab].push_back({static_cast<uint32_t>(t), a.write,
                                         a.row_begin, a.row_end, a.col_begin,
                                         a.col_end});
    }
  }
  return boxes;
}

RaceKind KindOf(const Box& first, const Box& second) {
  if (!first.write) return RaceKind::kReadWrite;
  return second.write ? RaceKind::kWriteWrite : RaceKind::kWriteRead;
}

Race RaceOf(const Box& a, const Box& b) {
  const Box& first = a.task < b.task ? a : b;
  const Box& second = a.task < b.task ? b : a;
  Race race{};
  race.first = first.task;
  race.second = second.task;
  race.kind = KindOf(first, second);
  race.row_begin = std::max(a.row_begin, b.row_begin);
  race.row_end = std::min(a.row_end, b.row_end);
  race.col_begin = std::max(a.col_begin, b.col_begin);
  race.col_end = std::min(a.col_end, b.col_end);
  return race;
}

// Calls visit(write, other) for every overlapping pair of boxes of different
// tasks, one of them a write; once for two writes.
template <class Visit>
void ForEachPair(const std::vector<Box>& boxes, Visit visit) {
  std::vector<Box> writes;
  int32_t tallest = 0;
  for (const Box& box : boxes) {
    if (!box.write) continue;
    writes.push_back(box);
    tallest = std::max(tallest, box.row_end - box.row_begin);
  }
  const auto by_row = [](const Box& a, const Box& b) {
    return a.row_begin < b.row_begin;
  };
  std::sort(writes.begin(), writes.end(), by_row);
  for (const Box& box : boxes) {
    Box from = box;
    from.row_begin -= tallest;
    auto write = std::upper_bound(writes.begin(), writes.end(), from, by_row);
    for (; write != writes.end() && write->row_begin < box.row_end; ++write) {
      if (write->task == box.task || !Overlap(*write, box)) continue;
      if (!box.write || write->task < box.task) visit(*write, box);
    }
  }
}

std::tuple<int64_t, int64_t, uint16_t, int32_t> KeyOf(const Race& race) {
  return {race.first, race.second, race.buffer, race.rank};
}

// One race for each pair of tasks and buffer, with the bounds of them all.
void Merge(std::vector<Race>* races) {
  std::stable_sort(
      races->begin(), races->end(),
      [](const Race& a, const Race& b) { return KeyOf(a) < KeyOf(b); });
  size_t kept = 0;
  for (const Race& race : *races) {
    if (kept == 0 || KeyOf((*races)[kept - 1]) != KeyOf(race)) {
      (*races)[kept++] = race;
      continue;
    }
    Race& into = (*races)[kept - 1];
    into.row_begin = std::min(into.row_begin, race.row_begin);
    into.row_end = std::max(into.row_end, race.row_end);
    into.col_begin = std::min(into.col_begin, race.col_begin);
    into.col_end = std::max(into.col_end, race.col_end);
  }
  races->resize(kept);
}

// Whether the event stands for some of the rows of the race.
bool StandsFor(const EventDesc& event, const Race& race,
               const LaunchState& state) {
  if (event.buffer != race.buffer || event.rank != race.rank) return false;
  const Form form = kBuffers[race.buffer].form;
  if (form == Form::kWeightTile) return true;  // of a link: rows are the same
  int64_t begin = int64_t{event.part} * event.part_rows;
  if (form == Form::kSlicePut || form == Form::kExpertTile) {
    const ImageHeader& image = *state.layer.image;
    const int32_t local = image.num_experts / image.num_ranks;
    begin += state.layer.plan->expert_base[event.rank * local + event.group];
  }
  return begin < race.row_end && race.row_begin < begin + event.part_rows;
}

// Finds the edge that would have ordered a race.
class Explainer {
 public:
  Explainer(const LaunchState& state, Race* race)
      : state_(state), view_(*state.view), race_(race) {}

  void Explain() {
    race_->event = -1;
    const std::vector<int32_t>& signalled = state_.signalled[race_->first];
    for (const int32_t event : signalled) {
      if (const WaitDesc* wait = WaitOf(event)) return Waited(*wait);
    }
    for (const int32_t event : signalled) {
      if (StandsFor(view_.events[event], *race_, state_)) {
        return Unwaited(event);
      }
    }
    const TaskDesc& second = view_.tasks[race_->second];
    for (uint32_t w = 0; w < second.wait_count; ++w) {
      const int32_t event = view_.waits[second.wait_begin + w].event;
      if (StandsFor(view_.events[event], *race_, state_)) {
        return Name(MissingEdge::kSignal, event);
      }
    }
  }

 private:
  void Name(MissingEdge missing, int32_t event) {
    race_->missing = missing;
    race_->event = event;
    race_->total = state_.counters[event].value.load();
  }

  // The second task's wait for the event, whether or not it was kept.
  const WaitDesc* WaitOf(int32_t event) const {
    const TaskDesc& second = view_.tasks[race_->second];
    const WaitDesc* begin = view_.waits + second.wait_begin;
    const WaitDesc* end = begin + second.wait_count;
    const WaitDesc* found = std::find_if(
        begin, end, [&](const WaitDesc& w) { return w.event == event; });
    return found == end ? nullptr : found;
  }

  bool IsEarly() const {
    return state_.HasFault(static_cast<uint32_t>(race_->first),
                           FaultKind::kEarlySignal);
  }

  void Waited(const WaitDesc& wait) {
    const auto second = static_cast<uint32_t>(race_->second);
    MissingEdge missing = MissingEdge::kLowWait;
    if (IsEarly()) {
      missing = MissingEdge::kEarlySignal;
    } else if (state_.HasFault(second, FaultKind::kMissingWait)) {
      missing = MissingEdge::kEarlyRun;
    } else if (state_.HasFault(second, FaultKind::kSkippedWait)) {
      missing = MissingEdge::kWait;
    }
    Name(missing, wait.event);
    race_->threshold = wait.threshold;
  }

  void Unwaited(int32_t event) {
    Name(IsEarly() ? MissingEdge::kEarlySignal : MissingEdge::kWait, event);
  }

  const LaunchState& state_;
  const ImageView& view_;
  Race* const race_;
};

}  // namespace

Races FindRaces(const LaunchState& state) {
  const Clocks clocks(state);
  const std::vector<Slabs> boxes = BoxesOf(state);
  const ImageHeader& image = *state.view->header;
  const int64_t local = image.num_experts / image.num_ranks;
  std::vector<Race> found;
  for (uint16_t b = 0; b < kNumBuffers; ++b) {
    const bool of_experts = kBuffers[b].form == Form::kWeightTile;
    for (size_t slab = 0; slab < boxes[b].size(); ++slab) {
      ForEachPair(boxes[b][slab], [&](const Box& one, const Box& other) {
        if (clocks.Before(one.task, other.task)) return;
        if (clocks.Before(other.task, one.task)) return;
        Race race = RaceOf(one, other);
        race.buffer = b;
        race.rank = static_cast<int32_t>(of_experts ? slab / local : slab);
        found.push_back(race);
      });
    }
  }
  Merge(&found);
  Races races;
  races.count = found.size();
  found.resize(std::min(found.size(), Races::kMaxKept));
  for (Race& race : found) Explainer(state, &race).Explain();
  races.first = std::move(found);
  return races;
}

}  // namespace hpmoe
