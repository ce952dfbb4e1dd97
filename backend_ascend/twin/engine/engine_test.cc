// Findings of the twin for small kernels, right and with one error, in each
// mode.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend_ascend/twin/engine/drills_testing.h"
#include "backend_ascend/twin/engine/kernels_testing.h"

namespace {

using namespace twin_kernels;  // NOLINT: a program of its own

using Launcher = std::function<LaunchResult(const Settings&)>;

// All kernels: by name, how to launch them.
std::vector<std::pair<std::string, Launcher>> Kernels() {
  std::vector<std::pair<std::string, Launcher>> kernels;
  for (int call = kAll; call <= kLast; ++call) {
    kernels.emplace_back(kPairs[call], [=](const Settings& set) {
      return RunPair(static_cast<Call>(call), set);
    });
  }
  const auto add = [&](const auto& drills, const auto& run) {
    for (const auto& drill : drills) {
      kernels.emplace_back(drill.name, [&, run](const Settings& set) {
        return run(drill, set);
      });
    }
  };
  add(kFlagDrills, RunDrill);
  add(kMemoryDrills, RunDrill);
  add(kTogether, RunTogether);
  return kernels;
}

Launcher KernelOf(const std::string& name) {
  for (const auto& [other, run] : Kernels()) {
    if (name == other) return run;
  }
  throw std::invalid_argument(name + ": expected a kernel");
}

struct Setting {
  std::string name;
  Mode mode = Mode::kInOrder;
  bool auto_sync = false;
  uint64_t seed = 0;

  void operator()(LaunchSpec* spec) const {
    spec->mode = mode;
    spec->auto_sync = auto_sync;
    spec->seed = seed;
  }
};

// Each mode once, but for eight seeds.
std::vector<Setting> AllSettings() {
  std::vector<Setting> settings;
  for (const bool auto_sync : {false, true}) {
    const std::string name = auto_sync ? "auto " : "";
    settings.push_back({name + "in order", Mode::kInOrder, auto_sync});
    settings.push_back({name + "late", Mode::kLate, auto_sync});
    for (uint64_t seed = 0; seed < 8; ++seed) {
      settings.push_back({name + "seed " + std::to_string(seed), Mode::kSeeded,
                          auto_sync, seed});
    }
  }
  return settings;
}

// The kind of an error, the order that lacks, its text.
std::string Described(const Error& error) {
  return std::string(NameOf(error.kind)) + " [" + error.missing + "] " +
         error.text;
}

std::string Described(const LaunchResult& result) {
  std::string text;
  for (const Error& error : result.errors) text += Described(error) + "\n";
  return text.empty() ? "ok" : text;
}

bool Has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// A name of GoogleTest has letters, digits and underscores.
std::string Identifier(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !isalnum(c); },
      '_');
  return name;
}

struct Finding {
  const char* kernel;
  // If instructions run in another order, an error may show as another kind.
  std::vector<std::string> kinds;
  const char* words;
};

// What lacks in these the compiler inserts: between two of V, and between the
// scalar unit and V, MTE2 or MTE3 of an AIV.
const std::set<std::string> kInserted = {
    "no PIPE_V",
    "a sum of a sum, beside its store",
    "no S_MTE3",
    "a scalar store after a read",
    "a scalar load of a sum",
    "a scalar load before a wait",
    "what a loaded sum waited for",
};

const char* const kRight[] = {
    "right",
    "15 sets",
    "both AIVs set",
    "a cross flag orders",
    "neighbours",
    "neighbours by a byte",
    "two add to one",
    "polls by moves",
    "polls by moves after",
    "many tasks without a signal",
    "many waits that are met",
    "scalar stores",
    "polled payload by stores",
    "two polled words by stores",
    "polled payload by moves",
    "two polled words by moves",
    "SyncAll",
    "an odd byte",
    "padding that nobody wrote",
    "a deadline",
};

