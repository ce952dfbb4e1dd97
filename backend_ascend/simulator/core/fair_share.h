// The discipline of what many demands share: bytes flow through it at max-min
// fair rates, each demand at most at the cap of its class.
//
// One whose classes have trips is a queue in order.  A demand has no
// more bytes on their way than flow in a trip at its cap, its window; each of
// them waits behind what all others have in the queue.  So a demand flows at
// window / (trip + wait), and the wait is as long as the windows make it: one
// with a small window or a long trip starves beside those with large ones.
//
// All demands of a class have the same rate, so a class has one virtual time,
// the bytes that a demand which was always there would have had.  A demand of b
// bytes that comes at virtual time v ends at v + b, whatever happens between:
// O(log n) an arrival or an end, and nothing to update in the others.

#ifndef BACKEND_ASCEND_SIMULATOR_CORE_FAIR_SHARE_H_
#define BACKEND_ASCEND_SIMULATOR_CORE_FAIR_SHARE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend_ascend/simulator/core/server.h"

namespace hpmoe::sim {

// Whose cap a demand has.
enum DemandClass {
  kAicDemand,
  kAivDemand,
  kPutDemand,
  kHomeDemand,
  kNumDemandClasses
};

class FairShare {
 public:
  using What = uint32_t;  // worker

  // `trips`, s of each class, make it a queue in order; null: it is none.
  FairShare(double capacity, const double* caps, const double* trips = nullptr)
      : capacity_(capacity), ordered_(trips != nullptr) {
    for (int c = 0; c < kNumDemandClasses; ++c) {
      classes_[c].cap = caps[c];
      classes_[c].trip = ordered_ ? trips[c] : 0;
      by_cap_[c] = c;
    }
    std::stable_sort(by_cap_, by_cap_ + kNumDemandClasses, [&](int a, int b) {
      return classes_[a].cap < classes_[b].cap;
    });
  }

  bool IsBehind(int) const { return false; }
  void Push(int of, double bytes, uint32_t worker) {
    Class& to = classes_[of];
    if (to.items.empty()) to.flowed = 0;  // keeps its digits
    to.items.push_back({to.flowed + bytes, worker});
    std::push_heap(to.items.begin(), to.items.end());
    peak_ = std::max(peak_, ++active_);
  }
  double Flow(double passed) {
    for (Class& c : classes_) {
      if (!c.items.empty()) c.flowed += c.rate * passed;
    }
    return flow_ * passed;
  }
  double Next(double now) {
    ordered_ ? Queue() : Fill();
    double next = kNoTime;
    flow_ = 0;
    for (const int of : by_cap_) {
      const Class& c = classes_[of];
      if (c.items.empty()) continue;
      flow_ += c.rate * static_cast<double>(c.items.size());
      const double end =
          now + std::max(0.0, (c.items.front().end - c.flowed) / c.rate);
      if (end >= next) continue;
      next = end;
      first_ = of;
    }
    return next;
  }
  template <class Ended>
  uint64_t Pop(Ended ended) {
    Class& from = classes_[first_];
    // What the class has had is known exactly here, its rounding aside.
    from.flowed = std::max(from.flowed, from.items.front().end);
    const uint64_t had = active_;
    for (Class& c : classes_) {
      while (!c.items.empty() && c.items.front().end <= c.flowed) {
        ended(c.items.front().worker);
        std::pop_heap(c.items.begin(), c.items.end());
        c.items.pop_back();
        --active_;
      }
    }
    return had - active_;
  }

  // Of a demand that has it for itself.
  double LoneRate(int of) const {
    return std::min(classes_[of].cap, capacity_);
  }
  bool idle() const { return active_ == 0; }
  double capacity() const { return capacity_; }
  uint64_t peak() const { return peak_; }

 private:
  struct Item {
    double end;  // in bytes that have flowed
    uint32_t worker;
    // A heap's top is the greatest.
    bool operator<(const Item& other) const {
      return end != other.end ? end > other.end : worker > other.worker;
    }
  };
  struct Class {
    double cap = 0, trip = 0, flowed = 0, rate = 0;
    std::vector<Item> items;
  };

  // What all demands offer after a wait, B/s, and its slope against the wait.
  struct Offer {
    double rate = 0, slope = 0;
  };
  Offer OfferAfter(double wait) const {
    Offer offer;
    for (const Class& c : classes_) {
      const double window = c.cap * c.trip, trip = c.trip + wait;
      if (c.items.empty()) continue;
      const double rate = static_cast<double>(c.items.size()) * window / trip;
      offer.rate += rate;
      offer.slope -= rate / trip;
    }
    return offer;
  }

  // Rates in order.  Offers fall and are convex in the wait, so that Newton's
  // steps from no wait grow to the one at which the queue is full.
  void Queue() {
    constexpr int kMaxSteps = 60;
    double wait = 0;
    for (int step = 0; step < kMaxSteps; ++step) {
      const Offer offer = OfferAfter(wait);
      if (offer.rate <= capacity_ * (1 + 1e-13)) break;
      wait += (capacity_ - offer.rate) / offer.slope;
    }
    for (Class& c : classes_) c.rate = c.cap * (c.trip / (c.trip + wait));
  }

  // Rates by filling: what the lowest caps leave is for the others.
  void Fill() {
    double left = capacity_;
    auto sharers = static_cast<double>(active_);
    for (const int of : by_cap_) {
      Class& c = classes_[of];
      if (c.items.empty()) continue;
      const auto count = static_cast<double>(c.items.size());
      c.rate = std::min(c.cap, left / sharers);
      left -= c.rate * count;
      sharers -= count;
    }
  }

  double capacity_;
  bool ordered_;
  Class classes_[kNumDemandClasses];
  int by_cap_[kNumDemandClasses];
  double flow_ = 0;  // B/s of all
  int first_ = 0;
  uint64_t active_ = 0, peak_ = 0;
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_CORE_FAIR_SHARE_H_
