// The host's side of the worker loop: counters, tasks, faults.

#ifndef BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_PLATFORM_H_
#define BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_PLATFORM_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend_ascend/host/checks/faults.h"
#include "backend_ascend/host/checks/guards.h"
#include "backend_ascend/host/checks/modes.h"
#include "backend_ascend/host/checks/replay.h"
#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/splitmix.h"
#include "backend_ascend/image/worker.h"

namespace hpmoe {

// A cache line each: neighbours belong to different consumers.
struct alignas(64) EventCounter {
  std::atomic<int32_t> value{0};
};

// When a task did its work.
enum class Moment : uint8_t { kBeforeTurn, kInTurn, kAfterSignals };

enum class Progress : uint8_t { kWaiting = 0, kRan = 1, kSignalled = 2 };

// When a task ran, in nanoseconds since the launch's workers began.
struct TaskTime {
  int64_t blocked = -1;  // its worker first found a wait unmet; -1: none was
  int64_t start = -1;    // its waits were met
  int64_t end = -1;      // before it signalled
  int64_t thread = -1;   // that ran it
};
static_assert(sizeof(TaskTime) == 32, "TaskTime is four numbers");

// Puts whose workers went on before they were delivered.
class LatePuts {
 public:
  void Add(uint32_t task);
  // Each takes one of them; -1 where there is none.
  int64_t TakeDrawn(SplitMix* draw);
  int64_t TakeFirst();
  int64_t TakeFirstOf(const std::vector<uint32_t>& wanted);

 private:
  int64_t Take(size_t at);

  std::mutex mutex_;
  // Guarded by mutex_, and sorted, so that what is taken does not depend on who
  // added what first.
  std::vector<uint32_t> tasks_;
};

// What all workers of one launch share.
struct LaunchState {
  const ImageView* view;
  Layer layer;
  GemmScratch* scratch = nullptr;  // of each thread; null: it makes its own
  FaultSpec fault;
  Modes modes;
  std::vector<int64_t> work;           // by task, in any unit, 0: next to none
  std::vector<EventCounter> counters;  // by event; home rank's in each
  std::vector<Progress> progress;      // by task; its worker writes, read when
                                       // all threads have ended
  bool fault_changed = false;          // the faulty task's worker writes
  TaskDesc unwaiting{};                // the faulty task without its waits
  LatePuts late_puts;
  std::atomic<uint32_t> num_ended{0};
  std::vector<uint32_t> order;  // by task, where it is traced
  std::chrono::steady_clock::time_point began;
  std::vector<TaskTime> times;     // by task, where they are asked for; its
                                   // worker writes
  std::unique_ptr<Replay> replay;  // where there are actions
  // By task, where races are looked for; its worker writes.
  std::atomic<uint32_t> num_turns{0};
  static constexpr uint32_t kNoTurn = ~uint32_t{0};
  std::vector<uint32_t> turn;  // when its queue came to it, not delivered
  std::vector<Moment> moments;
  std::vector<std::vector<int32_t>> signalled;  // events
  // What a kernel wrote beyond its tile, of the first task that did; where
  // there are guards.
  std::mutex overrun_mutex;
  int64_t overrun_task = -1;  // guarded by overrun_mutex, and so is
  std::string overrun;

  void AddOverrun(uint32_t task, const std::string& text) {
    const std::lock_guard<std::mutex> lock(overrun_mutex);
    if (overrun_task >= 0 && overrun_task <= task) return;
    overrun_task = task;
    overrun = text;
  }

  void RecordOrder() {
    turn.assign(view->num_tasks, kNoTurn);
    moments.resize(view->num_tasks);
    signalled.resize(view->num_tasks);
  }

  int64_t Now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now() - began)
        .count();
  }

  const TaskDesc& Task(uint32_t index) const {
    return HasFault(index, FaultKind::kSkippedWait) ? unwaiting
                                                    : view->tasks[index];
  }
  // Whether the task has something to wait for.
  bool Waits(uint32_t index) const {
    const TaskDesc& task = view->tasks[index];
    return task.wait_count > 0 && RealRows(task, layer).count() > 0;
  }
  bool HasFault(uint32_t task, FaultKind kind) const {
    return static_cast<int64_t>(task) == fault.task && fault.kind == kind;
  }
};

// One per OS thread.
class HostPlatform {
 public:
  explicit HostPlatform(LaunchState* state, int32_t thread = 0)
      : state_(*state),
        thread_(thread),
        scratch_(state->scratch == nullptr ? &own_scratch_
                                           : state->scratch + thread) {}

  const TaskDesc& Task(uint32_t index) const { return state_.Task(index); }
  const WaitDesc& Wait(uint32_t index) const {
    return state_.view->waits[index];
  }
  bool Reached(const WaitDesc& wait) const {
    return state_.counters[wait.event].value.load(std::memory_order_acquire) >=
           wait.threshold;
  }
  void Add(const SignalDesc&, int32_t event, int32_t amount) {
    if (state_.modes.races) RecordSignal(event);
    state_.counters[event].value.fetch_add(amount, std::memory_order_release);
  }
  // Both leave a put that is to be late for Deliver.
  void Run(uint32_t index);
  void Signal(uint32_t index);
  void Deliver(uint32_t put);

  // Does the work of a task whose fault moves it in time.
  void RunOutOfOrder(uint32_t index);

 private:
  bool IsLate(uint32_t index) const {
    return state_.modes.late_puts && IsPut(FormOf(Task(index)));
  }
  void TakeTurn(uint32_t index);
  void RecordSignal(int32_t event);
  void DoTurn(uint32_t index);
  void Work(uint32_t index);
  void Compute(uint32_t index);
  void Announce(uint32_t index);

  LaunchState& state_;
  const int32_t thread_;
  uint32_t announced_ = 0;  // the task that signals
  GemmScratch own_scratch_;
  GemmScratch* const scratch_;
  Margins margins_;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_PLATFORM_H_
