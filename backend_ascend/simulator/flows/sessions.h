// What switches keep of messages with one key: a load that several ranks want,
// or a sum that several add to.  All switches are one table: the hash that
// spreads keys over them is even.
//
// A load that misses is forwarded at once; who comes while it is on its way is
// answered with it, who comes later from what is kept.  A sum leaves when its
// last part has come.  A full table gives up what was used longest ago: of a
// sum its part so far, of a load what it keeps; a load on its way stays.

#ifndef BACKEND_ASCEND_SIMULATOR_FLOWS_SESSIONS_H_
#define BACKEND_ASCEND_SIMULATOR_FLOWS_SESSIONS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <list>
#include <unordered_map>
#include <vector>

#include "backend_ascend/simulator/core/event_core.h"
#include "backend_ascend/simulator/flows/fabric.h"

namespace hpmoe::sim {

// X(type, name): of all sessions.
#define HPMOE_SESSIONS(X)                                                 \
  X(double, peak)       /* B held at once */                              \
  X(double, residence)  /* s from first to last arrival, of what ended */ \
  X(int64_t, sessions)  /* opened */                                      \
  X(int64_t, merged)    /* that found one */                              \
  X(int64_t, evicted)   /* for want of room */                            \
  X(int64_t, timed_out) /* that nobody came to */                         \
  X(int64_t, bypassed)  /* without room */

struct SessionTotals {
#define HPMOE_FIELD(type, name) type name = 0;
  HPMOE_SESSIONS(HPMOE_FIELD)
#undef HPMOE_FIELD
};

// So many parts of a sum, which leave for the owner.
struct Partial {
  int32_t message;  // one of the parts
  int32_t parts;
};

class Sessions {
 public:
  Sessions(const Switch& of, int32_t ranks) : of_(of), ranks_(ranks) {}

  // A part of a sum of `expected` for `owner` comes.  Appends what leaves.
  void Add(double now, int64_t key, int32_t message, int32_t rank,
           int32_t owner, int32_t expected, double bytes,
           std::vector<Partial>* leaves) {
    Entry* entry = Find(now, key);
    if (entry == nullptr) {
      entry = Open(now, key, message, expected, bytes, leaves);
      if (entry == nullptr) return leaves->push_back({message, 1});
      entry->owner = owner;
    } else {
      ++totals_.merged;
    }
    ++entry->count;
    if (of_.in_order != 0) KeepInOrder(entry, rank);
    if (entry->count < entry->expected) return;
    leaves->push_back({message, entry->count});
    Close(now, key);
  }

  enum class Load { kForward, kWait, kAnswer, kBypass };
  // A request comes for what `expected` ask for.
  Load Ask(double now, int64_t key, int32_t message, int32_t expected,
           double bytes, std::vector<Partial>* leaves) {
    Entry* entry = Find(now, key);
    if (entry == nullptr) {
      entry = Open(now, key, message, expected, bytes, leaves);
      if (entry == nullptr) return Load::kBypass;
      entry->load = true;
      entry->count = 1;
      return Load::kForward;
    }
    ++totals_.merged;
    ++entry->count;
    if (!entry->ready) {
      entry->waiting.push_back(message);
      return Load::kWait;
    }
    if (entry->count == entry->expected) Close(now, key);
    return Load::kAnswer;
  }
  // Its data come; returns who waits besides the one that asked first.
  std::vector<int32_t> Arrive(double now, int64_t key) {
    Entry* const entry = Find(now, key);
    std::vector<int32_t> waiting = std::move(entry->waiting);
    entry->waiting.clear();
    entry->ready = true;
    if (entry->count == entry->expected) Close(now, key);
    return waiting;
  }

  // When the one that was used longest ago is given up; kNoTime: never.
  double next() const {
    if (of_.timeout == 0 || used_.empty()) return kNoTime;
    return entries_.at(used_.front()).last + of_.timeout;
  }
  void TimeOut(double now, std::vector<Partial>* leaves) {
    Entry& entry = entries_.at(used_.front());
    if (entry.load && !entry.ready) {  // its data will come
      Find(now, used_.front());
      return;
    }
    ++totals_.timed_out;
    GiveUp(now, used_.front(), leaves);
  }

  const SessionTotals& totals() const { return totals_; }