const Finding kFindings[] = {
    {"no MTE2_V", {"hazard [MTE2_V]"}, "pipe V: Sum reads UB [0x0, 0x100)"},
    {"no PIPE_V", {"hazard [PipeBarrier<PIPE_V>]"}, "written by V at"},
    {"no V_MTE3", {"hazard [V_MTE3]"}, "pipe MTE3: MoveOut reads UB"},
    {"no V_MTE2", {"hazard [V_MTE2]"}, "pipe MTE2: MoveIn writes UB"},
    {"no S_MTE3", {"hazard [S_MTE3]"}, "AddOut reads UB [0x1000, 0x1004)"},
    {"no PIPE_MTE3", {"race [event]"}, "written by MTE3 of AIV 1 of rank 0"},
    {"no dcci",
     {"stale line [DataCacheCleanAndInvalid]"},
     "AIV 1 of rank 0 wrote it at"},
    {"no event wait", {"race [event]", "undefined []"}, "MoveIn reads out"},
    {"no PIPE_ALL", {"hazard [PipeBarrier<PIPE_ALL>]"}, "the kernel ends"},
    {"a flag set twice", {"flag [MTE2_V]", "flag [V_MTE2]"}, "SetFlag<MTE2_V>"},
    {"a flag left over", {"flag [MTE2_V]"}, "left set for the next kernel"},
    {"a flag never set", {"deadlock [MTE2_V]"}, "pipe V waits at"},
    {"the scalar waits for ever", {"deadlock [V_S]"}, "in WaitFlag<V_S>(1)"},
    {"an event of an AIC", {"refused []"}, "expected one of an AIV, got M_FIX"},
    {"an event of an AIV", {"refused []"}, "expected one of an AIC, got V_S"},
    {"a scalar load on an AIC", {"hazard [MTE3_S]"}, "shared of rank 0"},
    {"an id too high", {"refused []"}, "id: expected 0 to 5, got 6"},
    {"a bit of control", {"refused []"}, "set_ctrl: bit 59: expected 0"},
    {"a barrier of another core", {"refused []"}, "a queue of an AIV, got M"},
    {"beyond UB", {"bounds []"}, "UB [0x2df80, 0x2e080): expected bytes below"},
    {"UB on an AIC", {"refused []"}, "expected a memory of an AIC, got UB"},
    {"vector work on an AIC", {"refused []"}, "with a pipe V, got an AIC"},
    {"outside", {"bounds []"}, "the nearest is in of rank 0 + 0x20 of 0x100"},
    {"a constant", {"refused []"}, "in of rank 0 + 0x0 (256 B)"},
    {"nobody wrote UB", {"undefined []"}, "UB [0x100, 0x120), which nobody"},
    {"a byte that nobody wrote",
     {"undefined []"},
     "UB [0x7, 0x8), which nobody"},
    {"padding before it is there",
     {"hazard [MTE2_V]"},
     "pipe V: Look reads UB"},
    {"nobody wrote it", {"undefined []"}, "out of rank 0 + 0x0 (32 B)"},
    {"a scalar store after a read", {"hazard [V_S]", "hazard [MTE2_S]"}, ""},
    {"a scalar load of a sum",
     {"hazard [V_S]", "undefined []"},
     "GetValue reads"},
    {"a scalar load before a wait",
     {"hazard [MTE2_S]", "undefined []"},
     "GetValue reads"},
    {"a move behind a scalar load", {"hazard [MTE2_V]", "hazard [MTE2_S]"}, ""},
    {"a wait behind a scalar load", {"hazard [MTE2_MTE3]", "hazard [V_S]"}, ""},
    {"what a loaded sum waited for",
     {"hazard [V_S]", "undefined []"},
     "GetValue reads"},
    {"a sum behind a scalar store", {"hazard [MTE3_V]", "hazard [MTE2_S]"}, ""},
    {"a sum of a sum, beside its store",
     {"hazard [PipeBarrier<PIPE_V>]"},
     "written by V at"},
    {"one target twice",
     {"hazard [PipeBarrier<PIPE_MTE2>]"},
     "UB [0x20, 0x40)"},
    {"own write, line kept",
     {"stale line [DataCacheCleanAndInvalid]"},
     "shared of rank 0 + 0x0 (4 B)"},
    {"own write, line stored to",
     {"dirty line [DataCacheCleanAndInvalid]"},
     "over what AIV 0 of rank 0 wrote at"},
    {"never cleaned", {"dirty line []"}, "still in the scalar cache"},
    {"no dsb", {"hazard [DataSyncBarrier]"}, "pipe MTE2: MoveIn reads shared"},
    {"scalar stores without dsb", {"race [DataSyncBarrier]"}, "GetValue reads"},
    {"16 sets", {"cross flag [a flag back]"}, "has 15 sets"},
    {"a set left over",
     {"cross flag [CrossCoreWaitFlag]"},
     "on AIV 1 of rank 0"},
    {"only one of the AIVs sets", {"deadlock []"}, "in CrossCoreWaitFlag(3)"},
    {"of another pipe", {"race [event]"}, "written by MTE3 of AIV"},
    {"two write one", {"race [event]"}, "out of rank 0 + 0x80 (128 B)"},
    {"one waits for one that is stuck",
     {"deadlock [MTE3_S]"},
     "nothing can go on: AIV 1 of rank 0 waits at"},
    {"polls by moves without end", {"deadlock []"}, "no end after 16"},
    {"a poll without end", {"deadlock []"}, "polls flags of rank 0 + 0x0"},
};

