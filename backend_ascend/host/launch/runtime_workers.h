// Many virtual workers on few OS threads.

#ifndef BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_WORKERS_H_
#define BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_WORKERS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "backend_ascend/host/launch/runtime_platform.h"

namespace hpmoe {

enum class StopReason : int32_t {
  kNone = 0,
  kDeadlock = 1,  // no task runs and none can start
  kDeadline = 2,  // no task ended in time
  kThrew = 3,     // never told: the exception is
};

// The OS threads of a launch: as many as are wanted, or where that is 0 one for
// each core, but not more than there are workers, or, unless modes look for
// other interleavings, than there is work for.
int32_t ThreadCount(const ImageView& view, const Modes& modes, int32_t wanted);

// Walks every queue of an image to its end.
//
// Any thread may drive any worker; a try-lock per worker says who does.  A
// thread that finds nothing to run yields a few times, then sleeps until some
// task ends.  `moves_` orders all of this: it counts the tasks that have
// signalled, and a late put twice, once when its worker goes on without it.  If
// every thread has scanned all workers in vain at the same value of `moves_`,
// no task runs and none can: the last thread to find out delivers a late put,
// and where there is none that is a deadlock, seen at once.
//
// Which ready worker goes next is a matter of turns, or drawn from a seed.
// Turns go from the worker with most work to the one with least: the last tasks
// to run are then small, and no thread waits long for another's.
class WorkerPool {
 public:
  WorkerPool(LaunchState* state, int32_t threads, double deadline_s);

  // Returns when all tasks have run, or why they did not.  Throws what a task
  // threw on any thread, when all threads have ended.
  StopReason Run();

  // After Run: where worker `i` stopped.
  size_t size() const { return workers_.size(); }
  const Cursor& cursor(size_t i) const { return workers_[i].cursor; }

 private:
  struct alignas(64) Worker {
    std::atomic<bool> driven{false};
    Cursor cursor{};
  };

  void Drive(int32_t thread);
  void DriveUntilOver(int32_t thread);
  // How one thread goes through the workers.
  struct Path {
    size_t next;                // in turn, into turns_
    std::vector<size_t> drawn;  // a permutation of all, or empty
    SplitMix draw;
  };

  Path PathOf(int32_t thread) const;
  bool IsLong(const Cursor& cursor) const;
  Worker* NextOf(Path* path, size_t tried);
  bool Scan(Path* path, HostPlatform* platform);
  bool RunSome(Worker* worker, HostPlatform* platform);
  void NoteBlocked(const Cursor& cursor);
  void Moved();
  void SleepUntilProgress(uint64_t seen, HostPlatform* platform);
  int64_t NextLate();
  bool DeliverOne(HostPlatform* platform);
  void Stop(StopReason reason);
  bool Over() const {
    return moves_.load() == num_moves_ || stop_.load() != StopReason::kNone;
  }

  LaunchState* const state_;
  const Modes& modes_;
  const double deadline_s_;
  const uint64_t num_moves_;
  const int32_t wanted_;
  std::vector<Worker> workers_;
  std::atomic<uint64_t> moves_{0};
  std::atomic<StopReason> stop_{StopReason::kNone};
  std::atomic<int32_t> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable progress_;
  int32_t threads_;       // guarded by mutex_ once threads run
  uint64_t idle_at_ = 0;  // guarded by mutex_: value of moves_ at which
  int32_t idle_ = 0;      // so many threads found nothing to run
  const std::vector<uint32_t> worker_order_;  // a permutation of the workers
  const std::vector<std::vector<uint32_t>> puts_to_;  // by event, if late
  SplitMix late_draw_;                                // guarded by mutex_
  std::exception_ptr thrown_;                         // guarded by mutex_
  int32_t spins_;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_WORKERS_H_
