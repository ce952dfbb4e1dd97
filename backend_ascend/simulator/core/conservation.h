// What no simulation may break, checked at the end of each: a server serves all
// that it was offered, at no more than its capacity, and a task runs once.

#ifndef BACKEND_ASCEND_SIMULATOR_CORE_CONSERVATION_H_
#define BACKEND_ASCEND_SIMULATOR_CORE_CONSERVATION_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe::sim {

// Of a server, in its own unit: bytes, or seconds of a unit's work.
struct Account {
  double offered;   // by what entered
  double served;    // rate by rate over time
  double busy;      // s with a demand
  double capacity;  // a second
  uint64_t entered, left;
  uint64_t peak;         // demands at once
  uint64_t changes = 0;  // of its rate
};

// `total`: s of the whole run.  `name` and `number` say which server.
inline Status CheckAccount(const Account& of, double total, const char* name,
                           int number) {
  if (of.entered != of.left) {
    return Refused(1,
                   "simulator: expected %s %d to serve its %lld demands, got "
                   "%lld",
                   name, number, static_cast<long long>(of.entered),
                   static_cast<long long>(of.left));
  }
  // Each arrival, each end and each change of rate rounds times, at most
  // `total`, a few times, and what each demand has had, at most what is served
  // while it is busy.
  constexpr double kFew = 8;
  const double unit = std::numeric_limits<double>::epsilon() * of.capacity;
  const double slack = static_cast<double>(of.entered + of.changes) * unit *
                       (kFew * total + static_cast<double>(of.peak) * of.busy);
  if (!std::isfinite(of.capacity)) return Status{};
  if (!(std::abs(of.served - of.offered) <= slack)) {
    return Refused(1, "simulator: expected %s %d to serve %.17g, got %.17g",
                   name, number, of.offered, of.served);
  }
  // Rates of queues in order are solved to this.
  constexpr double kSolved = 1e-12;
  const double most = of.capacity * total * (1 + kSolved) + slack;
  if (!(of.offered <= most) || !(of.busy * of.capacity <= most)) {
    return Refused(1,
                   "simulator: expected %s %d to serve at most %.17g in %.17g "
                   "s, got %.17g in %.17g s",
                   name, number, of.capacity * total, total, of.offered,
                   of.busy);
  }
  return Status{};
}

// Which tasks run, and which have run.
class Ledger {
 public:
  explicit Ledger(size_t tasks) : states_(tasks, kNew) {}

  void Begin(uint32_t task) { Move(task, kNew, kRuns); }
  void End(uint32_t task) {
    Move(task, kRuns, kEnded);
    ++ended_;
  }

  Status Conserves() const {
    if (wrong_ != kNone) {
      return Refused(1,
                     "simulator: expected task %u to begin once and end once, "
                     "got another time",
                     wrong_);
    }
    if (ended_ == states_.size()) return Status{};
    size_t task = 0;
    while (states_[task] == kEnded) ++task;
    return Refused(1, "simulator: expected task %u to end, got none",
                   static_cast<uint32_t>(task));
  }

 private:
  enum State : uint8_t { kNew, kRuns, kEnded };
  static constexpr uint32_t kNone = ~uint32_t{0};

  void Move(uint32_t task, State from, State to) {
    if (states_[task] != from) wrong_ = task;
    states_[task] = to;
  }

  std::vector<State> states_;
  size_t ended_ = 0;
  uint32_t wrong_ = kNone;
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_CORE_CONSERVATION_H_