class RightKernel : public testing::TestWithParam<const char*> {};

TEST_P(RightKernel, Passes) {
  const Launcher run = KernelOf(GetParam());
  for (const Setting& setting : AllSettings()) {
    EXPECT_EQ(Described(run(setting)), "ok") << setting.name;
  }
}

INSTANTIATE_TEST_SUITE_P(, RightKernel, testing::ValuesIn(kRight),
                         [](const auto& x) { return Identifier(x.param); });

class WrongKernel : public testing::TestWithParam<Finding> {
 protected:
  void ExpectNamed(const Error& error) {
    const auto& [kernel, kinds, words] = GetParam();
    const std::string text = Described(error);
    EXPECT_TRUE(std::any_of(
        kinds.begin(), kinds.end(),
        [&](const std::string& kind) { return text.rfind(kind, 0) == 0; }))
        << "expected " << testing::PrintToString(kinds) << ", got " << text;
    EXPECT_NE(text.find(words), std::string::npos)
        << "expected " << words << ", got " << text;
    // A line of a kernel, or the end of one.
    EXPECT_TRUE(Has(text, "kernels_testing.h:") ||
                Has(text, "drills_testing.h:") || Has(text, "at its end"))
        << text;
    std::vector<Place> places = error.others;
    places.push_back(error.at);
    for (const Place& at : places) EXPECT_TRUE(at.call && at.site.file) << text;
  }
};

