#include "backend_ascend/host/launch/runtime_workers.h"

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "backend_ascend/host/launch/task_signals.h"
#include "backend_ascend/host/load/worker_order.h"

namespace hpmoe {
namespace {

// Tasks of one worker before the thread looks at the others.
constexpr int kMaxRun = 16;
constexpr int kSpins = 64;

// Products of operands for which another thread pays: some 0.2 ms of one, where
// to begin and end a thread takes half of that, and more on a busy machine.
constexpr double kProductsOfThread = 1 << 22;

// A late put moves twice: its worker goes on, then it is delivered.
uint64_t NumMoves(const LaunchState& state) {
  const uint64_t tasks = state.view->header->tasks.count;
  uint64_t moves = tasks;
  for (uint64_t t = 0; state.modes.late_puts && t < tasks; ++t) {
    moves += IsPut(FormOf(state.view->tasks[t]));
  }
  return moves;
}

// Puts that may signal each event.
std::vector<std::vector<uint32_t>> PutsTo(const LaunchState& state) {
  const ImageView& view = *state.view;
  std::vector<std::vector<uint32_t>> puts(
      state.modes.late_puts ? view.num_events : 0);
  for (int32_t t = 0; state.modes.late_puts && t < view.num_tasks; ++t) {
    const TaskDesc& task = view.tasks[t];
    if (!IsPut(FormOf(task))) continue;
    for (uint32_t s = 0; s < task.signal_count; ++s) {
      const SignalDesc& signal = view.signals[task.signal_begin + s];
      for (int32_t i = 0; i < SpanOf(signal); ++i) {
        puts[signal.event + i].push_back(t);
      }
    }
  }
  return puts;
}

// Spinning pays only while every thread has a core, and only where another one
// may bring work meanwhile.
int32_t SpinsOf(int32_t threads) {
  const auto cores = static_cast<int32_t>(std::thread::hardware_concurrency());
  return threads > 1 && threads <= cores ? kSpins : 0;
}

// Moves threads that have just begun off the core of this one, where Linux may
// have put them: it would share that core out for milliseconds, as long as a
// small launch takes.  Then they may run where they could before.
void LeaveThisCore(std::vector<std::thread>* threads) {
#ifdef __linux__
  cpu_set_t all;
  const int core = sched_getcpu();
  if (core < 0 || core >= CPU_SETSIZE) return;
  if (sched_getaffinity(0, sizeof(all), &all) != 0) return;
  cpu_set_t others = all;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0) return;
  for (std::thread& thread : *threads) {
    pthread_setaffinity_np(thread.native_handle(), sizeof(others), &others);
    pthread_setaffinity_np(thread.native_handle(), sizeof(all), &all);
  }
#else
  (void)threads;
#endif
}

}  // namespace

int32_t ThreadCount(const ImageView& view, const Modes& modes, int32_t wanted) {
  if (wanted > 0) return wanted;
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  const ImageHeader& image = *view.header;
  int64_t most = std::min<int64_t>(cores, image.queues.count);
  if (!modes.permute && !modes.late_puts && !modes.races) {
    const double rows = 1.0 * image.num_ranks * image.num_tokens * image.top_k;
    const double products = 3 * rows * image.d_model * image.d_ff;
    const double paid = 1 + products / kProductsOfThread;
    most = static_cast<int64_t>(std::min<double>(most, paid));
  }
  return static_cast<int32_t>(std::max<int64_t>(1, most));
}

WorkerPool::WorkerPool(LaunchState* state, int32_t threads, double deadline_s)
    : state_(state),
      modes_(state->modes),
      deadline_s_(deadline_s),
      num_moves_(NumMoves(*state)),
      wanted_(threads),
      workers_(state->view->header->queues.count),
      threads_(threads),
      worker_order_(OrderWorkers(*state->view, state->work)),
      puts_to_(PutsTo(*state)),
      // No thread has this number.
      late_draw_(state->modes.seed, ~uint64_t{0}),
      spins_(SpinsOf(threads)) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    const QueueDesc& queue = state->view->queues[i];
    workers_[i].cursor = {state->view->queue_tasks + queue.begin, queue.count,
                          0, 0};
  }
}

StopReason WorkerPool::Run() {
  std::vector<std::thread> threads;
  threads.reserve(wanted_);
  try {
    for (int32_t i = 1; i < wanted_; ++i) {
      threads.emplace_back([this, i] { Drive(i); });
    }
  } catch (const std::exception&) {
    // Fewer threads give the same bits.  This one has yet to go idle, so the
    // count is right before it can matter.
    std::lock_guard<std::mutex> lock(mutex_);
    threads_ = static_cast<int32_t>(threads.size()) + 1;
  }
  if (spins_ > 0) LeaveThisCore(&threads);  // each has a core of its own
  Drive(0);
  for (std::thread& thread : threads) thread.join();
  if (thrown_ != nullptr) std::rethrow_exception(thrown_);
  return moves_.load() == num_moves_ ? StopReason::kNone : stop_.load();
}

WorkerPool::Path WorkerPool::PathOf(int32_t thread) const {
  Path path{0, {}, SplitMix(modes_.seed, static_cast<uint64_t>(thread))};
  if (modes_.permute) {
    path.drawn.resize(workers_.size());
    std::iota(path.drawn.begin(), path.drawn.end(), size_t{0});
  }
  return path;
}

