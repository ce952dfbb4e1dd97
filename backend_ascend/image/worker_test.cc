// The worker loop on its own, as a device would run it: no library at all.
// Returns the number of the first check that fails, 0 if none does.

#include "backend_ascend/image/worker.h"

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
  int32_t counters[2] = {};
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

// A step, with what events 0 and 1 stand at before it.  A wait that is met is
// not polled again.
struct {
  int32_t counters[2];
  StepResult result;
  int polls;
  uint32_t waits_met;
} constexpr kSteps[] = {
    {{0, 0}, StepResult::kBlocked, 1, 0}, {{2, 0}, StepResult::kBlocked, 3, 1},
    {{2, 5}, StepResult::kRan, 4, 0},     {{2, 5}, StepResult::kRan, 4, 0},
    {{2, 5}, StepResult::kDone, 4, 0},
};

}  // namespace

int main() {
  FakePlatform platform;
  const uint32_t queue[2] = {0, 1};
  Cursor cursor = {queue, 2, 0, 0};
  int failed = 0;
  for (const auto& step : kSteps) {
    ++failed;
    for (int i = 0; i < 2; ++i) platform.counters[i] = step.counters[i];
    if (Step(&cursor, platform) != step.result) return failed;
    if (platform.polls != step.polls) return failed;
    if (cursor.waits_met != step.waits_met) return failed;
  }
  const int want[4] = {0, 10, 1, 11};
  for (int i = 0; i < 4; ++i) {
    if (platform.log[i] != want[i]) return 9;
  }
  return platform.logged == 4 ? 0 : 10;
}
