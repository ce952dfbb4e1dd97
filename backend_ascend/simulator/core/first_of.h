// The least of a few times that change one by one: a tournament.

#ifndef BACKEND_ASCEND_SIMULATOR_CORE_FIRST_OF_H_
#define BACKEND_ASCEND_SIMULATOR_CORE_FIRST_OF_H_

#include <cstdint>
#include <limits>
#include <vector>

namespace hpmoe::sim {

class FirstOf {
 public:
  // All times are infinite.
  void Resize(uint32_t count) {
    leaves_ = 1;
    while (leaves_ < count) leaves_ *= 2;
    winners_.assign(2 * leaves_, {std::numeric_limits<double>::infinity(), 0});
    for (uint32_t i = 0; i < leaves_; ++i) winners_[leaves_ + i].index = i;
    for (uint32_t n = leaves_ - 1; n > 0; --n) winners_[n] = winners_[2 * n];
  }

  void Set(uint32_t index, double time) {
    uint32_t n = leaves_ + index;
    Entry won = {time, index};
    winners_[n] = won;
    for (; n > 1; n /= 2) {
      const Entry other = winners_[n ^ 1];  // the one on the right loses ties
      const bool lost =
          (other.time < won.time) | ((other.time == won.time) & ((n & 1) != 0));
      won.time = lost ? other.time : won.time;
      won.index = lost ? other.index : won.index;
      Entry& here = winners_[n / 2];
      // Another won, and wins still.
      if (here.index == won.index && won.index != index) return;
      here = won;
    }
  }

  // The least time; of equal ones the first.
  uint32_t index() const { return winners_[1].index; }
  double time() const { return winners_[1].time; }

 private:
  struct Entry {
    double time;
    uint32_t index;
  };

  uint32_t leaves_ = 1;
  std::vector<Entry> winners_;  // [1] of all; [leaves_ + i] is i
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_CORE_FIRST_OF_H_
