// Kernels with one thing right or wrong, by name: of one core and of several.

#ifndef BACKEND_ASCEND_TWIN_ENGINE_DRILLS_TESTING_H_
#define BACKEND_ASCEND_TWIN_ENGINE_DRILLS_TESTING_H_

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "backend_ascend/twin/engine/kernels_testing.h"

namespace twin_kernels {

// A kernel of one AIV (`aic`: of the AIC).
struct Drill {
  const char* name;
  std::function<void(World*)> run;
  bool aic = false;
};

inline void Twice(World* world) {
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
inline void Look(uint64_t begin, uint64_t bytes, bool loose) {
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
       if (sums.GetValue(3) != 2 * w->in[3])
         throw std::runtime_error("stale sum");
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

inline LaunchResult RunDrill(const Drill& drill, const Settings& set) {
  World world;
  LaunchSpec spec = world.Spec();
  set(&spec);
  spec.entry = [&](int32_t) {
    InitSocState();
    const bool aic = ThisCoreType() == CoreType::kAic;
    if (aic == drill.aic && GetBlockIdx() == 0) drill.run(&world);
    End();
  };
  return Launch(spec);
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

inline void Sets(World*, int count) {
  for (int i = 0; i < count; ++i) CrossCoreSetFlag<2, PIPE_FIX>(5);
}

inline void Waits(World*, int count) {
  for (int i = 0; i < count; ++i) CrossCoreWaitFlag(5);
}

inline void FillBytes(World* world, int begin, int bytes) {
  MoveIn(0, world->in.data(), bytes);
  Order<HardEvent::MTE2_MTE3>();
  MoveOut(reinterpret_cast<char*>(world->out.data()) + begin, 0, bytes);
}

inline void FillOut(World* world, int first) {
  MoveIn(0, world->in.data(), kBytes);
  Order<HardEvent::MTE2_MTE3>();
  MoveOut(world->out.data() + first, 0, kBytes);
}

inline void Nothing(World*) {}

inline void Deadline(World* world) {
  // Whoever waits in vain leaves something else than who does not.
  if (Await(world->flags, 1)) CrossCoreSetFlag<1, PIPE_MTE3>(0);
}

// Many waits that are met: none of them lets time run faster.
inline void ManyWaits(World* world) {
  Await(world->flags, 1, int64_t{1} << 60);
  for (Line& line : world->many) {
    while (Words(&line).GetValue(0) != 0) {
    }
    Clean(Words(&line));
  }
}

// Many tasks, each of which looks at the clock and writes; none signals.
inline void ManyTasks(World* world) {
  for (int task = 0; task < 2000; ++task) {
    const int64_t begin = GetSystemCycle();
    FillOut(world, 0);
    End();
    if (GetSystemCycle() - begin > 1000) CrossCoreSetFlag<1, PIPE_MTE3>(0);
  }
}

// Waits for a word by moves into UB.
inline void PollByMoves(World* world) {
  for (int32_t seen = 0; seen == 0;) {
    MoveIn(0, world->flags + 3, 32);
    Order<HardEvent::MTE2_S>();
    seen = LocalTensor<int32_t>(TPosition::VECIN, 0, 8).GetValue(0);
    Order<HardEvent::S_MTE2>();
  }
  MoveIn(kBytes, world->out.data(), kBytes);
}

inline void FillAndSignal(World* world) {
  FillOut(world, 0);
  Signal(world->flags + 3);
}

inline void ScalarPublish(World* world, bool synchronise) {
  const GlobalTensor<int32_t> data = Words(world->shared);
  const GlobalTensor<int32_t> ready = Words(world->flags + 1);
  data.SetValue(0, 42);
  Clean(data);
  if (synchronise) AscendC::DataSyncBarrier<AscendC::MemDsbT::DDR>();
  ready.SetValue(0, 1);
  Clean(ready);
}

inline void ScalarLearn(World* world) {
  if (!Await(world->flags + 1, 1)) throw std::runtime_error("never came");
  Clean(Words(world->shared));
  const int32_t value = Words(world->shared).GetValue(0);
  if (value != 42) throw std::runtime_error("wrong value");
}

// A payload and its flag, polled words both: of one line, by the scalar unit;
// of two, by MTE3.
enum class Unit { kScalar, kMoves };

inline GlobalTensor<int32_t> Payload(World* world, Unit unit) {
  return unit == Unit::kScalar ? Words(world->flags + 1)[8]
                               : Words(world->flags + 2);
}

inline void PublishWords(World* world, Unit unit, bool synchronise) {
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

inline void LearnWords(World* world, Unit unit) {
  if (!Await(world->flags + 1, 1)) throw std::runtime_error("never came");
  Clean(Payload(world, unit));
  if (Payload(world, unit).GetValue(0) == 3) return;
  throw std::runtime_error("read too early");
}

// Each of two words is polled: their order is nobody's.
inline void LearnBoth(World* world, Unit unit) {
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

inline LaunchResult RunTogether(const Together& together, const Settings& set) {
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
  return Launch(spec);
}

}  // namespace twin_kernels

#endif  // BACKEND_ASCEND_TWIN_ENGINE_DRILLS_TESTING_H_
