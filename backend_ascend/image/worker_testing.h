// A platform of two tasks for the worker loop, without any library: whoever
// includes it compiles freestanding.

#ifndef BACKEND_ASCEND_IMAGE_WORKER_TESTING_H_
#define BACKEND_ASCEND_IMAGE_WORKER_TESTING_H_

#include "backend_ascend/image/worker.h"

namespace hpmoe {

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

template StepResult Step(Cursor* cursor, FakePlatform& platform);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_IMAGE_WORKER_TESTING_H_
