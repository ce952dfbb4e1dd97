#include "backend_ascend/host/checks/races.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "backend_ascend/host/checks/runtime_accesses.h"
#include "backend_ascend/host/launch/runtime_platform.h"
#include "backend_ascend/image/put_law.h"

namespace hpmoe {
namespace {

bool IsFull(const LaunchState& state, const WaitDesc& wait) {
  return wait.threshold >= state.counters[wait.event].value.load();
}

// What orders two tasks directly: their queue, or an event of theirs.
class Edges {
 public:
  explicit Edges(const LaunchState& state);

  // Whether `a` was done when `b` started.  A put is done only where its
  // signals say so.
  bool Before(uint32_t a, uint32_t b) const {
    if (IsLost(a) || IsBlind(b)) return false;
    if (!IsPut(a) && queue_[a] == queue_[b] && count_[a] < count_[b]) {
      return true;
    }
    const TaskDesc& task = state_.Task(b);
    const WaitDesc* const waits = state_.view->waits + task.wait_begin;
    return std::any_of(waits, waits + task.wait_count, [&](const WaitDesc& w) {
      return IsFull(state_, w) &&
             std::binary_search(signalled_[a].begin(), signalled_[a].end(),
                                w.event);
    });
  }

  // Nobody knows when it has done its work; it knows of nothing.
  bool IsLost(uint32_t task) const {
    return state_.moments[task] == Moment::kAfterSignals;
  }
  bool IsBlind(uint32_t task) const {
    return state_.moments[task] == Moment::kBeforeTurn;
  }
  bool IsPut(uint32_t task) const {
    return hpmoe::IsPut(FormOf(state_.view->tasks[task]));
  }
  uint32_t queue(uint32_t task) const { return queue_[task]; }
  // Tasks of its queue up to it.
  uint32_t count(uint32_t task) const { return count_[task]; }
  const std::vector<int32_t>& signalled(uint32_t task) const {
    return signalled_[task];
  }

 private:
  const LaunchState& state_;
  std::vector<uint32_t> queue_, count_;          // by task
  std::vector<std::vector<int32_t>> signalled_;  // by task: events, sorted
};

Edges::Edges(const LaunchState& state)
    : state_(state),
      queue_(state.view->num_tasks),
      count_(state.view->num_tasks),
      signalled_(state.signalled) {
  const ImageView& view = *state.view;
  for (int32_t q = 0; q < view.num_queues; ++q) {
    const QueueDesc& queue = view.queues[q];
    for (uint32_t i = 0; i < queue.count; ++i) {
      const uint32_t task = view.queue_tasks[queue.begin + i];
      queue_[task] = q;
      count_[task] = i + 1;
    }
  }
  for (std::vector<int32_t>& events : signalled_) {
    std::sort(events.begin(), events.end());
    events.erase(std::unique(events.begin(), events.end()), events.end());
  }
}

// Vector clocks, one row of counts by queue each; kept of some tasks.
class Clocks {
 public:
  Clocks(const LaunchState& state, const Edges& edges,
         const std::vector<uint32_t>& kept);

  // As of Edges, by any number of them.  `b` is one that is kept.
  bool Before(uint32_t a, uint32_t b) const {
    if (edges_.IsLost(a) || edges_.IsBlind(b)) return false;
    const auto waited = [&](int32_t event) {
      const std::vector<uint32_t>& waiters = waiters_[event];
      return std::any_of(waiters.begin(), waiters.end(), [&](uint32_t waiter) {
        return waiter == b || Knows(b, waiter);
      });
    };
    return IsComplete(edges_.IsPut(a), Knows(b, a), edges_.signalled(a),
                      waited);
  }

 private:
  static void Join(const uint32_t* from, size_t width, uint32_t* to) {
    for (size_t i = 0; i < width; ++i) to[i] = std::max(to[i], from[i]);
  }
  // Whether `b` knows that its queue has gone past `a`.
  bool Knows(uint32_t b, uint32_t a) const {
    return at_[width_ * row_[b] + edges_.queue(a)] >= edges_.count(a);
  }

