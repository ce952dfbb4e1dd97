// One direction of a rank's link: channels, each a queue, that share its rate
// equally while they hold anything.

#ifndef BACKEND_ASCEND_SIMULATOR_FLOWS_LINK_H_
#define BACKEND_ASCEND_SIMULATOR_FLOWS_LINK_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend_ascend/simulator/flows/fifo.h"
#include "backend_ascend/simulator/fluid.h"

namespace hpmoe::sim {

// `T`: what a message is.
template <class T>
class Link {
 public:
  Link(double capacity, int channels)
      : capacity_(capacity), channels_(channels) {}

  // Whether next() may be another: not where there is a queue.
  bool Enter(double now, int channel, double bytes, const T& what) {
    Channel& to = channels_[channel];
    bytes_ += bytes;
    const bool queued = !to.items.empty();
    to.items.Push({bytes, what});
    if (queued) return false;
    Advance(now);
    to.left = bytes;
    ++active_;
    Next();
    return true;
  }

  // When the first message has passed; kNoTime: there is none.
  double next() const { return next_; }

  // At time next(): which one.
  T Leave() {
    Advance(next_);
    Channel& from = channels_[first_];
    const T what = from.items.front().what;
    from.items.Pop();
    if (from.items.empty()) {
      --active_;
    } else {
      from.left = from.items.front().bytes;
    }
    Next();
    return what;
  }

  double bytes() const { return bytes_; }
  double busy() const { return busy_; }

 private:
  struct Item {
    double bytes;
    T what;
  };
  struct Channel {
    Fifo<Item> items;
    double left = 0;  // of the first
  };

  void Advance(double now) {
    const double passed = now - now_;
    now_ = now;
    if (active_ == 0) return;
    busy_ += passed;
    const double flowed = passed * capacity_ / active_;
    for (Channel& c : channels_) c.left = std::max(0.0, c.left - flowed);
  }

  void Next() {
    next_ = kNoTime;
    for (size_t c = 0; c < channels_.size(); ++c) {
      if (channels_[c].items.empty()) continue;
      const double end = now_ + channels_[c].left * active_ / capacity_;
      if (end >= next_) continue;
      next_ = end;
      first_ = c;
    }
  }

  const double capacity_;
  std::vector<Channel> channels_;
  double now_ = 0, next_ = kNoTime, bytes_ = 0, busy_ = 0;
  size_t first_ = 0;
  int active_ = 0;
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_FLOWS_LINK_H_
