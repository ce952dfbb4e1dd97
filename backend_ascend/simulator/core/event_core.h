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
#include "backend_ascend/simulator/core/first_of.h"

namespace hpmoe::sim {

constexpr double kNoTime = std::numeric_limits<double>::infinity();
constexpr int32_t kNobody = -1;

// When each unit does something next: one time a unit, the last that was set.
class Calendar {
 public:
  explicit Calendar(size_t units) {
    first_.Resize(static_cast<uint32_t>(units));
  }

  // kNoTime: nothing.
  void Set(double at, int32_t unit) {
    if (taken_ != unit) Clear();
    taken_ = kNobody;
    first_.Set(static_cast<uint32_t>(unit), at);
  }
  double next() {
    Clear();
    return first_.time();
  }
  // At time next(): whose it is.
  int32_t Take() {
    taken_ = static_cast<int32_t>(first_.index());
    return taken_;
  }

 private:
  void Clear() {
    if (taken_ == kNobody) return;
    first_.Set(static_cast<uint32_t>(taken_), kNoTime);
    taken_ = kNobody;
  }

  FirstOf first_;
  int32_t taken_ = kNobody;  // whose time is past
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

  // Whether a counter reaches its threshold by this.
  bool Count(int32_t number, int32_t amount, int32_t threshold) {
    int32_t& count = counters_[number].count;
    const bool reached = count >= threshold;
    // Corrupt tables may count beyond what int32 can.
    count = static_cast<int32_t>(static_cast<uint32_t>(count) +
                                 static_cast<uint32_t>(amount));
    return !reached && count >= threshold;
  }
  // Wakes who waits for a counter that did; all see that `delay` s later.
  template <class Wake>
  void Reach(int32_t number, double delay, Wake wake) {
    Counter& counter = counters_[number];
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
    constexpr size_t kSources = sizeof...(Sources);
    const double times[] = {sources.next()...};
    double soonest[kSources + 1];  // of a source and of those after it
    soonest[kSources] = kNoTime;
    for (size_t i = kSources; i-- > 0;) {
      soonest[i] = std::min(times[i], soonest[i + 1]);
    }
    if (soonest[0] == kNoTime) return false;
    if (soonest[0] < now_) backwards_ = now_;
    now_ = soonest[0];
    (void)((times[kOrder] <= soonest[kOrder + 1] && (sources.happen(), true)) ||
           ...);
    return true;
  }

  Ledger ledger_;
  std::vector<int32_t> behind_;  // by unit: the next that waits for the same
  bool stopped_ = false;
  double backwards_ = kNoTime;  // s, when an event lay in the past
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_CORE_EVENT_CORE_H_
