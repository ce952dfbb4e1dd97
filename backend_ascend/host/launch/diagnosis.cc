#include "backend_ascend/host/launch/diagnosis.h"

#include <algorithm>

#include "backend_ascend/host/checks/runtime_accesses.h"
#include "backend_ascend/host/launch/task_signals.h"

namespace hpmoe {
namespace {

// Adds up what tasks would signal.
class Sums {
 public:
  explicit Sums(int32_t num_events) : total_(num_events) {}
  void Add(const SignalDesc&, int32_t event, int32_t amount) {
    total_[event] += amount;
  }
  int64_t Of(int32_t event) const { return total_[event]; }

 private:
  std::vector<int64_t> total_;
};

// What every task adds to each event if it runs and signals.
Sums AllSignals(const LaunchState& state) {
  const ImageView& view = *state.view;
  Layer layer = state.layer;
  SentRows sent(layer);
  // As puts home would find them.
  layer.header_slot = sent.slot.data();
  layer.copies = sent.copies.data();
  Sums sums(view.num_events);
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    SignalTask(sums, view, view.tasks[t], layer);
  }
  return sums;
}

// Adds tasks that signal the event and that `wanted` holds for.
template <class Wanted>
void AddTasks(const ImageView& view, int32_t event, const Wanted& wanted,
              std::vector<int64_t>* tasks) {
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    if (tasks->size() == Diagnosis::kMaxTasks) return;
    if (wanted(t) && MaySignal(view, view.tasks[t], event)) tasks->push_back(t);
  }
}

// The same of a relayed row, whose copies are not made without.
bool LeftCopies(const Layer& layer, const TaskDesc& task) {
  const RowCopy* const copies =
      layer.CopiesAt(layer.Owner(task.expert), FirstRow(task, layer));
  const int32_t count = RealRows(task, layer).count();
  const int32_t per = CopiesOf(*layer.image);
  for (int32_t i = 0; i < count; ++i) {
    const int64_t at = SentAt(task, layer.plan, i) * per;
    for (int32_t c = 0; c < per; ++c) {
      if (copies[i * per + c].row != layer.plan.copy_rows[at + c]) return false;
    }
  }
  return true;
}

// Whether a relay that ended made every copy.
bool Copied(const Layer& layer, const TaskDesc& task) {
  const RowCopy* const copies = layer.CopiesAt(task.rank, 0);
  const int32_t* const slots = layer.HeaderSlots(task.rank);
  bool copied = true;
  ForEachCopy(task, layer.plan, CopyRowsOf(layer, task.rank),
              [&](int64_t at, int32_t row) {
                copied = copied && slots[row] == copies[at].slot;
              });
  return copied;
}

// Whether a put that ended left the header of every row as planned.  A row
// without its header is not sent home, so its loss is felt only there.
bool LeftHeaders(const Layer& layer, const TaskDesc& task) {
  if (FormOf(task) == Form::kRelayTile) return Copied(layer, task);
  if (layer.copies != nullptr) return LeftCopies(layer, task);
  const int32_t* const slots =
      layer.HeaderSlots(layer.Owner(task.expert)) + FirstRow(task, layer);
  const int32_t count = RealRows(task, layer).count();
  for (int32_t i = 0; i < count; ++i) {
    if (slots[i] != SentSlot(task, layer, i)) return false;
  }
  return true;
}

std::vector<int64_t> LosersOfRows(const LaunchState& state) {
  std::vector<int64_t> losers;
  for (int32_t t = 0; t < state.view->num_tasks; ++t) {
    if (losers.size() == Diagnosis::kMaxTasks) break;
    const TaskDesc& task = state.view->tasks[t];
    const Form form = FormOf(task);
    if (form != Form::kSlicePut && form != Form::kRelayTile) continue;
    if (state.progress[t] == Progress::kWaiting) continue;
    if (!LeftHeaders(state.layer, task)) losers.push_back(t);
  }
  return losers;
}

Diagnosis Diagnose(const LaunchState& state, const Sums& sums, uint32_t task,
                   const WaitDesc& wait) {
  const ImageView& view = *state.view;
  Diagnosis diagnosis{};
  diagnosis.task = task;
  diagnosis.event = wait.event;
  diagnosis.expected = wait.threshold;
  diagnosis.actual = state.counters[wait.event].value.load();
  diagnosis.missing =
      std::max<int64_t>(0, wait.threshold - sums.Of(wait.event));
  for (const Progress progress : {Progress::kRan, Progress::kWaiting}) {
    AddTasks(
        view, wait.event,
        [&](int32_t t) { return state.progress[t] == progress; },
        &diagnosis.suspects);
  }
  if (diagnosis.missing > 0) {
    AddTasks(view, wait.event, [](int32_t) { return true; }, &diagnosis.adders);
  } else if (diagnosis.suspects.empty()) {
    diagnosis.losers = LosersOfRows(state);
  }
  return diagnosis;
}

