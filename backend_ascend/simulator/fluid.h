// One resource that many demands share: bytes flow through it at max-min fair
// rates, each demand at most at the cap of its class.
//
// A resource whose classes have trips is a queue in order.  A demand has no
// more bytes on their way than flow in a trip at its cap, its window; each of
// them waits behind what all others have in the queue.  So a demand flows at
// window / (trip + wait), and the wait is as long as the windows make it: one
// with a small window or a long trip starves beside those with large ones.
//
// All demands of a class have the same rate, so a class has one virtual time,
// the bytes that a demand which was always there would have had.  A demand of b
// bytes that comes at virtual time v ends at v + b, whatever happens between:
// O(log n) an arrival or an end, and nothing to update in the others.

#ifndef BACKEND_ASCEND_SIMULATOR_FLUID_H_
#define BACKEND_ASCEND_SIMULATOR_FLUID_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace hpmoe::sim {

constexpr double kNoTime = std::numeric_limits<double>::infinity();

// Whose cap a demand has.
enum DemandClass {
  kAicDemand,
  kAivDemand,
  kPutDemand,
  kHomeDemand,
  kNumDemandClasses
};

class Fluid {
 public:
  // `trips`, s of each class, make it a queue in order; null: it is none.
  Fluid(double capacity, const double* caps, const double* trips = nullptr)
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

  void Enter(double now, DemandClass of, double bytes, uint32_t worker) {
    Advance(now);
    Class& to = classes_[of];
    if (to.items.empty()) to.flowed = 0;  // keeps its digits
    to.items.push_back({to.flowed + bytes, worker});
    std::push_heap(to.items.begin(), to.items.end());
    bytes_ += bytes;
    ++active_;
    Share();
  }

  // When the first of the demands ends; kNoTime: there is none.
  double next() const { return next_; }

  // At time next(): appends the workers whose demands end, and goes on.
  void Leave(std::vector<uint32_t>* ended) {
    Advance(next_);
    Class& from = classes_[first_];
    // What the class has had is known exactly here, its rounding aside.
    from.flowed = std::max(from.flowed, from.items.front().end);
    for (Class& c : classes_) {
      while (!c.items.empty() && c.items.front().end <= c.flowed) {
        ended->push_back(c.items.front().worker);
        std::pop_heap(c.items.begin(), c.items.end());
        c.items.pop_back();
        --active_;
      }
    }
    Share();
  }

  // Of a demand that has it for itself.
  double LoneRate(DemandClass of) const {
    return std::min(classes_[of].cap, capacity_);
  }
  double capacity() const { return capacity_; }
  double bytes() const { return bytes_; }
  double busy() const { return busy_; }  // s with a demand

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

  void Advance(double now) {
    const double passed = now - now_;
    now_ = now;
    if (active_ == 0) return;
    busy_ += passed;
    for (Class& c : classes_) {
      if (!c.items.empty()) c.flowed += c.rate * passed;
    }
  }

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

  void Share() {
    ordered_ ? Queue() : Fill();
    next_ = kNoTime;
    for (const int of : by_cap_) {
      Class& c = classes_[of];
      if (c.items.empty()) continue;
      const double end =
          now_ + std::max(0.0, (c.items.front().end - c.flowed) / c.rate);
      if (end >= next_) continue;
      next_ = end;
      first_ = of;
    }
  }

  const double capacity_;
  const bool ordered_;
  Class classes_[kNumDemandClasses];
  int by_cap_[kNumDemandClasses];
  double now_ = 0, next_ = kNoTime, bytes_ = 0, busy_ = 0;
  int first_ = 0;
  size_t active_ = 0;
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_FLUID_H_
