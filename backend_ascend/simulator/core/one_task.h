// The discipline of a core: one task at a time, whose seconds pass at a rate
// that may change.

#ifndef BACKEND_ASCEND_SIMULATOR_CORE_ONE_TASK_H_
#define BACKEND_ASCEND_SIMULATOR_CORE_ONE_TASK_H_

#include <algorithm>
#include <cstdint>

#include "backend_ascend/simulator/core/server.h"

namespace hpmoe::sim {

class OneTask {
 public:
  using What = int32_t;  // of its own

  bool IsBehind(int) const { return false; }
  void Push(int, double seconds, int32_t what) {
    left_ = seconds;
    what_ = what;
    busy_ = true;
  }
  double Flow(double passed) {
    const double flowed = rate_ == 1 ? passed : passed * rate_;
    left_ = std::max(0.0, left_ - flowed);  // rounding may take more
    return flowed;
  }
  double Next(double now) const {
    if (!busy_ || rate_ <= 0) return kNoTime;
    return now + (rate_ == 1 ? left_ : left_ / rate_);
  }
  template <class Ended>
  uint64_t Pop(Ended ended) {
    busy_ = false;
    ended(what_);
    return 1;
  }
  void set_rate(double rate) { rate_ = rate; }

  bool idle() const { return !busy_; }
  static double capacity() { return 1; }
  static uint64_t peak() { return 1; }

 private:
  double left_ = 0;  // s at the whole rate
  double rate_ = 1;
  int32_t what_ = 0;
  bool busy_ = false;
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_CORE_ONE_TASK_H_
