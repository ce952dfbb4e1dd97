// Small kernels, right and with one thing wrong, in each mode: prints what the
// twin says of each, one a line.

#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend_ascend/twin/engine/drills_testing.h"
#include "backend_ascend/twin/engine/kernels_testing.h"

namespace {

using namespace twin_kernels;  // NOLINT: a program of its own

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
