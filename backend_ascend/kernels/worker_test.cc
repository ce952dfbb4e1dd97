// The worker loop on its own, as a device would run it: no library at all.
// Returns the number of the first check that fails, 0 if none does.

#include "backend_ascend/kernels/worker.h"

namespace {

using hpmoe::Cursor;
using hpmoe::Step;
using hpmoe::StepResult;
using hpmoe::TaskDesc;
using hpmoe::WaitDesc;

// Two tasks: 0 waits for events 0 and 1; 1 waits for nothing.
struct FakePlatform {
  TaskDesc tasks[2] = {};
  WaitDesc waits[2] = {{0, 2}, {1, 1}};
  int32_t counters[4] = {};
  int polls = 0;
  int log[8] = {}, logged = 0;

  FakePlatform() { tasks[0].wait_count = 2; }
  const TaskDesc& Task(uint32_t index) { return tasks[index]; }
  const WaitDesc& Wait(uint32_t index) { return waits[index]; }
  bool Reached(const WaitDesc& wait) {
    ++polls;
    return counters[wait.event] >= wait.threshold;
  }
  void Run(uint32_t task) { log[logged++] = static_cast<int>(task); }
  void Signal(uint32_t task) { log[logged++] = 10 + static_cast<int>(task); }
};

int TestStep() {
  FakePlatform platform;
  const uint32_t queue[2] = {0, 1};
  Cursor cursor = {queue, 2, 0, 0};
  if (Step(&cursor, platform) != StepResult::kBlocked) return 1;
  if (platform.logged != 0 || platform.polls != 1) return 2;
  // The first wait is met, the second is not; the first is not polled again.
  platform.counters[0] = 2;
  if (Step(&cursor, platform) != StepResult::kBlocked) return 3;
  if (cursor.waits_met != 1 || platform.polls != 3) return 4;
  platform.counters[1] = 5;
  if (Step(&cursor, platform) != StepResult::kRan) return 5;
  if (platform.polls != 4 || cursor.waits_met != 0) return 6;
  if (Step(&cursor, platform) != StepResult::kRan) return 7;
  if (Step(&cursor, platform) != StepResult::kDone) return 8;
  const int want[4] = {0, 10, 1, 11};
  for (int i = 0; i < 4; ++i) {
    if (platform.log[i] != want[i]) return 9;
  }
  return platform.logged == 4 ? 0 : 10;
}

}  // namespace

int main() { return TestStep(); }
