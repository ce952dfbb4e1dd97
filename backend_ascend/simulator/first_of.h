// The least of a few times that change one by one: a tournament.

#ifndef BACKEND_ASCEND_SIMULATOR_FIRST_OF_H_
#define BACKEND_ASCEND_SIMULATOR_FIRST_OF_H_

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
    for (uint32_t n = leaves_ - 1; n > 0; --n) Play(n);
  }

  void Set(uint32_t index, double time) {
    winners_[leaves_ + index].time = time;
    for (uint32_t n = (leaves_ + index) / 2; n > 0; n /= 2) {
      const uint32_t before = winners_[n].index;
      Play(n);
      // Another won, and wins still.
      if (before != index && winners_[n].index == before) return;
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

  void Play(uint32_t n) {
    const Entry &left = winners_[2 * n], &right = winners_[2 * n + 1];
    winners_[n] = right.time < left.time ? right : left;
  }

  uint32_t leaves_ = 1;
  std::vector<Entry> winners_;  // [1] of all; [leaves_ + i] is i
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_FIRST_OF_H_
