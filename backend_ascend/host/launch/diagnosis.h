// Why a launch stopped, and who should have kept it going.

#ifndef BACKEND_ASCEND_HOST_LAUNCH_DIAGNOSIS_H_
#define BACKEND_ASCEND_HOST_LAUNCH_DIAGNOSIS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "backend_ascend/host/launch/runtime_workers.h"
#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe {

// The most telling blocked task and its unmet wait.
struct Diagnosis {
  static constexpr size_t kMaxTasks = 8;  // of each list
  StopReason reason;
  int64_t task;  // -1: no task is blocked, one that runs took too long
  int32_t event;
  int32_t expected;
  int32_t actual;
  int64_t missing;  // what all tasks of the image together fall short of it
  std::vector<int64_t> suspects;  // should have signalled: first those that
                                  // ran and did not, then those yet to run
  std::vector<int64_t> adders;    // where some is missing: who adds to it
  std::vector<int64_t> losers;    // where all signalled, and yet too little:
                                  // puts whose rows did not arrive
  std::string text;
};

// What a launch of one address space stopped at.
Diagnosis Diagnose(const LaunchState& state, const WorkerPool& pool,
                   StopReason reason);

// What an event is called, and a task.
std::string EventText(const ImageView& view, int32_t event);
std::string TaskText(const ImageView& view, int64_t index);

// In one sentence.
std::string TextOf(const ImageView& view, const Diagnosis& diagnosis);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LAUNCH_DIAGNOSIS_H_
