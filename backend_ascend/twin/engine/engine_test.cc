// Small kernels, right and with one thing wrong, in each mode: prints what the
// twin says of each, one a line.

#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend_ascend/twin/api/sync.h"
#include "backend_ascend/twin/api/system.h"
#include "backend_ascend/twin/engine/launch.h"

namespace {

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

// -- Moves and sums as bare instructions.

Span OnUb(uint64_t begin, uint64_t bytes) {
  return {Memory::kUb, begin, bytes};
}

Span OnGm(const void* address, uint64_t bytes) {
  return {Memory::kGm, reinterpret_cast<uint64_t>(address), bytes};
}

// `bytes` bytes from one memory to another.
void Move(const char* name, Pipe pipe, const Span& to, const Span& from,
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

void MoveIn(uint64_t to, const void* from, uint64_t bytes,
            Site site = Site::Here()) {
  Move("MoveIn", Pipe::kMte2, OnUb(to, bytes), OnGm(from, bytes), site);
}

void MoveOut(void* to, uint64_t from, uint64_t bytes,
             Site site = Site::Here()) {
  Move("MoveOut", Pipe::kMte3, OnGm(to, bytes), OnUb(from, bytes), site);
}

// Adds the int32 at `from` in UB to that at `to`.
void AddOut(void* to, uint64_t from, Site site = Site::Here()) {
  Move("AddOut", Pipe::kMte3, OnGm(to, 4), OnUb(from, 4), site, true);
}

// to = a + b, int32.
void Sum(uint64_t to, uint64_t a, uint64_t b, uint32_t count,
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

GlobalRange RangeOf(const char* name, const std::vector<int32_t>& words,
                    GlobalKind kind, int32_t rank = 0) {
  return {name, reinterpret_cast<uint64_t>(words.data()),
          words.size() * sizeof(int32_t), kind, rank};
}

// "ok", or the kind of each error and its text.
void Print(const char* name, const LaunchResult& result) {
  if (result.ok()) std::printf("%s: ok\n", name);
  for (const Error& error : result.errors) {
    std::vector<Place> places = error.others;
    places.push_back(error.at);
    for (const Place& place : places) {
      if (place.call && place.site.file) continue;
      std::printf("%s: an error has a place without a name\n", name);
    }
    std::printf("%s: %s [%s] %s\n", name, NameOf(error.kind),
                error.missing.c_str(), error.text.c_str());
  }
}

// -- Kernels.

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

GlobalTensor<int32_t> Words(Line* line) {
  GlobalTensor<int32_t> words;
  words.SetGlobalBuffer(line->word, 16);
  return words;
}

void Clean(const GlobalTensor<int32_t>& line) {
  AscendC::DataCacheCleanAndInvalid<int32_t,
                                    AscendC::CacheLine::SINGLE_CACHE_LINE,
                                    AscendC::DcciDst::CACHELINE_OUT>(line);
}

// Polls a word until it is `least`; false after `deadline` cycles.
bool Await(Line* line, int32_t least, int64_t deadline = 1000) {
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
void Signal(Line* line, bool scalar_flag = true, bool barrier = true) {
  const LocalTensor<int32_t> one(TPosition::VECOUT, 4096, 8);
  one.SetValue(0, 1);
  Order<HardEvent::S_MTE3>(scalar_flag);
  if (barrier) PipeBarrier<PIPE_MTE3>();
  AddOut(line->word, 4096);
}

void End() { PipeBarrier<PIPE_ALL>(); }

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

void Produce(World* world, Call without) {
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

void Consume(World* world, Call without) {
  const GlobalTensor<int32_t> words = Words(world->flags);
  while (without != kWait) {
    if (without != kClean) Clean(words);
    if (words.GetValue(0) == 1) break;
    GetSystemCycle();
  }
  MoveIn(0, world->out.data(), 2 * kBytes);
}

void Pair(World* world, Call without) {
  InitSocState();
  if ASCEND_IS_AIV {
    if (GetBlockIdx() == 1) Produce(world, without);
    if (GetBlockIdx() == 0) Consume(world, without);
  }
  if (without != kLast) End();
}

void RunPairs(const char* mode, const std::function<void(LaunchSpec*)>& set) {
  constexpr const char* kNames[] = {
      "right",     "no MTE2_V",    "no PIPE_V", "no V_MTE3",     "no V_MTE2",
      "no S_MTE3", "no PIPE_MTE3", "no dcci",   "no event wait", "no PIPE_ALL"};
  for (int call = kAll; call <= kLast; ++call) {
    World world;
    LaunchSpec spec = world.Spec();
    set(&spec);
    spec.entry = [&](int32_t) { Pair(&world, static_cast<Call>(call)); };
    Print((std::string(mode) + "; " + kNames[call]).c_str(), Launch(spec));
    if (call == kAll && world.out != std::vector<int32_t>(2 * kWords, 12)) {
      std::printf("wrong sums\n");
    }
  }
}

// A kernel of one AIV (`aic`: of the AIC).
struct Drill {
  const char* name;
  std::function<void(World*)> run;
  bool aic = false;
};

void Twice(World* world) {
  MoveIn(0, world->in.data(), kBytes);
  SetFlag<HardEvent::MTE2_V>(0);
  MoveIn(kBytes, world->in.data(), kBytes);
  SetFlag<HardEvent::MTE2_V>(0);
  WaitFlag<HardEvent::MTE2_V>(0);
  Sum(512, 0, 0, kWords);
  WaitFlag<HardEvent::MTE2_V>(0);
}

const Drill kFlagDrills[] = {
    {"a flag set twice", Twice},
    {"a flag left over", [](World*) { SetFlag<HardEvent::MTE2_V>(3); }},
    {"a flag never set", [](World*) { WaitFlag<HardEvent::MTE2_V>(2); }},
    {"the scalar waits for ever", [](World*) { WaitFlag<HardEvent::V_S>(1); }},
    {"an event of an AIC", [](World*) { SetFlag<HardEvent::M_FIX>(0); }},
    {"an id too high", [](World*) { SetFlag<HardEvent::MTE2_V>(6); }},
    {"a bit of control",
     [](World*) { set_ctrl(sbitset1(sbitset1(get_ctrl(), 48), 59)); }},
    {"a barrier of another core", [](World*) { PipeBarrier<PIPE_M>(); }},
    {"an event of an AIV", [](World*) { SetFlag<HardEvent::V_S>(0); }, true},
    {"a scalar load on an AIC",
     [](World* w) {
       const Span l1{Memory::kL1, 0, sizeof(Line)};
       Move("In", Pipe::kMte2, l1, OnGm(w->in.data(), sizeof(Line)),
            Site::Here());
       Order<HardEvent::MTE2_MTE3>();
       Move("Out", Pipe::kMte3, OnGm(w->shared, sizeof(Line)), l1,
            Site::Here());
       Words(w->shared).GetValue(0);
     },
     true},
};

// Reads bytes of UB.
void Look(uint64_t begin, uint64_t bytes, bool loose) {
  Span from = OnUb(begin, bytes);
  from.loose = loose;
  Move("Look", Pipe::kV, OnUb(kBytes, bytes), from, Site::Here());
}

const Drill kMemoryDrills[] = {
    {"beyond UB",
     [](World* w) { MoveIn((184 << 10) - 128, w->in.data(), kBytes); }},
    {"UB on an AIC", [](World* w) { MoveIn(0, w->in.data(), kBytes); }, true},
    {"vector work on an AIC", [](World*) { Sum(0, 0, 0, 8); }, true},
    {"outside", [](World* w) { MoveIn(0, w->in.data() + 8, kBytes); }},
    {"a constant", [](World* w) { MoveOut(w->in.data(), 0, kBytes); }},
    {"nobody wrote UB", [](World*) { Sum(0, 256, 512, 8); }},
    {"nobody wrote it", [](World* w) { MoveIn(0, w->out.data(), 32); }},
    {"a byte that nobody wrote",
     [](World* w) {
       MoveIn(0, w->in.data(), 7);
       Order<HardEvent::MTE2_V>();
       Look(0, 8, false);
     }},
    {"padding that nobody wrote", [](World*) { Look(0, 8, true); }},
    {"padding before it is there",
     [](World* w) {
       MoveIn(0, w->in.data(), 8);
       Look(0, 8, true);
     }},
    {"an odd byte", [](World* w) { MoveIn(0, w->bytes + 1, 7); }},
    {"a scalar store after a read",
     [](World* w) {
       MoveIn(0, w->in.data(), kBytes);
       Order<HardEvent::MTE2_V>();
       Sum(kBytes, 0, 0, kWords);
       LocalTensor<int32_t>(TPosition::VECIN, 0, 8).SetValue(0, 1);
     }},
    {"a scalar load of a sum",
     [](World* w) {
       MoveIn(0, w->in.data(), kBytes);
       Order<HardEvent::MTE2_V>();
       Sum(kBytes, 0, 0, kWords);
       const LocalTensor<int32_t> sums(TPosition::VECIN, kBytes, 8);
       if (sums.GetValue(3) != 2 * w->in[3]) std::printf("a stale sum\n");
     }},
    {"a scalar load before a wait",
     [](World* w) {
       MoveIn(0, w->in.data(), kBytes);
       WaitFlag<HardEvent::S_MTE2>(0);
       LocalTensor<int32_t>(TPosition::VECIN, 0, 8).GetValue(0);
       SetFlag<HardEvent::S_MTE2>(0);
     }},
    {"a move behind a scalar load",
     [](World* w) {
       MoveIn(0, w->in.data(), kBytes);
       MoveIn(kBytes, w->in.data(), kBytes);
       LocalTensor<int32_t>(TPosition::VECIN, 0, 8).GetValue(0);
       Sum(2 * kBytes, kBytes, kBytes, kWords);
     }},
    {"a wait behind a scalar load",
     [](World* w) {
       MoveIn(0, w->in.data(), kBytes);
       Order<HardEvent::MTE2_V>();
       Sum(2 * kBytes, 0, 0, kWords);
       MoveIn(kBytes, w->in.data(), kBytes);
       SetFlag<HardEvent::MTE2_V>(1);
       WaitFlag<HardEvent::MTE2_V>(1);
       LocalTensor<int32_t>(TPosition::VECIN, 2 * kBytes, 8).GetValue(0);
       MoveOut(w->out.data(), kBytes, kBytes);
     }},
    {"what a loaded sum waited for",
     [](World* w) {
       MoveIn(0, w->in.data(), kBytes);
       Order<HardEvent::MTE2_V>();
       Sum(kBytes, 0, 0, kWords);
       LocalTensor<int32_t>(TPosition::VECIN, kBytes, 8).GetValue(0);
       MoveOut(w->out.data(), 0, kBytes);
     }},
    {"a sum behind a scalar store",
     [](World* w) {
       MoveIn(0, w->in.data(), kBytes);
       Order<HardEvent::MTE2_MTE3>();
       LocalTensor<int32_t>(TPosition::VECOUT, 0, 8).SetValue(0, 1);
       MoveOut(w->out.data(), 0, kBytes);
       Order<HardEvent::MTE2_V>();
       Sum(32, 64, 64, 8);
       Order<HardEvent::V_S>();
     }},
    {"a sum of a sum, beside its store",
     [](World* w) {
       MoveIn(0, w->in.data(), kBytes);
       Order<HardEvent::MTE2_V>();
       Sum(kBytes, 0, 0, kWords);
       Order<HardEvent::V_MTE3>();
       MoveOut(w->out.data(), kBytes, kBytes);
       Sum(2 * kBytes, kBytes, kBytes, kWords);
     }},
    {"one target twice",
     [](World* w) {
       MoveIn(0, w->in.data(), kBytes);
       MoveIn(32, w->in.data(), 32);
     }},
    {"own write, line kept",
     [](World* w) {
       const GlobalTensor<int32_t> words = Words(w->shared);
       const int32_t old = words.GetValue(0);
       LocalTensor<int32_t>(TPosition::VECOUT, 0, 8).SetValue(0, old + 1);
       Order<HardEvent::S_MTE3>();
       MoveOut(w->shared, 0, 4);
       Order<HardEvent::MTE3_S>();
       words.GetValue(0);
     }},
    {"own write, line stored to",
     [](World* w) {
       const GlobalTensor<int32_t> words = Words(w->shared);
       words.SetValue(1, 7);
       LocalTensor<int32_t>(TPosition::VECOUT, 0, 8).SetValue(0, 1);
       Order<HardEvent::S_MTE3>();
       MoveOut(w->shared, 0, 4);
       Order<HardEvent::MTE3_S>();
       Clean(words);
     }},
    {"never cleaned", [](World* w) { Words(w->shared).SetValue(1, 7); }},
    {"no dsb",
     [](World* w) {
       Words(w->shared).SetValue(0, 7);
       Clean(Words(w->shared));
       MoveIn(0, w->shared, 32);
     }},
};

void RunDrill(const char* mode, const Drill& drill,
              const std::function<void(LaunchSpec*)>& set) {
  World world;
  LaunchSpec spec = world.Spec();
  set(&spec);
  spec.entry = [&](int32_t) {
    InitSocState();
    const bool aic = ThisCoreType() == CoreType::kAic;
    if (aic == drill.aic && GetBlockIdx() == 0) drill.run(&world);
    End();
  };
  Print((std::string(mode) + "; " + drill.name).c_str(), Launch(spec));
}

// Several cores: what each does.
struct Together {
  const char* name;
  std::function<void(World*)> aic;
  std::function<void(World*)> aiv0;
  std::function<void(World*)> aiv1;
};

// What a core does: a function of its arguments behind the world.
template <class... T, class... U>
std::function<void(World*)> Do(void (*call)(World*, T...), U... values) {
  return [=](World* world) { call(world, values...); };
}

void Sets(World*, int count) {
  for (int i = 0; i < count; ++i) CrossCoreSetFlag<2, PIPE_FIX>(5);
}

void Waits(World*, int count) {
  for (int i = 0; i < count; ++i) CrossCoreWaitFlag(5);
}

void FillBytes(World* world, int begin, int bytes) {
  MoveIn(0, world->in.data(), bytes);
  Order<HardEvent::MTE2_MTE3>();
  MoveOut(reinterpret_cast<char*>(world->out.data()) + begin, 0, bytes);
}

void FillOut(World* world, int first) {
  MoveIn(0, world->in.data(), kBytes);
  Order<HardEvent::MTE2_MTE3>();
  MoveOut(world->out.data() + first, 0, kBytes);
}

void Nothing(World*) {}

void Deadline(World* world) {
  // Whoever waits in vain leaves something else than who does not.
  if (Await(world->flags, 1)) CrossCoreSetFlag<1, PIPE_MTE3>(0);
}

// Many waits that are met: none of them lets time run faster.
void ManyWaits(World* world) {
  Await(world->flags, 1, int64_t{1} << 60);
  for (Line& line : world->many) {
    while (Words(&line).GetValue(0) != 0) {
    }
    Clean(Words(&line));
  }
}

// Many tasks, each of which looks at the clock and writes; none signals.
void ManyTasks(World* world) {
  for (int task = 0; task < 2000; ++task) {
    const int64_t begin = GetSystemCycle();
    FillOut(world, 0);
    End();
    if (GetSystemCycle() - begin > 1000) CrossCoreSetFlag<1, PIPE_MTE3>(0);
  }
}

// Waits for a word by moves into UB.
void PollByMoves(World* world) {
  for (int32_t seen = 0; seen == 0;) {
    MoveIn(0, world->flags + 3, 32);
    Order<HardEvent::MTE2_S>();
    seen = LocalTensor<int32_t>(TPosition::VECIN, 0, 8).GetValue(0);
    Order<HardEvent::S_MTE2>();
  }
  MoveIn(kBytes, world->out.data(), kBytes);
}

void FillAndSignal(World* world) {
  FillOut(world, 0);
  Signal(world->flags + 3);
}

void ScalarPublish(World* world, bool synchronise) {
  const GlobalTensor<int32_t> data = Words(world->shared);
  const GlobalTensor<int32_t> ready = Words(world->flags + 1);
  data.SetValue(0, 42);
  Clean(data);
  if (synchronise) AscendC::DataSyncBarrier<AscendC::MemDsbT::DDR>();
  ready.SetValue(0, 1);
  Clean(ready);
}

void ScalarLearn(World* world) {
  if (!Await(world->flags + 1, 1)) std::printf("never came\n");
  Clean(Words(world->shared));
  const int32_t value = Words(world->shared).GetValue(0);
  if (value != 42) std::printf("wrong value\n");
}

// A payload and its flag, polled words both: of one line, by the scalar unit;
// of two, by MTE3.
enum class Unit { kScalar, kMoves };

GlobalTensor<int32_t> Payload(World* world, Unit unit) {
  return unit == Unit::kScalar ? Words(world->flags + 1)[8]
                               : Words(world->flags + 2);
}

void PublishWords(World* world, Unit unit, bool synchronise) {
  if (unit == Unit::kMoves) {
    MoveIn(0, world->in.data(), kBytes);
    Order<HardEvent::MTE2_MTE3>();
    MoveOut(world->flags[2].word, 0, 32);
    if (synchronise) PipeBarrier<PIPE_MTE3>();
    return MoveOut(world->flags[1].word, 0, 32);
  }
  for (auto words : {Payload(world, unit), Words(world->flags + 1)}) {
    words.SetValue(0, 3);
    Clean(words);
    if (words.GetValue(0) != 3) throw std::runtime_error("own store unseen");
    if (synchronise) AscendC::DataSyncBarrier<AscendC::MemDsbT::DDR>();
  }
}

void LearnWords(World* world, Unit unit) {
  if (!Await(world->flags + 1, 1)) std::printf("never came\n");
  Clean(Payload(world, unit));
  if (Payload(world, unit).GetValue(0) == 3) return;
  throw std::runtime_error("read too early");
}

// Each of two words is polled: their order is nobody's.
void LearnBoth(World* world, Unit unit) {
  while (Payload(world, unit).GetValue(0) == 0) Clean(Payload(world, unit));
  LearnWords(world, unit);
}

const Together kTogether[] = {
    {"15 sets", Do(Sets, 15), Do(Waits, 15), Do(Waits, 15)},
    {"16 sets", Do(Sets, 16),
     [](World* w) {
       Await(w->flags, 1);
       Waits(w, 16);
     },
     Do(Waits, 16)},
    {"a set left over", Do(Sets, 2), Do(Waits, 2), Do(Waits, 1)},
    {"only one of the AIVs sets", [](World*) { CrossCoreWaitFlag(3); },
     [](World*) { CrossCoreSetFlag<2, PIPE_MTE3>(3); }, Nothing},
    {"both AIVs set", [](World*) { CrossCoreWaitFlag(3); },
     [](World*) { CrossCoreSetFlag<2, PIPE_MTE3>(3); },
     [](World*) { CrossCoreSetFlag<2, PIPE_MTE3>(3); }},
    {"a cross flag orders", Nothing,
     [](World* w) {
       FillOut(w, 0);
       CrossCoreSetFlag<1, PIPE_MTE3>(4);
       CrossCoreWaitFlag(4);
     },
     [](World* w) {
       CrossCoreSetFlag<1, PIPE_MTE3>(4);
       CrossCoreWaitFlag(4);
       MoveIn(0, w->out.data(), kBytes);
     }},
    {"of another pipe", Nothing,
     [](World* w) {
       FillOut(w, 0);
       CrossCoreSetFlag<1, PIPE_MTE2>(4);
       CrossCoreWaitFlag(4);
     },
     [](World* w) {
       CrossCoreSetFlag<1, PIPE_MTE2>(4);
       CrossCoreWaitFlag(4);
       FillOut(w, 0);
     }},
    {"neighbours", Nothing, Do(FillOut, 0), Do(FillOut, kWords)},
    {"neighbours by a byte", Nothing, Do(FillBytes, 0, 7), Do(FillBytes, 7, 9)},
    {"two write one", Nothing, Do(FillOut, 0), Do(FillOut, kWords / 2)},
    {"two add to one", Nothing, [](World* w) { Signal(w->shared); },
     [](World* w) { Signal(w->shared); }},
    {"a deadline", Nothing, Deadline, Nothing},
    {"a poll without end", Nothing,
     [](World* w) { Await(w->flags, 1, int64_t{1} << 60); }, Nothing},
    {"many tasks without a signal", Nothing, ManyTasks, Nothing},
    {"many waits that are met", Nothing, ManyWaits,
     [](World* w) { Signal(w->flags); }},
    {"one waits for one that is stuck", Nothing,
     [](World* w) {
       if (!Await(w->flags, 1)) WaitFlag<HardEvent::V_S>(5);
     },
     [](World* w) {
       FillOut(w, 0);
       WaitFlag<HardEvent::MTE3_S>(2);
       Signal(w->flags);
     }},
    {"polls by moves", Nothing, PollByMoves, FillAndSignal},
    {"polls by moves after", Nothing, FillAndSignal, PollByMoves},
    {"polls by moves without end", Nothing, PollByMoves, Nothing},
    {"scalar stores", Nothing, Do(ScalarPublish, true), ScalarLearn},
    {"scalar stores without dsb", Nothing, Do(ScalarPublish, false),
     ScalarLearn},
    {"polled payload by stores", Nothing, Do(PublishWords, Unit::kScalar, true),
     Do(LearnWords, Unit::kScalar)},
    {"polled payload by stores without dsb", Nothing,
     Do(PublishWords, Unit::kScalar, false), Do(LearnWords, Unit::kScalar)},
    {"two polled words by stores", Nothing,
     Do(PublishWords, Unit::kScalar, false), Do(LearnBoth, Unit::kScalar)},
    {"polled payload by moves", Nothing, Do(PublishWords, Unit::kMoves, true),
     Do(LearnWords, Unit::kMoves)},
    {"polled payload by moves without barrier", Nothing,
     Do(PublishWords, Unit::kMoves, false), Do(LearnWords, Unit::kMoves)},
    {"two polled words by moves", Nothing,
     Do(PublishWords, Unit::kMoves, false), Do(LearnBoth, Unit::kMoves)},
    {"SyncAll", [](World*) { AscendC::SyncAll<false>(); },
     [](World* w) {
       FillOut(w, 0);
       AscendC::SyncAll<false>();
       MoveIn(0, w->out.data(), 2 * kBytes);
     },
     [](World* w) {
       FillOut(w, kWords);
       AscendC::SyncAll<false>();
       MoveIn(0, w->out.data(), 2 * kBytes);
     }},
};

void RunTogether(const char* mode, const Together& together,
                 const std::function<void(LaunchSpec*)>& set) {
  World world;
  LaunchSpec spec = world.Spec();
  set(&spec);
  spec.entry = [&](int32_t) {
    InitSocState();
    if ASCEND_IS_AIC {
      together.aic(&world);
    } else {
      (GetBlockIdx() == 0 ? together.aiv0 : together.aiv1)(&world);
    }
    End();
  };
  Print((std::string(mode) + "; " + together.name).c_str(), Launch(spec));
}

void RunMode(const char* mode, const std::function<void(LaunchSpec*)>& set) {
  RunPairs(mode, set);
  for (const Drill& drill : kFlagDrills) RunDrill(mode, drill, set);
  for (const Drill& drill : kMemoryDrills) RunDrill(mode, drill, set);
  for (const Together& drill : kTogether) RunTogether(mode, drill, set);
}

// The order in which instructions run, as their numbers of issue.
std::string Trace(Mode mode, uint64_t seed,
                  const std::function<void(World*)>& kernel) {
  World world;
  LaunchSpec spec = world.Spec();
  spec.mode = mode;
  spec.seed = seed;
  std::string trace;
  int issued = 0;
  spec.on_issue = [&](int64_t, Instruction* work) {
    work->run = [&trace, number = issued++, run = work->run] {
      trace += " " + std::to_string(number);
      run();
    };
  };
  spec.entry = [&](int32_t) { kernel(&world); };
  Launch(spec);
  return trace;
}

void RightPair(World* world) { Pair(world, kAll); }

// Two sums into a word, a barrier, and a third, by AIV 0.
void ThreeSums(World* world) {
  InitSocState();
  if (ThisCoreType() == CoreType::kAiv && GetBlockIdx() == 0) {
    LocalTensor<int32_t>(TPosition::VECOUT, 4096, 8).SetValue(0, 1);
    Order<HardEvent::S_MTE3>();
    for (int i = 0; i < 3; ++i) {
      if (i == 2) PipeBarrier<PIPE_MTE3>();
      AddOut(world->shared, 4096);
    }
  }
  End();
}

void PrintRefused() {
  World world;
  const LaunchSpec right = world.Spec();
  const auto print = [&right](const std::function<void(LaunchSpec*)>& set) {
    LaunchSpec spec = right;
    spec.entry = [](int32_t) {};
    set(&spec);
    Print("request", Launch(spec));
  };
  print([](LaunchSpec* spec) { spec->entry = nullptr; });
  print([](LaunchSpec* spec) { spec->blocks = 0; });
  print([](LaunchSpec* spec) { spec->globals.push_back(spec->globals[1]); });
  print([](LaunchSpec* spec) {
    spec->entry = [](int32_t) { throw std::runtime_error("thrown"); };
  });
}

void PrintCounts() {
  World world;
  LaunchSpec spec = world.Spec();
  spec.entry = [&](int32_t) {
    OnTask(7);
    Pair(&world, kAll);
    OnTask(-1);
  };
  for (const Counts& c : Launch(spec).counts) {
    const auto of = [&c](Pipe p) { return c.bytes[static_cast<int>(p)]; };
    const auto ran = [&c](Pipe p) {
      return c.instructions[static_cast<int>(p)];
    };
    std::printf(
        "%s %d tag %d: MTE2 %d %d B, MTE3 %d %d B, V %d, waits %d, "
        "barriers %d\n",
        NameOf(c.core.type), c.core.index, static_cast<int>(c.tag),
        static_cast<int>(ran(Pipe::kMte2)), static_cast<int>(of(Pipe::kMte2)),
        static_cast<int>(ran(Pipe::kMte3)), static_cast<int>(of(Pipe::kMte3)),
        static_cast<int>(ran(Pipe::kV)), static_cast<int>(c.waits),
        static_cast<int>(c.barriers));
  }
}

// Two buffers of UB, each filled, summed and moved out.
void TwoBuffers(World* world) {
  InitSocState();
  for (int i = 0; i < 2; ++i) {
    MoveIn(i * kBytes, world->in.data(), kBytes);
    SetFlag<HardEvent::MTE2_V>(i);
  }
  for (int i = 0; i < 2; ++i) {
    WaitFlag<HardEvent::MTE2_V>(i);
    Sum((2 + i) * kBytes, i * kBytes, i * kBytes, kWords);
    SetFlag<HardEvent::V_MTE3>(i);
    WaitFlag<HardEvent::V_MTE3>(i);
    MoveOut(world->out.data() + i * kWords, (2 + i) * kBytes, kBytes);
  }
  End();
  OnTask(1);
  MoveIn(0, world->in.data(), kBytes);
  End();
}

// A pipe has to do for 1 s; what MTE2 read is seen 2 s later.
void PrintTimes(const char* mode, const std::function<void(LaunchSpec*)>& set) {
  World world;
  LaunchSpec spec = world.Spec();
  spec.type = TaskType::kAivOnly;
  spec.entry = [&](int32_t) { TwoBuffers(&world); };
  spec.takes = [](const Instruction& work) {
    return Seconds{1, work.pipe == Pipe::kMte2 ? 2.0 : 0.0};
  };
  set(&spec);
  for (const Counts& c : Launch(spec).counts) {
    const auto busy = [&c](Pipe p) { return c.busy[static_cast<int>(p)]; };
    std::printf("%s time %d: MTE2 %g, V %g, MTE3 %g, ended %g\n", mode,
                static_cast<int>(c.tag), busy(Pipe::kMte2), busy(Pipe::kV),
                busy(Pipe::kMte3), c.ended);
  }
}

}  // namespace

int main() {
  for (const bool auto_sync : {false, true}) {
    const auto run = [auto_sync](const char* name, Mode mode, uint64_t seed) {
      const std::string full = std::string(auto_sync ? "auto " : "") + name;
      RunMode(full.c_str(), [=](LaunchSpec* spec) {
        spec->auto_sync = auto_sync;
        spec->mode = mode;
        spec->seed = seed;
      });
    };
    run("in_order", Mode::kInOrder, 0);
    run("late", Mode::kLate, 0);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      run("seeded", Mode::kSeeded, seed);
    }
  }
  const Drill scalar_flag = {"a scalar flag of an AIC",
                             [](World*) {
                               SetFlag<HardEvent::S_MTE3>(0);
                               WaitFlag<HardEvent::S_MTE3>(0);
                             },
                             true};
  RunDrill("disputed", scalar_flag, [](LaunchSpec*) {});
  RunDrill("strict", scalar_flag,
           [](LaunchSpec* spec) { spec->no_aic_scalar_flags = true; });
  RunTogether("merging", kTogether[0],
              [](LaunchSpec* spec) { spec->cross_flags_merge = true; });
  for (const auto& [name, kernel] :
       {std::pair("", RightPair), std::pair("sums ", ThreeSums)}) {
    std::printf("%sin order:%s\n", name,
                Trace(Mode::kInOrder, 0, kernel).c_str());
    std::printf("%slate:%s\n", name, Trace(Mode::kLate, 0, kernel).c_str());
  }
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (const char* const name : {"seed", "again"}) {
      std::printf("%s:%s\n", name,
                  Trace(Mode::kSeeded, seed, RightPair).c_str());
    }
  }
  PrintRefused();
  PrintCounts();
  PrintTimes("in_order", [](LaunchSpec*) {});
  PrintTimes("late", [](LaunchSpec* spec) { spec->mode = Mode::kLate; });
  PrintTimes("seeded", [](LaunchSpec* spec) { spec->mode = Mode::kSeeded; });
  return 0;
}