  const Edges& edges_;
  const size_t width_;
  std::vector<int32_t> row_;                    // by task: of at_, or -1
  std::vector<uint32_t> at_;                    // what it knew as it started
  std::vector<std::vector<uint32_t>> waiters_;  // by event
};

Clocks::Clocks(const LaunchState& state, const Edges& edges,
               const std::vector<uint32_t>& kept)
    : edges_(edges),
      width_(state.view->num_queues),
      row_(state.view->num_tasks, -1),
      at_(width_ * kept.size()),
      waiters_(state.view->num_events) {
  const ImageView& view = *state.view;
  for (size_t i = 0; i < kept.size(); ++i) row_[kept[i]] = i;
  std::vector<uint32_t> in_turn(view.num_tasks);
  for (int32_t t = 0; t < view.num_tasks; ++t) in_turn[state.turn[t]] = t;
  std::vector<uint32_t> workers(width_ * width_),
      events(width_ * view.num_events);
  for (const uint32_t t : in_turn) {
    const TaskDesc& task = state.Task(t);
    uint32_t* const clock = workers.data() + width_ * edges.queue(t);
    for (uint32_t w = 0; w < task.wait_count; ++w) {
      const WaitDesc& wait = view.waits[task.wait_begin + w];
      if (!IsFull(state, wait)) continue;
      Join(events.data() + width_ * wait.event, width_, clock);
      waiters_[wait.event].push_back(t);
    }
    if (row_[t] >= 0) std::copy_n(clock, width_, at_.data() + width_ * row_[t]);
    clock[edges.queue(t)] = edges.count(t);
    for (const int32_t event : edges.signalled(t)) {
      Join(clock, width_, events.data() + width_ * event);
    }
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
    if (IsWritten(*view.header, b)) {
      boxes[b].resize(state.layer.buffers[b].slabs);
    }
  }
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    for (const Access& a : AccessesOf(view.tasks[t], state.layer, sent)) {
      // None of an input; past its buffer, one shares memory with nobody known.
      if (a.slab >= static_cast<int64_t>(boxes[a.buffer].size())) continue;
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
// tasks, one of them a write, until it says no; once for two writes.
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
      if (box.write && write->task > box.task) continue;
      if (!visit(*write, box)) return;
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
  const ImageHeader& image = *state.layer.image;
  const Form form = BufferForm(image, race.buffer);
  if (form == Form::kWeightTile) return true;  // of a link: rows are the same
  int64_t begin = int64_t{event.part} * event.part_rows;
  if (IsPacked(form)) {
    const PlanView& plan = state.layer.plan;
    const SliceTables& slices = IsRelayed(race.buffer) ? plan.once : plan;
    const int32_t local = image.num_experts / image.num_ranks;
    begin += slices.expert_base[event.rank * local + event.group];
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
    return state_.moments[race_->first] == Moment::kAfterSignals;
  }

  void Waited(const WaitDesc& wait) {
    const auto second = static_cast<uint32_t>(race_->second);
    MissingEdge missing = MissingEdge::kLowWait;
    if (IsEarly()) {
      missing = MissingEdge::kEarlySignal;
    } else if (state_.moments[second] == Moment::kBeforeTurn) {
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

// Finds the races among overlaps, some at a time: memory is bounded.
class Finder {
 public:
  explicit Finder(const LaunchState& state) : state_(state), edges_(state) {}

  void Add(const Box& one, const Box& other, uint16_t buffer, int64_t slab) {
    if (edges_.Before(one.task, other.task)) return;
    if (edges_.Before(other.task, one.task)) return;
    const ImageHeader& image = *state_.view->header;
    const bool of_experts = BufferForm(image, buffer) == Form::kWeightTile;
    const int64_t local = image.num_experts / image.num_ranks;
    Race race = RaceOf(one, other);
    race.buffer = buffer;
    race.rank = static_cast<int32_t>(of_experts ? slab / local : slab);
    open_.push_back(race);
    if (open_.size() == Races::kMaxCounted) Settle();
  }

  bool IsFull() const { return found_.size() >= Races::kMaxCounted; }

  std::vector<Race> Take() {
    Settle();
    return std::move(found_);
  }

 private:
  // Drops what is ordered by more than one edge.
  void Settle() {
    if (open_.empty()) return;
    std::vector<uint32_t> tasks;
    for (const Race& race : open_) {
      tasks.push_back(static_cast<uint32_t>(race.first));
      tasks.push_back(static_cast<uint32_t>(race.second));
    }
    std::sort(tasks.begin(), tasks.end());
    tasks.erase(std::unique(tasks.begin(), tasks.end()), tasks.end());
    const Clocks clocks(state_, edges_, tasks);
    for (const Race& race : open_) {
      if (clocks.Before(race.first, race.second)) continue;
      if (clocks.Before(race.second, race.first)) continue;
      found_.push_back(race);
    }
    open_.clear();
    Merge(&found_);
  }

  const LaunchState& state_;
  const Edges edges_;
  std::vector<Race> open_;   // no edge orders them
  std::vector<Race> found_;  // nothing does
};

}  // namespace

Races FindRaces(const LaunchState& state) {
  const std::vector<Slabs> boxes = BoxesOf(state);
  Finder finder(state);
  for (uint16_t b = 0; b < kNumBuffers; ++b) {
    for (size_t slab = 0; slab < boxes[b].size(); ++slab) {
      ForEachPair(boxes[b][slab], [&](const Box& one, const Box& other) {
        finder.Add(one, other, b, slab);
        return !finder.IsFull();
      });
    }
  }
  std::vector<Race> found = finder.Take();
  Races races;
  races.count = found.size();
  found.resize(std::min(found.size(), Races::kMaxKept));
  for (Race& race : found) Explainer(state, &race).Explain();
  races.first = std::move(found);
  return races;
}

}  // namespace hpmoe
