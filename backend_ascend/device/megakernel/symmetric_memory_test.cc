// Words that a vector core adds, on the twin: how many are in flight, and that
// all arrive.

#include "backend_ascend/device/megakernel/symmetric_memory.h"

#include <gtest/gtest.h>

#include <functional>

#include "backend_ascend/device/megakernel/read_counter.h"
#include "backend_ascend/twin/engine/kernel_launch.h"

namespace {

using ascend_twin::Mode;
using hpmoe::kSignalsInFlight;
using hpmoe::SignalAdds;

struct Lines {
  hpmoe::CounterLine added, seen;
};

// Runs `work` on the first AIV alone, between Open and Close.
void Launch(Lines* lines, Mode mode,
            const std::function<void(SignalAdds*)>& work) {
  ascend_twin::LaunchSpec spec;
  spec.kernel = "symmetric_memory_test";
  spec.mode = mode;
  spec.globals = {{"lines", reinterpret_cast<uint64_t>(lines), sizeof(*lines),
                   ascend_twin::GlobalKind::kFlags}};
  spec.entry = [&](int32_t) {
    AscendC::InitSocState();
    if ASCEND_IS_AIV {
      if (AscendC::GetBlockIdx() == 0) {
        SignalAdds adds;
        adds.Open();
        work(&adds);
        adds.Close();
      }
    }
    AscendC::PipeBarrier<PIPE_ALL>();
  };
  for (const auto& error : ascend_twin::Launch(spec).errors) {
    ADD_FAILURE() << error.text;
  }
}

class Adds : public testing::TestWithParam<Mode> {
 protected:
  alignas(64) Lines lines = {};
};

TEST_P(Adds, EachArrivesOnceHoweverOftenTheRingComesRound) {
  for (const int32_t num_adds : {0, 1, kSignalsInFlight - 1, kSignalsInFlight,
                                 kSignalsInFlight + 1, 3 * kSignalsInFlight}) {
    lines = {};
    int32_t sum = 0;
    for (int32_t i = 0; i < num_adds; ++i) sum += 1 << i;
    Launch(&lines, GetParam(), [&](SignalAdds* adds) {
      for (int32_t i = 0; i < num_adds; ++i) adds->Add(&lines.added, 1 << i);
    });
    EXPECT_EQ(lines.added.value, sum) << num_adds << " adds";
  }
}

// A handshake's word has a place and a flag of its own.
TEST_P(Adds, OtherSignalsPassThoseInFlight) {
  Launch(&lines, GetParam(), [&](SignalAdds* adds) {
    for (int32_t i = 0; i < kSignalsInFlight; ++i) adds->Add(&lines.added, 1);
    hpmoe::SignalSet(&lines.seen, 7);
    adds->Add(&lines.added, 1);
  });
  EXPECT_EQ(lines.added.value, kSignalsInFlight + 1);
  EXPECT_EQ(lines.seen.value, 7);
}

// Where nothing moves before it is waited for, the core waits for the first
// word when it needs its place, and for the others at the end.
TEST(AddsInFlight, ACoreWaitsForAWordWhenItsPlaceIsNeeded) {
  alignas(64) Lines lines = {};
  int32_t in_flight = -1, behind = -1;
  Launch(&lines, Mode::kLate, [&](SignalAdds* adds) {
    for (int32_t i = 0; i < kSignalsInFlight; ++i) adds->Add(&lines.added, 1);
    in_flight = hpmoe::ReadCounter(&lines.added);
    adds->Add(&lines.added, 1);
    behind = hpmoe::ReadCounter(&lines.added);
  });
  EXPECT_EQ(in_flight, 0);
  EXPECT_EQ(behind, 1);
  EXPECT_EQ(lines.added.value, kSignalsInFlight + 1);
}

const char* NameOf(const testing::TestParamInfo<Mode>& mode) {
  constexpr const char* kNames[] = {"InOrder", "Seeded", "Late"};
  return kNames[static_cast<int>(mode.param)];
}

INSTANTIATE_TEST_SUITE_P(, Adds,
                         testing::Values(Mode::kInOrder, Mode::kSeeded,
                                         Mode::kLate),
                         NameOf);

}  // namespace
