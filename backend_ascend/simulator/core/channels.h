// The discipline of a link with channels, each a queue, that share its rate
// equally while they hold anything.

#ifndef BACKEND_ASCEND_SIMULATOR_CORE_CHANNELS_H_
#define BACKEND_ASCEND_SIMULATOR_CORE_CHANNELS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend_ascend/simulator/core/fifo.h"
#include "backend_ascend/simulator/core/server.h"

namespace hpmoe::sim {

// `T`: what a message is.
template <class T>
class Channels {
 public:
  using What = T;

  Channels(double capacity, int channels)
      : capacity_(capacity), channels_(channels) {}

  bool IsBehind(int channel) const { return !channels_[channel].items.empty(); }
  void Push(int channel, double bytes, T what) {
    Channel& to = channels_[channel];
    if (to.items.empty()) {
      to.left = bytes;
      ++active_;
    }
    to.items.Push(bytes, what);
  }
  double Flow(double passed) {
    double flowed = passed * capacity_;
    if (active_ > 1) flowed = active_ == 2 ? flowed * 0.5 : flowed / active_;
    for (Channel& c : channels_) c.left = std::max(0.0, c.left - flowed);
    return flowed * active_;
  }
  double Next(double now) {
    double next = kNoTime;
    if (active_ == 0) return next;
    for (size_t c = 0; c < channels_.size(); ++c) {
      const double end = now + channels_[c].left * active_ / capacity_;
      if (end >= next) continue;
      next = end;
      first_ = c;
    }
    return next;
  }
  template <class Ended>
  uint64_t Pop(Ended ended) {
    Channel& from = channels_[first_];
    ended(from.items.front().what);
    from.items.Pop();
    if (from.items.empty()) {
      --active_;
      from.left = kNoTime;
    } else {
      from.left = from.items.front().bytes;
    }
    return 1;
  }

  bool idle() const { return active_ == 0; }
  double capacity() const { return capacity_; }
  uint64_t peak() const { return channels_.size(); }

 private:
  struct Item {
    Item(double b, T w) : bytes(b), what(w) {}
    double bytes;
    T what;
  };
  struct Channel {
    Fifo<Item> items;
    double left = kNoTime;  // of the first
  };

  double capacity_;
  std::vector<Channel> channels_;
  size_t first_ = 0;
  int active_ = 0;
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_CORE_CHANNELS_H_