TEST_P(WrongKernel, IsNamed) {
  const Launcher run = KernelOf(GetParam().kernel);
  const bool inserted = kInserted.count(GetParam().kernel) > 0;
  for (const Setting& setting : AllSettings()) {
    SCOPED_TRACE(setting.name);
    const LaunchResult result = run(setting);
    EXPECT_EQ(result.ok(), inserted && setting.auto_sync) << Described(result);
    for (const Error& error : result.errors) ExpectNamed(error);
  }
  if (!inserted) return;
  // A hazard names the option under which it is none.
  EXPECT_NE(Described(run(Setting{})).find("auto_sync"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(, WrongKernel, testing::ValuesIn(kFindings),
                         [](const auto& x) {
                           return Identifier(x.param.kernel);
                         });

// Stores to polled words that nothing orders are seen the other way round in
// mode late, and with some seeds.
constexpr const char* kOvertaken[] = {
    "polled payload by stores without dsb",
    "polled payload by moves without barrier",
};

TEST(PolledPayload, AFlagOvertakesItWithoutABarrier) {
  for (const bool auto_sync : {false, true}) {
    for (const char* const name : kOvertaken) {
      SCOPED_TRACE(name);
      const Launcher run = KernelOf(name);
      EXPECT_EQ(Described(run(Setting{"", Mode::kInOrder, auto_sync})), "ok");
      const auto late = Described(run(Setting{"", Mode::kLate, auto_sync}));
      EXPECT_NE(late.find("read too early"), std::string::npos) << late;
    }
    std::string seeded;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const Setting setting{"", Mode::kSeeded, auto_sync, seed};
      seeded += Described(KernelOf(kOvertaken[1])(setting));
    }
    EXPECT_NE(seeded.find("read too early"), std::string::npos) << seeded;
  }
}

TEST(Kernels, EachIsRightOrWrong) {
  std::multiset<std::string> names, expected(kRight, std::end(kRight));
  for (const auto& [name, run] : Kernels()) names.insert(name);
  for (const Finding& finding : kFindings) expected.insert(finding.kernel);
  expected.insert(kOvertaken, std::end(kOvertaken));
  EXPECT_EQ(names, expected);
}

// The order in which instructions run, as their numbers of issue.
std::vector<int> Trace(Mode mode, uint64_t seed,
                       const std::function<void(World*)>& kernel) {
  World world;
  LaunchSpec spec = world.Spec();
  spec.mode = mode;
  spec.seed = seed;
  std::vector<int> trace;
  int issued = 0;
  spec.on_issue = [&](int64_t, Instruction* work) {
    work->run = [&trace, number = issued++, run = work->run] {
      trace.push_back(number);
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

TEST(Modes, ASeedGivesOneOrderAndSeedsGiveSeveral) {
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const std::vector<int> first = Trace(Mode::kSeeded, seed, RightPair);
    EXPECT_EQ(first, Trace(Mode::kSeeded, seed, RightPair));
    orders.insert(first);
  }
  EXPECT_GT(orders.size(), 1u);
}

TEST(Modes, LateRunsWhatFlagsAllowInAnotherOrder) {
  const std::vector<int> in_order = Trace(Mode::kInOrder, 0, RightPair);
  std::vector<int> late = Trace(Mode::kLate, 0, RightPair);
  EXPECT_EQ(in_order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_NE(late, in_order);
  std::sort(late.begin(), late.end());
  EXPECT_EQ(late, in_order);
}

TEST(Modes, SumsOfAPipeIntoOneWordAreInEitherOrderButForABarrier) {
  EXPECT_EQ(Trace(Mode::kInOrder, 0, ThreeSums), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(Trace(Mode::kLate, 0, ThreeSums), (std::vector<int>{1, 0, 2}));
}

TEST(Options, FlagsThatMergeLetAKernelThatCountsThemWaitForEver) {
  const std::string text = Described(RunTogether(
      kTogether[0], [](LaunchSpec* spec) { spec->cross_flags_merge = true; }));
  EXPECT_NE(text.find("deadlock"), std::string::npos) << text;
  EXPECT_NE(text.find("in CrossCoreWaitFlag(5)"), std::string::npos) << text;
}

TEST(Options, WhereSourcesDisagreeAnAicHasScalarFlagsOrNone) {
  const Drill drill = {"a scalar flag of an AIC",
                       [](World*) {
                         SetFlag<HardEvent::S_MTE3>(0);
                         WaitFlag<HardEvent::S_MTE3>(0);
                       },
                       true};
  EXPECT_EQ(Described(RunDrill(drill, [](LaunchSpec*) {})), "ok");
  const std::string strict = Described(RunDrill(
      drill, [](LaunchSpec* spec) { spec->no_aic_scalar_flags = true; }));
  EXPECT_EQ(strict.rfind("refused", 0), 0u) << strict;
  EXPECT_NE(strict.find("by no_aic_scalar_flags: "), std::string::npos);
  EXPECT_NE(strict.find("S_MTE3"), std::string::npos);
}

// What is said of a launch whose request `set` has changed.
std::string Answer(const Settings& set) {
  World world;
  LaunchSpec spec = world.Spec();
  spec.entry = [](int32_t) {};
  set(&spec);
  return Described(Launch(spec));
}

TEST(Request, AWrongOneIsAnsweredNotRun) {
  EXPECT_NE(Answer([](LaunchSpec* spec) {
              spec->entry = nullptr;
            }).find("entry: expected a kernel, got none"),
            std::string::npos);
  EXPECT_NE(Answer([](LaunchSpec* spec) {
              spec->blocks = 0;
            }).find("ranks, blocks: expected at least 1, got 1, 0"),
            std::string::npos);
  EXPECT_NE(
      Answer([](LaunchSpec* spec) {
        const GlobalRange range = spec->globals[1];
        spec->globals.push_back(range);
      }).find("globals: expected ranges that do not overlap, got out and out"),
      std::string::npos);
  EXPECT_NE(Answer([](LaunchSpec* spec) {
              spec->entry = [](int32_t) { throw std::runtime_error("thrown"); };
            }).find("expected none, got an exception: thrown"),
            std::string::npos);
}

TEST(Counts, AreThoseOfEachCoreAndTask) {
  World world;
  LaunchSpec spec = world.Spec();
  spec.entry = [&](int32_t) {
    OnTask(7);
    Pair(&world, kAll);
    OnTask(-1);
  };
  std::vector<std::vector<int64_t>> counts;
  for (const Counts& c : Launch(spec).counts) {
    EXPECT_EQ(c.tag, 7);
    const auto bytes = [&c](Pipe p) { return c.bytes[static_cast<int>(p)]; };
    const auto ran = [&c](Pipe p) {
      return static_cast<int64_t>(c.instructions[static_cast<int>(p)]);
    };
    counts.push_back(
        {c.core.type == CoreType::kAiv, c.core.index, ran(Pipe::kMte2),
         static_cast<int64_t>(bytes(Pipe::kMte2)), ran(Pipe::kMte3),
         static_cast<int64_t>(bytes(Pipe::kMte3)), ran(Pipe::kV),
         static_cast<int64_t>(c.waits), static_cast<int64_t>(c.barriers)});
  }
  // Of an AIV, index; MTE2 and its bytes, MTE3 and its bytes, V; waits,
  // barriers.
  const std::vector<std::vector<int64_t>> expected = {
      {0, 0, 0, 0, 0, 0, 0, 0, 1},
      {1, 0, 1, 512, 0, 0, 0, 0, 1},
      {1, 1, 2, 512, 3, 516, 4, 7, 4}};
  EXPECT_EQ(counts, expected);
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

class Times : public testing::TestWithParam<Mode> {};

TEST_P(Times, AreThoseOfFlagsWhateverRanFirst) {
  // A pipe has to do for 1 s; what MTE2 read is seen 2 s later.
  World world;
  LaunchSpec spec = world.Spec();
  spec.mode = GetParam();
  spec.type = TaskType::kAivOnly;
  spec.entry = [&](int32_t) { TwoBuffers(&world); };
  spec.takes = [](const Instruction& work) {
    return Seconds{1, work.pipe == Pipe::kMte2 ? 2.0 : 0.0};
  };
  std::vector<std::vector<double>> times;
  for (const Counts& c : Launch(spec).counts) {
    const auto busy = [&c](Pipe p) { return c.busy[static_cast<int>(p)]; };
    times.push_back({static_cast<double>(c.tag), busy(Pipe::kMte2),
                     busy(Pipe::kV), busy(Pipe::kMte3), c.ended});
  }
  // Reads end at 1 and 2 and are seen at 3 and 4, sums end at 4 and 5, writes
  // at 5 and 6; then one more read, behind a barrier of all.
  EXPECT_EQ(times, (std::vector<std::vector<double>>{{-1, 2, 2, 2, 6},
                                                     {1, 1, 0, 0, 9}}));
}

INSTANTIATE_TEST_SUITE_P(, Times,
                         testing::Values(Mode::kInOrder, Mode::kSeeded,
                                         Mode::kLate));

}  // namespace
