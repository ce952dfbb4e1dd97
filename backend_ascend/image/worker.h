// The worker loop that host and NPU share: one worker walks one static queue.
//
// A device runs `while (Step(&cursor, platform) != StepResult::kDone)` on each
// core; a host interleaves many workers on few threads; a simulator calls the
// halves of Step, Fetch and Finish, when a task begins and ends in modelled
// time.  `Platform` supplies
//
//   const TaskDesc& Task(uint32_t index);  // or a copy
//   const WaitDesc& Wait(uint32_t index);  // or a copy
//   bool Reached(const WaitDesc& wait);     // acquire; never blocks
//   void Run(uint32_t task);                // Step only
//   void Signal(uint32_t task);             // release
//   void Add(const SignalDesc& signal, int32_t event, int32_t amount);
//
// No host-only construct may enter this file: no standard library, no
// exceptions, no allocation.

#ifndef BACKEND_ASCEND_IMAGE_WORKER_H_
#define BACKEND_ASCEND_IMAGE_WORKER_H_

#include "backend_ascend/image/image.h"
#include "backend_ascend/image/qualifiers.h"

namespace hpmoe {

enum class StepResult : int32_t { kRan = 0, kBlocked = 1, kDone = 2 };

// Where a worker stands in its queue.
struct Cursor {
  const HPMOE_GM uint32_t* tasks;
  uint32_t count;
  uint32_t next;
  uint32_t waits_met;  // of task `next`: events only grow, so none is polled
                       // again once it is met
};

// The task at the cursor, and whether it may run.
struct Fetched {
  StepResult result;  // kRan: it may
  uint32_t task;      // unless kDone
};

// Fetches a task and polls its waits.
template <class Platform>
HPMOE_FUNCTION Fetched Fetch(Cursor* cursor, Platform& platform) {
  if (cursor->next == cursor->count) return {StepResult::kDone, 0};
  const uint32_t index = cursor->tasks[cursor->next];
  const TaskDesc& task = platform.Task(index);
  for (; cursor->waits_met < task.wait_count; ++cursor->waits_met) {
    if (!platform.Reached(platform.Wait(task.wait_begin + cursor->waits_met))) {
      return {StepResult::kBlocked, index};
    }
  }
  return {StepResult::kRan, index};
}

// Signals for the task at the cursor, which has run, and goes on.
template <class Platform>
HPMOE_FUNCTION void Finish(Cursor* cursor, Platform& platform) {
  platform.Signal(cursor->tasks[cursor->next]);
  ++cursor->next;
  cursor->waits_met = 0;
}

// Fetch, wait, run, signal: one task, or none if a wait is not met yet.
template <class Platform>
HPMOE_FUNCTION StepResult Step(Cursor* cursor, Platform& platform) {
  const Fetched fetched = Fetch(cursor, platform);
  if (fetched.result != StepResult::kRan) return fetched.result;
  platform.Run(fetched.task);
  Finish(cursor, platform);
  return StepResult::kRan;
}

// Counts rows into the events of their partitions: one add per run of rows
// that fall into the same one.
template <class Platform>
class RowSignal {
 public:
  HPMOE_FUNCTION RowSignal(Platform& platform, const SignalDesc& signal,
                           int32_t part_rows)
      : platform_(platform), signal_(signal), part_rows_(part_rows) {}

  HPMOE_FUNCTION void Row(int32_t landing_row) {
    const int32_t part = landing_row / part_rows_;
    if (part != part_) Flush();
    part_ = part;
    ++rows_;
  }

  HPMOE_FUNCTION void Flush() {
    if (rows_ > 0 && part_ < signal_.span) {
      platform_.Add(signal_, signal_.event + part_, rows_);
    }
    rows_ = 0;
  }

 private:
  Platform& platform_;
  const SignalDesc& signal_;
  const int32_t part_rows_;
  int32_t part_ = 0;
  int32_t rows_ = 0;
};

// Lifts every partition of an expert that has `rows` rows to its threshold.
// `events` are the `signal.span` events from `signal.event`.
template <class Platform>
HPMOE_FUNCTION void AddPadding(Platform& platform, const SignalDesc& signal,
                               const HPMOE_GM EventDesc* events, int32_t rows) {
  for (int32_t part = 0; part < signal.span; ++part) {
    const HPMOE_GM EventDesc& event = events[part];
    // A corrupt image may have partitions beyond what int32 can count.
    const int64_t begin = int64_t{part} * event.part_rows;
    int32_t real = begin < rows ? rows - static_cast<int32_t>(begin) : 0;
    if (real > event.part_rows) real = event.part_rows;
    if (event.threshold > real) {
      platform.Add(signal, signal.event + part, event.threshold - real);
    }
  }
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_IMAGE_WORKER_H_