// 0: no task can meet the wait; 1: a task that ran did not signal; 2: a wait
// for tasks that have yet to run, which is a consequence.
int Rank(const LaunchState& state, const Diagnosis& diagnosis) {
  if (diagnosis.missing > 0) return 0;
  const std::vector<int64_t>& suspects = diagnosis.suspects;
  const bool innocent =
      !suspects.empty() && state.progress[suspects[0]] != Progress::kRan;
  return innocent ? 2 : 1;
}

// Of equals, the first blocked task in dependency order.
bool MoreTelling(const LaunchState& state, const Diagnosis& a,
                 const Diagnosis& b) {
  const int rank_a = Rank(state, a), rank_b = Rank(state, b);
  return rank_a != rank_b ? rank_a < rank_b : a.task < b.task;
}

std::string TasksText(const ImageView& view,
                      const std::vector<int64_t>& tasks) {
  std::string text;
  for (const int64_t task : tasks) {
    text += (text.empty() ? "" : "; ") + TaskText(view, task);
  }
  return text.empty() ? "no task of the image" : text;
}

}  // namespace

std::string EventText(const ImageView& view, int32_t index) {
  const EventDesc& event = view.events[index];
  return "event " + std::to_string(index) + ", " + BufferName(event.buffer) +
         "(rank " + std::to_string(event.rank) + ", group " +
         std::to_string(event.group) + ", part " + std::to_string(event.part) +
         ")";
}

std::string TaskText(const ImageView& view, int64_t index) {
  const TaskDesc& task = view.tasks[index];
  std::string text = KindName(task.kind);
  text += " task " + std::to_string(index);
  text += " (rank " + std::to_string(task.rank) + ", ";
  if (task.expert >= 0) text += "expert " + std::to_string(task.expert) + ", ";
  text += "row block " + std::to_string(task.row_block);
  return text + ", column block " + std::to_string(task.col_block) + ")";
}

Diagnosis Diagnose(const LaunchState& state, const WorkerPool& pool,
                   StopReason reason) {
  const Sums sums = AllSignals(state);
  Diagnosis best{};
  best.task = -1;
  for (size_t i = 0; i < pool.size(); ++i) {
    const Cursor& cursor = pool.cursor(i);
    if (cursor.next == cursor.count) continue;
    const uint32_t index = cursor.tasks[cursor.next];
    const TaskDesc& task = state.Task(index);
    for (uint32_t w = 0; w < task.wait_count; ++w) {
      const WaitDesc& wait = state.view->waits[task.wait_begin + w];
      if (state.counters[wait.event].value.load() >= wait.threshold) continue;
      const Diagnosis found = Diagnose(state, sums, index, wait);
      if (best.task < 0 || MoreTelling(state, found, best)) best = found;
    }
  }
  best.reason = reason;
  best.text = TextOf(*state.view, best);
  return best;
}

std::string TextOf(const ImageView& view, const Diagnosis& diagnosis) {
  const bool deadline = diagnosis.reason == StopReason::kDeadline;
  const std::string reason = deadline ? "deadline: " : "deadlock: ";
  if (diagnosis.task < 0) {
    return reason + "no task ended in time and none is blocked";
  }
  const std::string text = reason + TaskText(view, diagnosis.task) +
                           " waits for " + EventText(view, diagnosis.event) +
                           ": expected " + std::to_string(diagnosis.expected) +
                           ", got " + std::to_string(diagnosis.actual);
  if (!diagnosis.losers.empty()) {
    return text + "; rows of " + BufferName(HeaderBuffer(*view.header)) +
           " did not arrive from: " + TasksText(view, diagnosis.losers);
  }
  if (diagnosis.missing == 0) {
    return text + "; not signalled by: " + TasksText(view, diagnosis.suspects);
  }
  return text + "; it is never reached: " + std::to_string(diagnosis.missing) +
         " too few are added in all, by: " + TasksText(view, diagnosis.adders);
}

}  // namespace hpmoe
