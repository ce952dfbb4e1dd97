// The worker loop on the twin, with tasks that have no rows: handshake, waits,
// adds of both units, deadlines and what each core leaves.

#include "backend_ascend/device/megakernel/megakernel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "backend_ascend/twin/engine/kernel_launch.h"

namespace {

using ascend_twin::GlobalKind;
using hpmoe::CoreDiagnosis;
using hpmoe::TaskDesc;

constexpr int kRanks = 3;  // not a power of 2
constexpr int kHeaps = 4;
constexpr int kTasks = 5;
constexpr uint64_t kDeadlineUs = 1000;

// Rank 2's AIVs add 1 and 2 to event 0 of rank 0, the first 1 to event 1 and
// rank 0's AIC 2, and rank 0's second AIV waits for both; so does nobody else.
// Task 3 waits for nothing, behind it.
struct Image {
  hpmoe::ImageHeader header;
  TaskDesc tasks[kTasks];
  hpmoe::WaitDesc waits[2] = {{0, 3}, {1, 3}};
  hpmoe::SignalDesc signals[4] = {
      {0, 1, 2, 0}, {1, 1, 2, 0}, {0, 1, 1, 0}, {1, 1, 1, 0}};
  hpmoe::EventDesc events[2];
  hpmoe::QueueDesc queues[4] = {{0, hpmoe::kAic, 0, 1, 1},
                                {0, hpmoe::kAiv, 1, 2, 2},
                                {2, hpmoe::kAiv, 0, 4, 1},
                                {2, hpmoe::kAiv, 1, 0, 1}};
  uint32_t queue_tasks[kTasks] = {0, 1, 2, 3, 4};
};

template <typename T>
hpmoe::TableRef RefOf(const Image& image, const T* table, uint64_t count) {
  return {static_cast<uint64_t>(reinterpret_cast<const char*>(table) -
                                reinterpret_cast<const char*>(&image)),
          count};
}

Image MakeImage() {
  Image image = {};
  image.header.num_ranks = kRanks;
  image.header.num_experts = kRanks;
  image.header.top_k = image.header.expert_capacity = 1;
  image.header.chain_rows = image.header.d_model = image.header.d_ff = 1;
  image.header.num_aic = 1;
  image.header.num_aiv = 2;
  image.header.tasks = RefOf(image, image.tasks, kTasks);
  image.header.waits = RefOf(image, image.waits, 2);
  image.header.signals = RefOf(image, image.signals, 4);
  image.header.events = RefOf(image, image.events, 2);
  image.header.queues = RefOf(image, image.queues, 4);
  image.header.queue_tasks = RefOf(image, image.queue_tasks, kTasks);
  for (TaskDesc& task : image.tasks) task.kind = hpmoe::kCombine;
  image.tasks[0].rank = image.tasks[4].rank = 2;
  image.tasks[4].signal_count = 2;
  image.tasks[4].signal_begin = 2;
  image.tasks[0].signal_count = image.tasks[1].signal_count = 1;
  image.tasks[1].kind = hpmoe::kDown;
  image.tasks[1].peer = hpmoe::kRowBlockRange;
  image.tasks[1].signal_begin = 1;
  image.tasks[2].wait_count = 2;
  return image;
}

struct alignas(64) Heap {
  hpmoe::CounterLine events[2];
  hpmoe::CounterLine ready[hpmoe::kReadyLines];
};

// All that a launch reads, and what it leaves.
struct World {
  Image image = MakeImage();
  alignas(64) hpmoe::Constants constants = {
      {1, 0, 0, 0, 0, 0, 0, 0, hpmoe::kOneOfFloats}, {}, {}};
  Heap heaps[kHeaps] = {};
  alignas(64) CoreDiagnosis left[kRanks][3] = {};
  uint64_t heap_begins[kHeaps];
  int32_t plan[kRanks * kRanks] = {};  // no rows at all
};

hpmoe::LaunchArgs ArgsOf(World* world, int32_t rank, int32_t generation) {
  hpmoe::LaunchArgs args = {};
  args.image = reinterpret_cast<uint8_t*>(&world->image);
  args.counts = args.row_base = args.expert_rows = args.expert_base =
      world->plan;
  args.constants = &world->constants;
  args.heaps = world->heap_begins;
  args.events = world->heaps[rank].events;
  args.ready = world->heaps[rank].ready;
  args.diagnosis = world->left[rank];
  args.deadline_us = kDeadlineUs;
  args.rank = rank;
  args.generation = generation;
  return args;
}

ascend_twin::GlobalRange RangeOf(const char* name, const void* begin,
                                 uint64_t bytes, GlobalKind kind) {
  return {name, reinterpret_cast<uint64_t>(begin), bytes, kind};
}

void Launch(World* world, ascend_twin::Mode mode, int32_t generation) {
  for (int i = 0; i < kHeaps; ++i) {
    std::memset(world->heaps[i].events, 0, sizeof(Heap::events));
    world->heap_begins[i] = reinterpret_cast<uint64_t>(&world->heaps[i]);
  }
  std::memset(world->left, 0, sizeof(world->left));
  ascend_twin::LaunchSpec spec;
  spec.kernel = "megakernel_test";
  spec.ranks = kRanks;
  spec.mode = mode;
  spec.seed = 3;
  spec.globals = {
      RangeOf("heaps", world->heaps, sizeof(world->heaps), GlobalKind::kFlags),
      RangeOf("constants", &world->constants, sizeof(world->constants),
              GlobalKind::kConstant),
      RangeOf("diagnosis", world->left, sizeof(world->left),
              GlobalKind::kFilled)};
  spec.entry = [&](int32_t rank) {
    hpmoe::RunMegakernel(ArgsOf(world, rank, generation));
  };
  const auto result = ascend_twin::Launch(spec);
  for (const auto& error : result.errors) ADD_FAILURE() << error.text;
}

std::string Words(const CoreDiagnosis& d) {
  std::string text;
  for (const int32_t word :
       {d.reason, d.task, d.event, d.expected, d.actual, d.tasks_run}) {
    text += std::to_string(word) + " ";
  }
  return text;
}

// The last waited for: event, expected, actual.
void ExpectLeft(const World& world, int rank, int core,
                const CoreDiagnosis& want) {
  EXPECT_EQ(Words(world.left[rank][core]), Words(want))
      << "rank " << rank << ", core " << core;
}

constexpr CoreDiagnosis Ended(int32_t tasks_run) {
  return {hpmoe::kEnded, -1, 0, 0, 0, tasks_run, {}};
}

class Megakernel : public testing::TestWithParam<ascend_twin::Mode> {
 protected:
  World world;
};

// Two launches on the same heaps; ready lines are never reset.
TEST_P(Megakernel, EveryCoreEndsAndSaysHowFarItCame) {
  for (int32_t generation = 1; generation <= 2; ++generation) {
    Launch(&world, GetParam(), generation);
    ExpectLeft(world, 0, 0, Ended(1));
    ExpectLeft(world, 0, 1, Ended(0));
    ExpectLeft(world, 0, 2, {hpmoe::kEnded, -1, 1, 3, 3, 2, {}});
    ExpectLeft(world, 2, 2, Ended(1));
    EXPECT_EQ(world.heaps[0].events[0].value, 3);
    for (const Heap& heap : world.heaps) {
      for (int word = 1; word < 16; ++word) {
        if (word == hpmoe::kCubeWord) continue;
        EXPECT_EQ(heap.events[1].unused[word - 1], 0) << "an add left its word";
      }
    }
  }
}

// The image is of four ranks, of which three start.  Rank 0 waits for rank 3 in
// round 0, rank 1 in round 1, and rank 2's second AIV for its first, which
// waits for rank 0.
TEST_P(Megakernel, ACoreSaysWhichRankItAwaitedInVain) {
  world.image.header.num_ranks = world.image.header.num_experts = kHeaps;
  Launch(&world, GetParam(), 5);
  ExpectLeft(world, 0, 0, Ended(1));
  ExpectLeft(world, 0, 1, {hpmoe::kReadyDeadline, -1, 0, 5, 0, 0, {}});
  ExpectLeft(world, 1, 1, {hpmoe::kReadyDeadline, -1, 1, 5, 0, 0, {}});
  ExpectLeft(world, 2, 2,
             {hpmoe::kReadyDeadline, -1, hpmoe::kAllReady, 5, 0, 0, {}});
  EXPECT_EQ(world.heaps[0].events[0].value, 0)
      << "a core did not wait for ranks";
}

const char* NameOf(const testing::TestParamInfo<ascend_twin::Mode>& mode) {
  constexpr const char* kNames[] = {"InOrder", "Seeded", "Late"};
  return kNames[static_cast<int>(mode.param)];
}

using ascend_twin::Mode;
INSTANTIATE_TEST_SUITE_P(, Megakernel,
                         testing::Values(Mode::kInOrder, Mode::kSeeded,
                                         Mode::kLate),
                         NameOf);

}  // namespace
