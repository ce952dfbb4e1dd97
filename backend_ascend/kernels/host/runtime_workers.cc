#include "backend_ascend/kernels/host/runtime_workers.h"

#include <chrono>
#include <system_error>
#include <thread>

namespace hpmoe {
namespace {

// Tasks of one worker before the thread looks at the others.
constexpr int kMaxRun = 16;
constexpr int kSpins = 64;

}  // namespace

WorkerPool::WorkerPool(LaunchState* state, int32_t threads, double deadline_s)
    : state_(state),
      deadline_s_(deadline_s),
      num_tasks_(state->view->header->tasks.count),
      wanted_(threads),
      workers_(state->view->header->queues.count),
      threads_(threads),
      // Spinning pays only while every thread has a core.
      spins_(threads <=
                     static_cast<int32_t>(std::thread::hardware_concurrency())
                 ? kSpins
                 : 0) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    const QueueDesc& queue = state->view->queues[i];
    workers_[i].cursor = {state->view->queue_tasks + queue.begin, queue.count,
                          0, 0};
  }
}

StopReason WorkerPool::Run() {
  std::vector<std::thread> threads;
  try {
    for (int32_t i = 1; i < wanted_; ++i) {
      threads.emplace_back([this, i] { Drive(i); });
    }
  } catch (const std::system_error&) {
    // Fewer threads give the same bits.  This one has yet to go idle, so the
    // count is right before it can matter.
    std::lock_guard<std::mutex> lock(mutex_);
    threads_ = static_cast<int32_t>(threads.size()) + 1;
  }
  Drive(0);
  for (std::thread& thread : threads) thread.join();
  return ended_.load() == num_tasks_ ? StopReason::kNone : stop_.load();
}

void WorkerPool::Drive(int32_t thread) {
  HostPlatform platform(state_);
  size_t at = workers_.size() * thread / wanted_;
  int spins = 0;
  while (!Over()) {
    const uint64_t seen = ended_.load();
    if (Scan(&at, &platform)) {
      spins = 0;
    } else if (++spins <= spins_) {
      std::this_thread::yield();
    } else {
      SleepUntilProgress(seen);
    }
  }
}

// Runs tasks of the first worker from `*at` on that has one ready.
bool WorkerPool::Scan(size_t* at, HostPlatform* platform) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker* worker = &workers_[(*at + i) % workers_.size()];
    if (worker->driven.load(std::memory_order_relaxed) ||
        worker->driven.exchange(true, std::memory_order_acquire)) {
      continue;
    }
    const bool ran = RunSome(worker, platform);
    worker->driven.store(false, std::memory_order_release);
    if (ran) {
      *at = (*at + i + 1) % workers_.size();
      return true;
    }
  }
  return false;
}

bool WorkerPool::RunSome(Worker* worker, HostPlatform* platform) {
  for (int i = 0; i < kMaxRun; ++i) {
    if (stop_.load() != StopReason::kNone ||
        Step(&worker->cursor, *platform) != StepResult::kRan) {
      return i > 0;
    }
    TaskEnded();
  }
  return true;
}

// `ended_` before `sleepers_` here, the other way round in a sleeper: one of
// the two sees the other.
void WorkerPool::TaskEnded() {
  ended_.fetch_add(1);
  if (sleepers_.load() == 0) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
  }
  progress_.notify_all();
}

void WorkerPool::SleepUntilProgress(uint64_t seen) {
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1);
  const auto over = [&] { return ended_.load() != seen || Over(); };
  if (!over()) {
    idle_ = idle_at_ == seen ? idle_ + 1 : 1;
    idle_at_ = seen;
    if (idle_ == threads_) {
      Stop(StopReason::kDeadlock);
    } else if (!progress_.wait_for(
                   lock, std::chrono::duration<double>(deadline_s_), over)) {
      Stop(StopReason::kDeadline);
    }
  }
  sleepers_.fetch_sub(1);
}

void WorkerPool::Stop(StopReason reason) {
  stop_.store(reason);
  progress_.notify_all();
}

}  // namespace hpmoe
