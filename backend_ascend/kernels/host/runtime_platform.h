// The host's side of the worker loop: counters, tasks, faults.

#ifndef BACKEND_ASCEND_KERNELS_HOST_RUNTIME_PLATFORM_H_
#define BACKEND_ASCEND_KERNELS_HOST_RUNTIME_PLATFORM_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "backend_ascend/kernels/host/faults.h"
#include "backend_ascend/kernels/host/image_loader.h"
#include "backend_ascend/kernels/host/runtime_tasks.h"
#include "backend_ascend/kernels/worker.h"

namespace hpmoe {

// A cache line each: neighbours belong to different consumers.
struct alignas(64) EventCounter {
  std::atomic<int32_t> value{0};
};

enum class Progress : uint8_t { kWaiting = 0, kRan = 1, kSignalled = 2 };

// What all workers of one launch share.
struct LaunchState {
  const ImageView* view;
  Layer layer;
  FaultSpec fault;
  std::vector<EventCounter> counters;  // by event; home rank's in each
  std::vector<Progress> progress;      // by task; its worker writes, read when
                                       // all threads have ended
  bool fault_changed = false;          // the faulty task's worker writes
};

// One per OS thread.
class HostPlatform {
 public:
  explicit HostPlatform(LaunchState* state) : state_(*state) {}

  const TaskDesc& Task(uint32_t index) const {
    return state_.view->tasks[index];
  }
  const WaitDesc& Wait(uint32_t index) const {
    return state_.view->waits[index];
  }
  bool Reached(const WaitDesc& wait) const {
    return state_.counters[wait.event].value.load(std::memory_order_acquire) >=
           wait.threshold;
  }
  void Add(const SignalDesc&, int32_t event, int32_t amount) {
    state_.counters[event].value.fetch_add(amount, std::memory_order_release);
  }
  void Run(uint32_t index);
  void Signal(uint32_t index);

  // Does the work of a task whose fault moves it in time.
  void RunOutOfOrder(uint32_t index);

 private:
  void SignalRows(const TaskDesc& task, const SignalDesc& signal);

  LaunchState& state_;
  GemmScratch scratch_;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_RUNTIME_PLATFORM_H_
