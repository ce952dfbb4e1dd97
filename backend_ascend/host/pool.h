// What threads take for a while and give back, made as often as is needed.

#ifndef BACKEND_ASCEND_HOST_POOL_H_
#define BACKEND_ASCEND_HOST_POOL_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace hpmoe {

template <class T>
class Pool {
 public:
  std::unique_ptr<T> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return std::make_unique<T>();
    std::unique_ptr<T> taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }

  void Return(std::unique_ptr<T> taken) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(taken));
  }

  // Calls visit(T) for each that nobody has taken.
  template <class Visit>
  void ForEach(Visit visit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::unique_ptr<T>& one : free_) visit(*one);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;  // guarded by mutex_
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_POOL_H_
