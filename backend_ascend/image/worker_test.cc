// The worker loop on its own, as a device runs it.

#include <gtest/gtest.h>

#include <vector>

#include "backend_ascend/image/worker_testing.h"

namespace hpmoe {
namespace {

struct Expected {
  int32_t counters[2];  // of events 0 and 1, before the step
  StepResult result;
  int polls;
  uint32_t waits_met;
};

TEST(Worker, RunsItsQueueAndPollsNoWaitThatWasMet) {
  // Given a task of two waits and one of none, when events arrive one by one,
  // then each step polls the waits that are not met yet, and no others.
  constexpr Expected kSteps[] = {
      {{0, 0}, StepResult::kBlocked, 1, 0},
      {{2, 0}, StepResult::kBlocked, 3, 1},
      {{2, 5}, StepResult::kRan, 4, 0},
      {{2, 5}, StepResult::kRan, 4, 0},
      {{2, 5}, StepResult::kDone, 4, 0},
  };
  FakePlatform platform;
  const uint32_t queue[2] = {0, 1};
  Cursor cursor = {queue, 2, 0, 0};

  for (const Expected& step : kSteps) {
    SCOPED_TRACE(&step - kSteps);
    for (int i = 0; i < 2; ++i) platform.counters[i] = step.counters[i];
    EXPECT_EQ(Step(&cursor, platform), step.result);
    EXPECT_EQ(platform.polls, step.polls);
    EXPECT_EQ(cursor.waits_met, step.waits_met);
  }

  const std::vector<int> log(platform.log, platform.log + platform.logged);
  EXPECT_EQ(log, (std::vector<int>{0, 10, 1, 11}));
}

}  // namespace
}  // namespace hpmoe
