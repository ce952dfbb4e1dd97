// What tiles need of a core's memories.

#include "backend_ascend/device/megakernel/tile_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>

namespace hpmoe {

bool operator==(const Shortage& a, const Shortage& b) {
  const auto name = [](const Shortage& s) {
    return std::string(s.memory == nullptr ? "" : s.memory);
  };
  return name(a) == name(b) && (name(a).empty() || a.needed == b.needed);
}

std::ostream& operator<<(std::ostream& out, const Shortage& shortage) {
  if (shortage.memory == nullptr) return out << "no shortage";
  return out << shortage.needed << " B of " << shortage.memory;
}

namespace {

const Shortage kNone = {};

Shortage Short(const char* memory, int64_t needed) {
  return {memory, needed, 0};
}

// Two stages of both sides fit, and are as deep as they can be.
void ExpectFit(int32_t m, int32_t n, int32_t bytes) {
  SCOPED_TRACE(testing::Message() << m << " x " << n << " of " << bytes);
  const CubeDepths depths = DepthsOf(m, n, bytes);
  const int32_t unit = bytes == 1 ? 32 : 16;
  const int32_t a = RoundUp(m, 16) * bytes;
  const int32_t b = RoundUp(n, unit) * bytes;
  const int32_t wider =
      std::max(a, RoundUp(StripOf(m, n, bytes), unit) * bytes);
  const int32_t l1 = kL1Bytes - kL1Stages;
  ASSERT_GT(depths.l0, 0);
  EXPECT_EQ(depths.l0 % unit, 0);
  EXPECT_EQ(depths.l1 % depths.l0, 0);
  EXPECT_LE(2 * wider * depths.l0, 65536);
  EXPECT_GT(2 * wider * (depths.l0 + unit), 65536);
  EXPECT_LE(2 * (a + b) * depths.l1, l1);
  // A stage is whole fractals: 512 bytes are lost at most.
  EXPECT_GT(2 * (a + b) * (depths.l1 + depths.l0), l1 - 1024);
}

TEST(TileBudget, DepthsFillTheBuffers) {
  for (const int32_t bytes : {1, 2, 4}) {
    for (int32_t m = 1; m <= 512; m += 7) {
      for (int32_t n = 1; n <= 32768 / m && n <= 512; n += 13) {
        ExpectFit(m, n, bytes);
      }
    }
  }
  EXPECT_EQ(DepthsOf(513, 16, 4).l0, 0);
}

TEST(TileBudget, StripsFitHalfOfL0C) {
  EXPECT_EQ(StripOf(128, 128, 2), 128);
  EXPECT_EQ(StripOf(129, 128, 2), 64);  // one row of fractals more
  EXPECT_EQ(StripOf(128, 256, 2), 128);
  EXPECT_EQ(StripOf(128, 200, 2), 112);  // the last strip is narrower
  EXPECT_EQ(StripOf(128, 200, 1), 128);  // whole squares of bytes
}

TEST(TileBudget, NamesTheMemoryThatIsShort) {
  // The whole of L0C, then one row of fractals more.
  EXPECT_EQ(CubeShortage(128, 256, 2, false), kNone);
  EXPECT_EQ(CubeShortage(129, 256, 2, false), Short("L0C", 144 * 256 * 4));
  // 512 elements of float32, 1024 of bfloat16.
  EXPECT_EQ(CubeShortage(512, 64, 4, false), kNone);
  EXPECT_EQ(CubeShortage(513, 16, 4, false), Short("L0A", 2 * 528 * 64));
  EXPECT_EQ(CubeShortage(16, 513, 4, false), Short("L0B", 2 * 528 * 64));
  EXPECT_EQ(CubeShortage(16, 1024, 2, false), kNone);
  EXPECT_EQ(CubeShortage(16, 1025, 2, false), Short("L0B", 2 * 1040 * 32));
  EXPECT_EQ(CubeShortage(16, 1025, 1, false), Short("L0B", 2 * 1056 * 32));
}

TEST(TileBudget, ACarryIsFloat32AndNoWiderThanTheIdentity) {
  EXPECT_EQ(CubeShortage(16, 1024, 2, true), Short("L0B", 2 * 1024 * 64));
  EXPECT_EQ(CubeShortage(128, 128, 2, true), kNone);
  EXPECT_EQ(CubeShortage(129, 16, 2, true), Short("identity", 129 * 129 * 4));
}

// A forward image of `count` tasks of bfloat16.
ImageHeader Header(uint64_t count) {
  ImageHeader h{};
  h.dtype = kBFloat16;
  h.direction = kForward;
  h.num_ranks = h.num_experts = 1;
  h.expert_capacity = h.chain_rows = 64;
  h.tasks.count = count;
  return h;
}

TaskDesc Tile(TaskKind kind, int32_t rows, int32_t cols) {
  TaskDesc task{};
  task.kind = kind;
  task.row_begin = 5;
  task.row_end = 5 + rows;
  task.col_begin = 7;
  task.col_end = 7 + cols;
  return task;
}

TEST(TileBudget, NamesTheFirstTaskThatIsTooLarge) {
  // The second task is wide, but of a vector core.
  TaskDesc tasks[3] = {Tile(kGateUp, 128, 256), Tile(kSwiglu, 128, 512),
                       Tile(kDown, 128, 256)};
  EXPECT_EQ(FirstTooLarge(Header(3), tasks).shortage, kNone);
  tasks[2] = Tile(kDown, 128, 257);
  const TooLarge found = FirstTooLarge(Header(3), tasks);
  EXPECT_EQ(found.task, 2u);
  // Two strips of 144.
  EXPECT_EQ(found.shortage, Short("L0C", 128 * 288 * 4));
}

TEST(TileBudget, AWeightGradientNeedsAnIdentityInTwoLinks) {
  ImageHeader h = Header(1);
  h.direction = kBackward;
  const TaskDesc task = Tile(kDownWeightGrad, 144, 64);
  EXPECT_EQ(FirstTooLarge(h, &task).shortage, kNone);
  h.chain_rows = 32;
  EXPECT_EQ(FirstTooLarge(h, &task).shortage, Short("identity", 144 * 144 * 4));
}

TEST(TileBudget, SlotsOfATokenShareUb) {
  ImageHeader h = Header(1);
  h.top_k = 128;
  const TaskDesc task = Tile(kCombine, 4, 5000);
  EXPECT_EQ(FirstTooLarge(h, &task).shortage, kNone);
  h.top_k = 129;
  EXPECT_EQ(FirstTooLarge(h, &task).shortage, Short("UB", 1472 * 129));
}

}  // namespace
}  // namespace hpmoe