  // Refuses a table that lost a session or a byte, or held too much.
  Status Conserves() const {
    const auto open = static_cast<int64_t>(entries_.size());
    if (totals_.sessions != closed_ + open) {
      return Refused(1,
                     "simulator: expected the switch table to close %lld "
                     "sessions, got %lld",
                     static_cast<long long>(totals_.sessions - open),
                     static_cast<long long>(closed_));
    }
    double held = 0;
    for (const auto& [key, entry] : entries_) held += entry.held;
    const double slack = std::numeric_limits<double>::epsilon() * totals_.peak *
                         static_cast<double>(1 + holds_ + open);
    const bool bounded = of_.table > 0 && of_.in_order == 0;
    if (std::abs(held - held_) > slack ||
        (bounded && totals_.peak > of_.table)) {
      return Refused(1,
                     "simulator: expected the switch table to hold %.17g B and "
                     "at most %.17g B, got %.17g and %.17g",
                     held, bounded ? of_.table : kNoTime, held_, totals_.peak);
    }
    return Status{};
  }

 private:
  struct Entry {
    std::list<int64_t>::iterator used;
    double first, last, bytes, held;
    int32_t message, owner = -1, expected, count = 0;
    int32_t next = 0;   // rank whose part is added next
    uint64_t came = 0;  // ranks
    bool load = false, ready = false;
    std::vector<int32_t> waiting;
  };

  Entry* Find(double now, int64_t key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    Entry& entry = found->second;
    entry.last = now;
    used_.splice(used_.end(), used_, entry.used);
    return &entry;
  }

  // Null: there is no room, and none can be made.
  Entry* Open(double now, int64_t key, int32_t message, int32_t expected,
              double bytes, std::vector<Partial>* leaves) {
    if (!MakeRoom(now, bytes, leaves)) {
      ++totals_.bypassed;
      return nullptr;
    }
    ++totals_.sessions;
    Entry entry{};
    entry.used = used_.insert(used_.end(), key);
    entry.first = entry.last = now;
    entry.bytes = bytes;
    entry.message = message;
    entry.expected = expected;
    Entry* const to = &(entries_[key] = std::move(entry));
    Hold(to, bytes);
    return to;
  }

  // A sum in order of ranks cannot be given up: its parts would be added in
  // another.  What that needs is the table's peak.
  bool MakeRoom(double now, double bytes, std::vector<Partial>* leaves) {
    if (of_.table == 0 || of_.in_order != 0) return true;
    for (auto at = used_.begin();
         held_ + bytes > of_.table && at != used_.end();) {
      const int64_t key = *at++;
      const Entry& entry = entries_.at(key);
      if (entry.load && !entry.ready) continue;
      ++totals_.evicted;
      GiveUp(now, key, leaves);
    }
    return held_ + bytes <= of_.table;
  }

  void GiveUp(double now, int64_t key, std::vector<Partial>* leaves) {
    const Entry& entry = entries_.at(key);
    if (!entry.load) leaves->push_back({entry.message, entry.count});
    Close(now, key);
  }

  // Beside the sum are kept the parts that came before their turn.
  void KeepInOrder(Entry* entry, int32_t rank) {
    entry->came |= uint64_t{1} << rank;
    const auto turn = [&] {
      const bool owner =
          entry->expected < ranks_ && entry->next == entry->owner;
      return owner || (entry->came >> entry->next & 1) != 0;
    };
    int32_t early = 0;
    while (entry->next < ranks_ && turn()) ++entry->next;
    for (int32_t r = entry->next; r < ranks_; ++r)
      early += entry->came >> r & 1;
    Hold(entry, entry->bytes * (1 + early));
  }

  void Hold(Entry* entry, double bytes) {
    ++holds_;
    held_ += bytes - entry->held;
    entry->held = bytes;
    totals_.peak = std::max(totals_.peak, held_);
  }

  void Close(double now, int64_t key) {
    const auto found = entries_.find(key);
    Entry& entry = found->second;
    totals_.residence += now - entry.first;
    held_ -= entry.held;
    ++holds_;
    ++closed_;
    used_.erase(entry.used);
    entries_.erase(found);
  }

  const Switch& of_;
  const int32_t ranks_;
  std::unordered_map<int64_t, Entry> entries_;
  std::list<int64_t> used_;  // longest ago first
  double held_ = 0;
  int64_t holds_ = 0, closed_ = 0;  // changes of held_; sessions
  SessionTotals totals_;
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_FLOWS_SESSIONS_H_
