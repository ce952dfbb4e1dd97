// What every simulation is made of: one clock, one loop of events, units that
// run a task at a time, and counters that they wait for.
//
// An engine derives from EventCore and says what a task is.  Of events at one
// time the first source's comes first; of a calendar's the lowest unit's.  So
// the same arguments give the same bits.

#ifndef BACKEND_ASCEND_SIMULATOR_CORE_EVENT_CORE_H_
#define BACKEND_ASCEND_SIMULATOR_CORE_EVENT_CORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "backend_ascend/simulator/core/conservation.h"

namespace hpmoe::sim {

constexpr double kNoTime = std::numeric_limits<double>::infinity();
constexpr int32_t kNobody = -1;

// When each unit does something next: one time a unit, the last that was set.
class Calendar {
 public:
  explicit Calendar(size_t units) : turns_(units, 0) {}

  // kNoTime: nothing.
  void Set(double at, int32_t unit) {
    const uint32_t turn = ++turns_[unit];
    changed_ = true;
    if (at == kNoTime) return;
    const Timer timer = {at, static_cast<uint32_t>(unit), turn};
    if (taken_) {  // what was first is of no more use: its place is free
      taken_ = false;
      return Sink(timer);
    }
    timers_.push_back(timer);
    size_t n = timers_.size() - 1;
    for (; n > 0 && timer < timers_[(n - 1) / 2]; n = (n - 1) / 2) {
      timers_[n] = timers_[(n - 1) / 2];
    }
    timers_[n] = timer;
  }
  double next() {
    if (changed_) FindNext();
    return next_;
  }
  // At time next(): whose it is.
  int32_t Take() {
    taken_ = changed_ = true;
    return static_cast<int32_t>(timers_.front().unit);
  }

 private:
  struct Timer {
    double at;
    uint32_t unit;
    uint32_t turn;
    bool operator<(const Timer& other) const {
      return (at < other.at) | ((at == other.at) & (unit < other.unit));
    }
  };

  void FindNext() {
    changed_ = false;
    if (taken_) Drop();
    while (!timers_.empty() &&
           timers_.front().turn != turns_[timers_.front().unit]) {
      Drop();  // its unit was set again since
    }
    next_ = timers_.empty() ? kNoTime : timers_.front().at;
  }
  void Drop() {
    taken_ = false;
    const Timer last = timers_.back();
    timers_.pop_back();
    if (!timers_.empty()) Sink(last);
  }
  // Puts it where the least was.
  void Sink(const Timer& timer) {
    const size_t size = timers_.size();
    size_t n = 0;
    for (size_t child = 1; child < size; child = 2 * n + 1) {
      child += static_cast<size_t>(child + 1 < size &&
                                   timers_[child + 1] < timers_[child]);
      if (!(timers_[child] < timer)) break;
      timers_[n] = timers_[child];
      n = child;
    }
    timers_[n] = timer;
  }

  std::vector<uint32_t> turns_;  // by unit, of its one timer
  std::vector<Timer> timers_;    // a heap, the least on top
  double next_ = kNoTime;
  bool taken_ = false;    // the top
  bool changed_ = false;  // since next_ was found
};

// That units wait for.
struct Counter {
  int32_t count = 0;
  int32_t waiting = kNobody;  // the last unit that came to wait for it
  double seen = 0;            // s, when all see that it was reached
};

// Events of one kind: `next()` is when the first is, `happen()` lets it be.
template <class Next, class Happen>
struct Source {
  Next next;
  Happen happen;
};
template <class Next, class Happen>
Source(Next, Happen) -> Source<Next, Happen>;

class EventCore {
 protected:
  EventCore(size_t units, size_t counters, size_t tasks)
      : calendar_(units),
        counters_(counters),
        ledger_(tasks),
        behind_(units, kNobody) {}

  // Until no source has an event, or Stop.
  template <class... Sources>
  void RunEvents(Sources... sources) {
    while (!stopped_ &&
           RunEvent(std::index_sequence_for<Sources...>(), sources...)) {
    }
  }
  void Stop() { stopped_ = true; }

  // Units that wait for the same are a list, the last that came first.
  void WaitIn(int32_t* list, int32_t unit) {
    behind_[unit] = *list;
    *list = unit;
  }
  template <class Wake>
  void WakeAll(int32_t list, Wake wake) {
    for (int32_t u = list; u != kNobody; u = behind_[u]) wake(u);
  }

  // Wakes who waits for a counter that reaches its threshold; all see that
  // `delay` s later.
  template <class Wake>
  void Count(int32_t number, int32_t amount, int32_t threshold, double delay,
             Wake wake) {
    Counter& counter = counters_[number];
    const bool reached = counter.count >= threshold;
    // Corrupt tables may count beyond what int32 can.
    counter.count = static_cast<int32_t>(static_cast<uint32_t>(counter.count) +
                                         static_cast<uint32_t>(amount));
    if (reached || counter.count < threshold) return;
    counter.seen = now_ + delay;
    const int32_t waiting = counter.waiting;
    counter.waiting = kNobody;
    WakeAll(waiting, wake);
  }

  void BeginTask(uint32_t task) { ledger_.Begin(task); }
  void EndTask(uint32_t task) {
    ledger_.End(task);
    total_ = std::max(total_, now_);
  }

  // Of what the loop itself knows.
  Status Conserves() const {
    if (backwards_ != kNoTime) {
      return Refused(1,
                     "simulator: expected times that ascend, got an event "
                     "before %.17g s at that time",
                     backwards_);
    }
    return ledger_.Conserves();
  }

  double now_ = 0;
  double total_ = 0;  // s, the last end
  Calendar calendar_;
  std::vector<Counter> counters_;

 private:
  template <size_t... kOrder, class... Sources>
  bool RunEvent(std::index_sequence<kOrder...>, Sources&... sources) {
    const double times[] = {sources.next()...};
    double first = kNoTime;
    ((first = std::min(first, times[kOrder])), ...);
    if (first == kNoTime) return false;
    if (first < now_) backwards_ = now_;
    now_ = first;
    (void)((times[kOrder] == first && (sources.happen(), true)) || ...);
    return true;
  }

  Ledger ledger_;
  std::vector<int32_t> behind_;  // by unit: the next that waits for the same
  bool stopped_ = false;
  double backwards_ = kNoTime;  // s, when an event lay in the past
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_CORE_EVENT_CORE_H_
