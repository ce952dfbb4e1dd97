// The worker loop and the arithmetic of rows on their own, as a device would
// run them: no library at all.  Returns the number of the first check that
// fails, 0 if none does.

#include "backend_ascend/kernels/worker.h"

#include "backend_ascend/kernels/rows.h"

namespace {

using hpmoe::Cursor;
using hpmoe::EventDesc;
using hpmoe::ImageHeader;
using hpmoe::PlanView;
using hpmoe::SignalDesc;
using hpmoe::Step;
using hpmoe::StepResult;
using hpmoe::TaskDesc;
using hpmoe::WaitDesc;

// Two tasks: 0 waits for events 0 and 1; 1 waits for nothing.
struct FakePlatform {
  TaskDesc tasks[2] = {};
  WaitDesc waits[2] = {{0, 2}, {1, 1}};
  int32_t counters[4] = {};
  int polls = 0, adds = 0;
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
  void Add(const SignalDesc&, int32_t event, int32_t amount) {
    ++adds;
    counters[event] += amount;
  }
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

// 11 rows of an expert in 3 partitions of 4 from event 1; rows 2 .. 9 are
// counted one by one, the padding completes the last partition.
int TestRows() {
  FakePlatform platform;
  const SignalDesc signal = {1, 3, hpmoe::kPerRow, 0};
  hpmoe::RowSignal<FakePlatform> rows(platform, signal, 4);
  for (int32_t row = 2; row < 10; ++row) rows.Row(row);
  rows.Flush();
  if (platform.adds != 3) return 20;
  const int32_t counted[4] = {0, 2, 4, 2};
  for (int i = 0; i < 4; ++i) {
    if (platform.counters[i] != counted[i]) return 21;
  }
  EventDesc events[3] = {};
  for (EventDesc& event : events) event.threshold = event.part_rows = 4;
  hpmoe::AddPadding(platform, signal, events, 11);
  if (platform.adds != 4 || platform.counters[3] != 3) return 22;
  // A row past the span signals nothing.
  rows.Row(12);
  rows.Flush();
  return platform.adds == 4 ? 0 : 23;
}

// R = 2, E = 2, T = 4, K = 1: rank 0 sends 3 rows to expert 1 and 1 to expert
// 0, rank 1 sends 2 to each.
struct SmallPlan {
  ImageHeader image = {};
  const int32_t counts[4] = {1, 3, 2, 2}, row_base[4] = {0, 0, 1, 3};
  const int32_t expert_rows[2] = {3, 5}, expert_base[2] = {0, 0};
  const int64_t slice_begin[5] = {0, 1, 4, 6, 8};
  const int32_t slice_slots[8] = {2, 0, 1, 3, 1, 2, 0, 3};
  const int32_t slots[5] = {0, 1, 3, -1, 3};  // of rank 1; one row was lost
  PlanView view = {};

  SmallPlan() {
    image.num_ranks = image.num_experts = 2;
    image.num_tokens = image.chain_rows = 4;
    image.top_k = 1;
    view.image = &image;
    static_cast<hpmoe::SliceTables&>(view) = {
        counts, row_base, expert_rows, expert_base, slice_begin, slice_slots};
  }
};

TaskDesc TaskOf(hpmoe::TaskKind kind, int32_t rank, int32_t peer, int32_t begin,
                int32_t end) {
  TaskDesc task = {};
  task.kind = kind;
  task.rank = rank;
  task.expert = 1;
  task.peer = peer;
  task.row_begin = begin;
  task.row_end = end;
  return task;
}

// All puts to expert 1 together fill its one partition of 8, padding included.
int TestSignals() {
  const SmallPlan plan;
  FakePlatform platform;
  const SignalDesc signals[1] = {{1, 1, hpmoe::kPerRow, 1}};
  EventDesc events[2] = {};
  events[1].threshold = events[1].part_rows = 8;
  for (int32_t rank = 0; rank < 2; ++rank) {
    for (int32_t begin = 0; begin < 4; ++begin) {
      TaskDesc put = TaskOf(hpmoe::kDispatch, rank, 1, begin, begin + 1);
      put.signal_count = 1;
      SignalTask(platform, put, signals, events, plan.view, plan.slots);
    }
  }
  if (platform.counters[1] != 8) return 50;
  TaskDesc home = TaskOf(hpmoe::kReturn, 1, hpmoe::kRowBlockRange, 0, 5);
  home.signal_count = 1;
  platform.counters[1] = 0;
  SignalTask(platform, home, signals, events, plan.view, plan.slots);
  return platform.counters[1] == 1 ? 0 : 51;
}

}  // namespace

int main() {
  int (*const tests[])() = {TestStep, TestRows, TestSignals};
  for (const auto test : tests) {
    const int failed = test();
    if (failed != 0) return failed;
  }
  return 0;
}
