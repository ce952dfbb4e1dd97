#include <algorithm>
#include <cinttypes>
#include <limits>
#include <vector>

#include "backend_ascend/compiler/proofs/proofs_rules.h"

namespace hpmoe::proofs {
namespace {

// progress: runs all queues with every event as late as its signals allow.
class Simulation {
 public:
  explicit Simulation(Context* context)
      : c_(context),
        v_(context->v),
        head_(v_.num_queues, 0),
        counter_(v_.num_events, 0),
        needed_(v_.num_events, kNever),
        first_blocked_(v_.num_events, -1),
        next_blocked_(v_.num_queues, -1) {
    for (const Family& f : c_->families) left_.push_back(f.counters);
  }

  void Run() {
    for (int32_t q = v_.num_queues - 1; q >= 0; --q) ready_.push_back(q);
    while (!ready_.empty()) {
      const int32_t queue = ready_.back();
      ready_.pop_back();
      Advance(queue);
    }
    c_->result.checked[kProgressRule] = ran_;
    if (ran_ < v_.num_tasks) Diagnose();
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  void Advance(int32_t queue) {
    const uint32_t* tasks = c_->QueueTasks(queue).begin();
    while (!Finished(queue)) {
      const TaskDesc& t = v_.tasks[tasks[head_[queue]]];
      const WaitDesc* unmet = Unmet(t);
      if (unmet != nullptr) {
        next_blocked_[queue] = first_blocked_[unmet->event];
        first_blocked_[unmet->event] = queue;
        int64_t& needed = needed_[unmet->event];
        needed = std::min<int64_t>(needed, unmet->threshold);
        return;
      }
      ++head_[queue];
      ++ran_;
      for (const SignalDesc& s : c_->Signals(t)) Signal(s);
    }
  }

  const WaitDesc* Unmet(const TaskDesc& t) const {
    for (const WaitDesc& w : c_->Waits(t)) {
      if (counter_[w.event] < w.threshold) return &w;
    }
    return nullptr;
  }

  void Signal(const SignalDesc& s) {
    if (s.amount != kPerRow) return Add(s.event, s.amount);
    if (!c_->CountsRows(s)) return;  // `event` refuses it
    const int32_t index = c_->family_of[s.event];
    if (--left_[index] > 0) return;
    const Family& f = c_->families[index];
    for (int32_t p = 0; p < f.count; ++p) Add(f.first + p, f.RowsOf(p));
  }

  void Add(int32_t event, int64_t amount) {
    counter_[event] += amount;
    if (counter_[event] < needed_[event]) return;
    needed_[event] = kNever;
    for (int32_t q = first_blocked_[event]; q >= 0; q = next_blocked_[q]) {
      ready_.push_back(q);
    }
    first_blocked_[event] = -1;
  }

  bool Finished(int32_t queue) const {
    return head_[queue] == static_cast<int64_t>(v_.queues[queue].count);
  }
  int32_t Head(int32_t queue) const {
    return c_->QueueTasks(queue).begin()[head_[queue]];
  }

  // All that the signals of an event can ever add up to.
  int64_t Available(int32_t event) const {
    const Family& f = c_->FamilyOf(event);
    int64_t sum = f.counters > 0 ? f.RowsOf(event - f.first) : 0;
    for (const int32_t task : c_->Signallers(event)) {
      for (const SignalDesc& s : c_->Signals(v_.tasks[task])) {
        if (s.event == event && s.amount != kPerRow) sum += s.amount;
      }
    }
    return sum;
  }

  // A task that signals `event` and has not run, or -1.
  int32_t PendingSignaller(int32_t event) const {
    for (const int32_t task : c_->Signallers(event)) {
      if (c_->position_of[task] >= head_[c_->queue_of[task]]) return task;
    }
    return -1;
  }

  // Every blocked head waits for one event; some task that signals it stands
  // in a queue whose head is blocked too, or nobody is left to signal.  So the
  // walk from any head ends in an unreachable threshold or in a cycle.
  void Diagnose() {
    std::vector<int32_t> walk_of(v_.num_queues, -1);
    for (int32_t start = 0; start < v_.num_queues; ++start) {
      int32_t queue = start;
      while (!Finished(queue) && walk_of[queue] < 0) {
        if (!c_->Open(kProgressRule)) return;
        walk_of[queue] = start;
        const int32_t task = Head(queue);
        const WaitDesc& w = *Unmet(v_.tasks[task]);
        const int64_t available = Available(w.event);
        const int32_t signaller = PendingSignaller(w.event);
        if (available < w.threshold || signaller < 0) {
          Unreachable(task, w, available);
          break;
        }
        queue = c_->queue_of[signaller];
        if (walk_of[queue] == start) Cycle(task, w, signaller);
      }
    }
  }

  void Unreachable(int32_t task, const WaitDesc& w, int64_t available) {
    const RegionDesc region = c_->Partition(w.event);
    const int64_t signaller = c_->AnySignaller(w.event);
    c_->Refuse(kProgressRule, task, signaller, w.event, &region,
               "progress: unreachable threshold: %s waits for event %d, %s: "
               "expected %d, all signals add up to %" PRId64 " (one from %s)",
               TaskText(*c_, task).s, w.event, RegionText(region).s,
               w.threshold, available, TaskText(*c_, signaller).s);
  }

  void Cycle(int32_t task, const WaitDesc& w, int32_t signaller) {
    const RegionDesc region = c_->Partition(w.event);
    const int32_t head = Head(c_->queue_of[signaller]);
    const int32_t other = head == task ? signaller : head;
    c_->Refuse(kProgressRule, task, other, w.event, &region,
               "progress: cycle: %s waits for event %d, %s, whose signaller "
               "task %d cannot run before %s",
               TaskText(*c_, task).s, w.event, RegionText(region).s, signaller,
               other == signaller ? "it" : TaskText(*c_, other).s);
  }

  Context* const c_;
  const ImageView& v_;
  std::vector<int64_t> head_;     // queue -> position of its next task
  std::vector<int64_t> counter_;  // event -> value
  std::vector<int64_t> needed_;   // event -> least threshold blocked on it
  std::vector<int32_t> first_blocked_;  // event -> queue, a linked list
  std::vector<int32_t> next_blocked_;   // queue -> queue
  std::vector<int32_t> left_;           // family -> tasks yet to count rows
  std::vector<int32_t> ready_;
  int64_t ran_ = 0;
};

}  // namespace

void ProveProgress(Context* context) { Simulation(context).Run(); }

}  // namespace hpmoe::proofs
