// What tiles need, as a device's compiler sees it: no library at all.  Returns
// the number of the first check that fails, 0 if none does.

#include "backend_ascend/device/megakernel/tile_budget.h"

namespace {

using hpmoe::CubeDepths;
using hpmoe::CubeShortage;
using hpmoe::DepthsOf;
using hpmoe::FirstTooLarge;
using hpmoe::ImageHeader;
using hpmoe::Shortage;
using hpmoe::TaskDesc;
using hpmoe::TooLarge;

bool Is(const Shortage& shortage, const char* memory, int64_t needed) {
  if (shortage.memory == nullptr || memory == nullptr) {
    return shortage.memory == memory;
  }
  return __builtin_strcmp(shortage.memory, memory) == 0 &&
         shortage.needed == needed;
}

// Two stages of both sides fit, and are as deep as they can be.
bool Fit(int32_t m, int32_t n, int32_t bytes) {
  const CubeDepths depths = DepthsOf(m, n, bytes);
  const int32_t a = hpmoe::RoundUp(m, 16) * bytes;
  const int32_t b = hpmoe::RoundUp(n, 16) * bytes;
  const int32_t strip = hpmoe::RoundUp(hpmoe::StripOf(m, n), 16) * bytes;
  const int32_t wider = a > strip ? a : strip;
  const int32_t l1 = hpmoe::kL1Bytes - hpmoe::kL1Stages;
  return depths.l0 > 0 && depths.l0 % 16 == 0 && depths.l1 % depths.l0 == 0 &&
         2 * wider * depths.l0 <= 65536 &&
         2 * wider * (depths.l0 + 16) > 65536 &&
         2 * (a + b) * depths.l1 <= l1 &&
         // A stage is whole fractals: 512 bytes are lost at most.
         2 * (a + b) * (depths.l1 + depths.l0) > l1 - 1024;
}

int TestDepths() {
  for (int32_t bytes = 2; bytes <= 4; bytes += 2) {
    for (int32_t m = 1; m <= 512; m += 7) {
      for (int32_t n = 1; n <= 32768 / m && n <= 512; n += 13) {
        if (!Fit(m, n, bytes)) return 1;
      }
    }
  }
  return DepthsOf(513, 16, 4).l0 == 0 ? 0 : 2;
}

int TestStrips() {
  // Half of L0C, then one row of fractals more; all of it; a last strip that is
  // narrower.
  if (hpmoe::StripOf(128, 128) != 128) return 3;
  if (hpmoe::StripOf(129, 128) != 64) return 4;
  if (hpmoe::StripOf(128, 256) != 128) return 5;
  return hpmoe::StripOf(128, 200) == 112 ? 0 : 6;
}

int TestShortage() {
  // The whole of L0C, then one row of fractals more.
  if (!Is(CubeShortage(128, 256, 2, false), nullptr, 0)) return 11;
  if (!Is(CubeShortage(129, 256, 2, false), "L0C", 144 * 256 * 4)) return 12;
  // 512 elements of float32, 1024 of bfloat16.
  if (!Is(CubeShortage(512, 64, 4, false), nullptr, 0)) return 13;
  if (!Is(CubeShortage(513, 16, 4, false), "L0A", 2 * 528 * 64)) return 14;
  if (!Is(CubeShortage(16, 513, 4, false), "L0B", 2 * 528 * 64)) return 15;
  if (!Is(CubeShortage(16, 1024, 2, false), nullptr, 0)) return 16;
  if (!Is(CubeShortage(16, 1025, 2, false), "L0B", 2 * 1040 * 32)) return 17;
  // A carry is float32, whatever the storage, and no wider than the identity.
  if (!Is(CubeShortage(16, 1024, 2, true), "L0B", 2 * 1024 * 64)) return 18;
  if (!Is(CubeShortage(128, 128, 2, true), nullptr, 0)) return 19;
  if (!Is(CubeShortage(129, 16, 2, true), "identity", 129 * 129 * 4)) return 20;
  return 0;
}

// A forward image of `count` tasks of bfloat16.
ImageHeader Header(uint64_t count) {
  ImageHeader h{};
  h.dtype = hpmoe::kBFloat16;
  h.direction = hpmoe::kForward;
  h.num_ranks = h.num_experts = 1;
  h.expert_capacity = h.chain_rows = 64;
  h.tasks.count = count;
  return h;
}

TaskDesc Tile(hpmoe::TaskKind kind, int32_t rows, int32_t cols) {
  TaskDesc task{};
  task.kind = kind;
  task.row_begin = 5;
  task.row_end = 5 + rows;
  task.col_begin = 7;
  task.col_end = 7 + cols;
  return task;
}

int TestImage() {
  // The second task is wide, but of a vector core.
  TaskDesc tasks[3] = {Tile(hpmoe::kGateUp, 128, 256),
                       Tile(hpmoe::kSwiglu, 128, 512),
                       Tile(hpmoe::kDown, 128, 256)};
  if (FirstTooLarge(Header(3), tasks).shortage.memory != nullptr) return 21;
  tasks[2] = Tile(hpmoe::kDown, 128, 257);
  const TooLarge found = FirstTooLarge(Header(3), tasks);
  if (found.task != 2) return 22;
  // Two strips of 144.
  if (!Is(found.shortage, "L0C", 128 * 288 * 4)) return 23;
  // A weight gradient in one link needs no identity, in two it does.
  ImageHeader h = Header(1);
  h.direction = hpmoe::kBackward;
  tasks[0] = Tile(hpmoe::kDownWeightGrad, 144, 64);
  if (FirstTooLarge(h, tasks).shortage.memory != nullptr) return 24;
  h.chain_rows = 32;
  if (!Is(FirstTooLarge(h, tasks).shortage, "identity", 144 * 144 * 4)) {
    return 25;
  }
  // 128 slots of a token share UB.
  h = Header(1);
  h.top_k = 128;
  tasks[0] = Tile(hpmoe::kCombine, 4, 5000);
  if (FirstTooLarge(h, tasks).shortage.memory != nullptr) return 26;
  h.top_k = 129;
  return Is(FirstTooLarge(h, tasks).shortage, "UB", 1472 * 129) ? 0 : 27;
}

}  // namespace

int main() {
  if (const int failed = TestDepths()) return failed;
  if (const int failed = TestStrips()) return failed;
  if (const int failed = TestShortage()) return failed;
  return TestImage();
}
