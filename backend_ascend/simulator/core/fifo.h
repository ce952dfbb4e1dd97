// A queue in one piece of memory, which what is read in order is fetched from.

#ifndef BACKEND_ASCEND_SIMULATOR_CORE_FIFO_H_
#define BACKEND_ASCEND_SIMULATOR_CORE_FIFO_H_

#include <cstddef>
#include <vector>

namespace hpmoe::sim {

template <class T>
class Fifo {
 public:
  bool empty() const { return first_ == items_.size(); }
  const T& front() const { return items_[first_]; }

  // In place: of what it is made.
  template <class... Args>
  void Push(Args... args) {
    items_.emplace_back(args...);
  }

  // No more than half of the memory is of what has left.
  void Pop() {
    __builtin_prefetch(items_.data() + first_ + kAhead);
    if (2 * ++first_ < items_.size() || first_ < kFew) return;
    items_.erase(items_.begin(),
                 items_.begin() + static_cast<ptrdiff_t>(first_));
    first_ = 0;
  }

 private:
  static constexpr size_t kFew = 64;
  static constexpr size_t kAhead = 8;  // that are fetched from memory

  std::vector<T> items_;
  size_t first_ = 0;
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_CORE_FIFO_H_
