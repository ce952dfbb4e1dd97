// Small kernels for the engine: moves and sums as bare instructions, the memory
// of a launch, and a pair of cores of which one waits for the other.

#ifndef BACKEND_ASCEND_TWIN_ENGINE_KERNELS_TESTING_H_
#define BACKEND_ASCEND_TWIN_ENGINE_KERNELS_TESTING_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend_ascend/twin/api/flags_and_barriers.h"
#include "backend_ascend/twin/api/system.h"
#include "backend_ascend/twin/engine/kernel_launch.h"

namespace twin_kernels {

using namespace ascend_twin;  // NOLINT: a program of its own
using AscendC::CrossCoreSetFlag;
using AscendC::CrossCoreWaitFlag;
using AscendC::GetBlockIdx;
using AscendC::GetSystemCycle;
using AscendC::GlobalTensor;
using AscendC::HardEvent;
using AscendC::InitSocState;
using AscendC::LocalTensor;
using AscendC::PipeBarrier;
using AscendC::SetFlag;
using AscendC::TPosition;
using AscendC::WaitFlag;

inline Span OnUb(uint64_t begin, uint64_t bytes) {
  return {Memory::kUb, begin, bytes};
}

inline Span OnGm(const void* address, uint64_t bytes) {
  return {Memory::kGm, reinterpret_cast<uint64_t>(address), bytes};
}

// `bytes` bytes from one memory to another.
inline void Move(const char* name, Pipe pipe, const Span& to, const Span& from,
                 Site site, bool atomic = false) {
  Instruction move{name, pipe, site, {from}, {to}, nullptr, {}};
  move.work.bytes = from.bytes;
  move.atomic = atomic;
  move.run = [to, from, atomic] {
    char* const target = Bytes(to.memory, to.begin);
    const char* const source = Bytes(from.memory, from.begin);
    if (!atomic) {
      std::memcpy(target, source, from.bytes);
      return;
    }
    int32_t sum[2];
    std::memcpy(&sum[0], target, sizeof(int32_t));
    std::memcpy(&sum[1], source, sizeof(int32_t));
    sum[0] += sum[1];
    std::memcpy(target, sum, sizeof(int32_t));
  };
  Issue(std::move(move));
}

inline void MoveIn(uint64_t to, const void* from, uint64_t bytes,
                   Site site = Site::Here()) {
  Move("MoveIn", Pipe::kMte2, OnUb(to, bytes), OnGm(from, bytes), site);
}

inline void MoveOut(void* to, uint64_t from, uint64_t bytes,
                    Site site = Site::Here()) {
  Move("MoveOut", Pipe::kMte3, OnGm(to, bytes), OnUb(from, bytes), site);
}

// Adds the int32 at `from` in UB to that at `to`.
inline void AddOut(void* to, uint64_t from, Site site = Site::Here()) {
  Move("AddOut", Pipe::kMte3, OnGm(to, 4), OnUb(from, 4), site, true);
}

// to = a + b, int32.
inline void Sum(uint64_t to, uint64_t a, uint64_t b, uint32_t count,
                Site site = Site::Here()) {
  const uint64_t bytes = uint64_t{count} * sizeof(int32_t);
  Instruction sum{"Sum",
                  Pipe::kV,
                  site,
                  {OnUb(a, bytes), OnUb(b, bytes)},
                  {OnUb(to, bytes)},
                  nullptr,
                  {}};
  sum.run = [=] {
    const auto* x = reinterpret_cast<const int32_t*>(Bytes(Memory::kUb, a));
    const auto* y = reinterpret_cast<const int32_t*>(Bytes(Memory::kUb, b));
    auto* z = reinterpret_cast<int32_t*>(Bytes(Memory::kUb, to));
    for (uint32_t i = 0; i < count; ++i) z[i] = x[i] + y[i];
  };
  Issue(std::move(sum));
}

inline GlobalRange RangeOf(const char* name, const std::vector<int32_t>& words,
                           GlobalKind kind, int32_t rank = 0) {
  return {name, reinterpret_cast<uint64_t>(words.data()),
          words.size() * sizeof(int32_t), kind, rank};
}

// Sets fields of a launch, such as its mode.
using Settings = std::function<void(LaunchSpec*)>;

constexpr int kWords = 64;
constexpr uint64_t kBytes = kWords * sizeof(int32_t);

struct alignas(64) Line {
  int32_t word[16] = {};
};

// Global memory of a launch: constants, what cores write, words they poll.
struct World {
  std::vector<int32_t> in = std::vector<int32_t>(kWords, 3);
  std::vector<int32_t> out = std::vector<int32_t>(2 * kWords, 0);
  Line flags[4];
  Line many[40];
  Line shared[2];
  char bytes[8] = {};

