// The one kind of server: a memory, a link, a queue or a core.  Demands enter
// it and leave when they have been served; a discipline says at which rates.
//
// A discipline has
//
//   What                            // that a demand is of
//   bool IsBehind(int of)           // what comes waits, and changes nothing
//   void Push(of, amount, what)
//   double Flow(passed)             // moves demands on; returns what flowed
//   double Next(now)                // shares anew: when the first is served
//   uint64_t Pop(ended)             // ended(what) of those; how many
//   bool idle(); double capacity(); uint64_t peak()

#ifndef BACKEND_ASCEND_SIMULATOR_CORE_SERVER_H_
#define BACKEND_ASCEND_SIMULATOR_CORE_SERVER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "backend_ascend/simulator/core/conservation.h"
#include "backend_ascend/simulator/core/event_core.h"
#include "backend_ascend/simulator/core/first_of.h"

namespace hpmoe::sim {

template <class Discipline>
class Server {
 public:
  using What = typename Discipline::What;

  Server() = default;
  explicit Server(Discipline discipline) : discipline_(std::move(discipline)) {}

  // Whether next() may be another.
  bool Enter(double now, int of, double amount, What what) {
    offered_ += amount;
    ++entered_;
    if (discipline_.IsBehind(of)) {
      discipline_.Push(of, amount, what);
      return false;
    }
    Advance(now);
    discipline_.Push(of, amount, what);
    next_ = discipline_.Next(now_);
    return true;
  }

  // When the first of the demands is served; kNoTime: there is none.
  double next() const { return next_; }

  // At time next(): calls ended(what) of the demands that are served.
  template <class Ended>
  void Leave(Ended ended) {
    LeaveBy(next_, ended);
  }
  // At next(), or earlier than it has served them.
  template <class Ended>
  void LeaveBy(double now, Ended ended) {
    Advance(std::min(now, next_));
    left_ += discipline_.Pop(ended);
    next_ = discipline_.Next(now_);
  }

  // Changes the discipline by change(&discipline) from now on.
  template <class Change>
  void Retune(double now, Change change) {
    Advance(now);
    ++changes_;
    change(&discipline_);
    next_ = discipline_.Next(now_);
  }

  const Discipline& discipline() const { return discipline_; }
  double capacity() const { return discipline_.capacity(); }
  double offered() const { return offered_; }
  double busy() const { return busy_; }  // s with a demand
  Account account() const {
    return {offered_,           served_, busy_, capacity(), entered_, left_,
            discipline_.peak(), changes_};
  }

 private:
  void Advance(double now) {
    const double passed = now - now_;
    now_ = now;
    if (discipline_.idle()) return;
    busy_ += passed;
    served_ += discipline_.Flow(passed);
  }

  Discipline discipline_;
  double now_ = 0, next_ = kNoTime, offered_ = 0, served_ = 0, busy_ = 0;
  uint64_t entered_ = 0, left_ = 0, changes_ = 0;
};

// Servers by number; of equal times the first one's comes first.
template <class Discipline>
class Servers {
 public:
  using What = typename Discipline::What;

  void Add(Discipline discipline) {
    servers_.emplace_back(std::move(discipline));
  }
  // When all have been added.
  void Open() { soonest_.Resize(static_cast<uint32_t>(servers_.size())); }

  void Enter(double now, int32_t number, int of, double amount, What what) {
    Server<Discipline>& server = servers_[number];
    if (server.Enter(now, of, amount, what)) {
      soonest_.Set(static_cast<uint32_t>(number), server.next());
    }
  }
  double next() const { return soonest_.time(); }
  template <class Ended>
  void Leave(Ended ended) {
    const uint32_t number = soonest_.index();
    servers_[number].Leave(ended);
    soonest_.Set(number, servers_[number].next());
  }

  const Server<Discipline>& operator[](size_t number) const {
    return servers_[number];
  }
  size_t size() const { return servers_.size(); }

 private:
  std::vector<Server<Discipline>> servers_;
  FirstOf soonest_;
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_CORE_SERVER_H_