void WorkerPool::Drive(int32_t thread) {
  try {
    DriveUntilOver(thread);
  } catch (...) {
    std::lock_guard<std::mutex> lock(mutex_);
    thrown_ = std::current_exception();
    Stop(StopReason::kThrew);
  }
}

void WorkerPool::DriveUntilOver(int32_t thread) {
  HostPlatform platform(state_, thread);
  Path path = PathOf(thread);
  int spins = 0;
  while (!Over()) {
    const uint64_t seen = moves_.load();
    if (Scan(&path, &platform)) {
      spins = 0;
    } else if (++spins <= spins_) {
      std::this_thread::yield();
    } else {
      SleepUntilProgress(seen, &platform);
    }
  }
}

// The worker to try after `tried` others.  A draw is without replacement, so
// the first that is ready is any of those that are, with equal chances.
WorkerPool::Worker* WorkerPool::NextOf(Path* path, size_t tried) {
  if (!modes_.permute) {
    const size_t at = path->next;
    path->next = (at + 1) % workers_.size();
    return &workers_[worker_order_[at]];
  }
  const size_t left = workers_.size() - tried;
  std::swap(path->drawn[path->draw.Below(left)], path->drawn[left - 1]);
  return &workers_[path->drawn[left - 1]];
}

// Runs tasks of the first worker of the path that has one ready.
bool WorkerPool::Scan(Path* path, HostPlatform* platform) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker* worker = NextOf(path, i);
    if (worker->driven.load(std::memory_order_relaxed) ||
        worker->driven.exchange(true, std::memory_order_acquire)) {
      continue;
    }
    const bool ran = RunSome(worker, platform);
    worker->driven.store(false, std::memory_order_release);
    if (ran) return true;
  }
  return false;
}

// Whether the next task takes so long that its worker's turn ends with it.
bool WorkerPool::IsLong(const Cursor& cursor) const {
  return cursor.next < cursor.count &&
         state_->work[cursor.tasks[cursor.next]] > 0;
}

bool WorkerPool::RunSome(Worker* worker, HostPlatform* platform) {
  const int most = modes_.permute ? 1 : kMaxRun;
  bool end = false;
  for (int i = 0; i < most && !end; ++i) {
    if (stop_.load() != StopReason::kNone) return i > 0;
    end = IsLong(worker->cursor);
    const StepResult result = Step(&worker->cursor, *platform);
    if (modes_.times && result == StepResult::kBlocked) {
      NoteBlocked(worker->cursor);
    }
    if (result != StepResult::kRan) return i > 0;
    Moved();
  }
  return true;
}

void WorkerPool::NoteBlocked(const Cursor& cursor) {
  TaskTime& time = state_->times[cursor.tasks[cursor.next]];
  if (time.blocked < 0) time.blocked = state_->Now();
}

// `moves_` before `sleepers_` here, the other way round in a sleeper: one of
// the two sees the other.
void WorkerPool::Moved() {
  moves_.fetch_add(1);
  if (sleepers_.load() == 0) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
  }
  progress_.notify_all();
}

void WorkerPool::SleepUntilProgress(uint64_t seen, HostPlatform* platform) {
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1);
  const auto over = [&] { return moves_.load() != seen || Over(); };
  if (!over()) {
    idle_ = idle_at_ == seen ? idle_ + 1 : 1;
    idle_at_ = seen;
    if (idle_ == threads_) {
      if (!DeliverOne(platform)) Stop(StopReason::kDeadlock);
    } else if (!progress_.wait_for(
                   lock, std::chrono::duration<double>(deadline_s_), over)) {
      Stop(StopReason::kDeadline);
    }
  }
  sleepers_.fetch_sub(1);
}

// Only what the first blocked worker waits for, and nothing that only others
// need.  What comes after it in its queue then runs before its own
// puts are there, unless it waits for them.
int64_t WorkerPool::NextLate() {
  if (!modes_.late_puts) return -1;
  if (modes_.permute) return state_->late_puts.TakeDrawn(&late_draw_);
  for (const Worker& worker : workers_) {
    const Cursor& cursor = worker.cursor;
    if (cursor.next == cursor.count) continue;
    // It is blocked by the first wait that is not met yet.
    const TaskDesc& task = state_->Task(cursor.tasks[cursor.next]);
    const uint32_t wait = task.wait_begin + cursor.waits_met;
    const int64_t put = state_->late_puts.TakeFirstOf(
        puts_to_[state_->view->waits[wait].event]);
    if (put >= 0) return put;
  }
  return state_->late_puts.TakeFirst();
}

// Needs mutex_, and every other thread idle.
bool WorkerPool::DeliverOne(HostPlatform* platform) {
  const int64_t put = NextLate();
  if (put < 0) return false;
  platform->Deliver(static_cast<uint32_t>(put));
  moves_.fetch_add(1);
  progress_.notify_all();
  return true;
}

void WorkerPool::Stop(StopReason reason) {
  stop_.store(reason);
  progress_.notify_all();
}

}  // namespace hpmoe