  LaunchSpec Spec() {
    LaunchSpec spec;
    spec.kernel = "drill";
    spec.max_idle_cycles = 1 << 20;
    spec.max_instructions = 1 << 14;
    spec.globals = {
        RangeOf("in", in, GlobalKind::kConstant),
        RangeOf("out", out, GlobalKind::kEmpty),
        {"flags", reinterpret_cast<uint64_t>(flags), sizeof(flags),
         GlobalKind::kFlags},
        {"many", reinterpret_cast<uint64_t>(many), sizeof(many),
         GlobalKind::kFlags},
        {"shared", reinterpret_cast<uint64_t>(shared), sizeof(shared),
         GlobalKind::kFilled},
        {"odd", reinterpret_cast<uint64_t>(bytes + 1), 7, GlobalKind::kFilled}};
    return spec;
  }
};

inline GlobalTensor<int32_t> Words(Line* line) {
  GlobalTensor<int32_t> words;
  words.SetGlobalBuffer(line->word, 16);
  return words;
}

inline void Clean(const GlobalTensor<int32_t>& line) {
  AscendC::DataCacheCleanAndInvalid<int32_t,
                                    AscendC::CacheLine::SINGLE_CACHE_LINE,
                                    AscendC::DcciDst::CACHELINE_OUT>(line);
}

// Polls a word until it is `least`; false after `deadline` cycles.
inline bool Await(Line* line, int32_t least, int64_t deadline = 1000) {
  const GlobalTensor<int32_t> words = Words(line);
  const int64_t begin = GetSystemCycle();
  while (GetSystemCycle() - begin < deadline) {
    Clean(words);
    if (words.GetValue(0) >= least) return true;
  }
  return false;
}

template <HardEvent event>
void Order(bool wanted = true) {
  if (!wanted) return;
  SetFlag<event>(0);
  WaitFlag<event>(0);
}

// Adds one to a word of flags, after what is in MTE3.
inline void Signal(Line* line, bool scalar_flag = true, bool barrier = true) {
  const LocalTensor<int32_t> one(TPosition::VECOUT, 4096, 8);
  one.SetValue(0, 1);
  Order<HardEvent::S_MTE3>(scalar_flag);
  if (barrier) PipeBarrier<PIPE_MTE3>();
  AddOut(line->word, 4096);
}

inline void End() { PipeBarrier<PIPE_ALL>(); }

// One AIV computes and signals, the other waits and reads.  `without` is the
// call that is left out, 0: none.
enum Call {
  kAll,
  kIn,
  kBetweenSums,
  kOut,
  kAgain,
  kStore,
  kBeforeSignal,
  kClean,
  kWait,
  kLast
};

inline void Produce(World* world, Call without) {
  for (int tile = 0; tile < 2; ++tile) {
    if (tile == 1) Order<HardEvent::V_MTE2>(without != kAgain);
    MoveIn(0, world->in.data(), kBytes);
    Order<HardEvent::MTE2_V>(without != kIn);
    if (tile == 1) Order<HardEvent::MTE3_V>();
    Sum(kBytes, 0, 0, kWords);
    if (without != kBetweenSums) PipeBarrier<PIPE_V>();
    Sum(kBytes, kBytes, kBytes, kWords);
    Order<HardEvent::V_MTE3>(without != kOut);
    MoveOut(world->out.data() + tile * kWords, kBytes, kBytes);
  }
  Signal(world->flags, without != kStore, without != kBeforeSignal);
}

inline void Consume(World* world, Call without) {
  const GlobalTensor<int32_t> words = Words(world->flags);
  while (without != kWait) {
    if (without != kClean) Clean(words);
    if (words.GetValue(0) == 1) break;
    GetSystemCycle();
  }
  MoveIn(0, world->out.data(), 2 * kBytes);
}

inline void Pair(World* world, Call without) {
  InitSocState();
  if ASCEND_IS_AIV {
    if (GetBlockIdx() == 1) Produce(world, without);
    if (GetBlockIdx() == 0) Consume(world, without);
  }
  if (without != kLast) End();
}

// The names of the pair without each call.
constexpr const char* kPairs[] = {
    "right",     "no MTE2_V",    "no PIPE_V", "no V_MTE3",     "no V_MTE2",
    "no S_MTE3", "no PIPE_MTE3", "no dcci",   "no event wait", "no PIPE_ALL"};

inline LaunchResult RunPair(Call without, const Settings& set) {
  World world;
  LaunchSpec spec = world.Spec();
  set(&spec);
  spec.entry = [&](int32_t) { Pair(&world, without); };
  LaunchResult result = Launch(spec);
  if (without == kAll && world.out != std::vector<int32_t>(2 * kWords, 12)) {
    throw std::runtime_error("the right pair left wrong sums");
  }
  return result;
}

}  // namespace twin_kernels

#endif  // BACKEND_ASCEND_TWIN_ENGINE_KERNELS_TESTING_H_
