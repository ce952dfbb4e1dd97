// The kernels of public_bugs.h in each mode: the right ones give their results,
// and what is wrong with the others is named.

#include "backend_ascend/twin/examples/public_bugs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend_ascend/twin/engine/kernel_launch.h"

namespace {

using ascend_twin::GlobalKind;
using public_bugs::kWidth;
using Kernel = void (*)(GM_ADDR, GM_ADDR, GM_ADDR);

constexpr uint32_t kRows = 8;

struct Bug {
  const char* name;
  Kernel right, wrong;
  int32_t blocks;
  uint32_t rows;  // of the result
  float (*expected)(uint32_t row, uint32_t column);
  // What the twin finds in the wrong one, kind and words; or how much of the
  // result is off where all that is read was written.
  const char* kind;
  const char* words;
};

float X(uint32_t row, uint32_t column) {
  return static_cast<float>(row * kWidth + column + 1);
}

float SumOfRows(uint32_t, uint32_t column) {
  float sum = 0;
  for (uint32_t row = 0; row < kRows; ++row) sum += X(row, column);
  return sum;
}

float Doubled(uint32_t row, uint32_t column) {
  return column < 61 ? 2 * X(row, column) : 0;
}

float Reversed(uint32_t row, uint32_t column) {
  return X(kRows - 1 - row, column);
}

// What the twin finds, or how much of the result is off.
std::string Outcome(const Bug& bug, bool right, ascend_twin::Mode mode) {
  std::vector<float> x(kRows * kWidth), space(kRows * kWidth),
      y(kRows * kWidth, -1.0f);
  for (uint32_t i = 0; i < x.size(); ++i) x[i] = X(i / kWidth, i % kWidth);
  const auto range = [](const char* name, std::vector<float>* vector,
                        GlobalKind kind) {
    return ascend_twin::GlobalRange{name,
                                    reinterpret_cast<uint64_t>(vector->data()),
                                    vector->size() * sizeof(float), kind};
  };
  ascend_twin::LaunchSpec spec;
  spec.kernel = bug.name;
  spec.type = ascend_twin::TaskType::kAivOnly;
  spec.blocks = bug.blocks;
  spec.mode = mode;
  spec.globals = {range("x", &x, GlobalKind::kConstant),
                  range("space", &space, GlobalKind::kEmpty),
                  range("y", &y, GlobalKind::kEmpty)};
  const Kernel kernel = right ? bug.right : bug.wrong;
  spec.entry = [&](int32_t) {
    kernel(reinterpret_cast<GM_ADDR>(x.data()),
           reinterpret_cast<GM_ADDR>(space.data()),
           reinterpret_cast<GM_ADDR>(y.data()));
  };
  const ascend_twin::LaunchResult result = ascend_twin::Launch(spec);
  int off = 0;
  for (uint32_t i = 0; i < bug.rows * kWidth; ++i) {
    off += y[i] != bug.expected(i / kWidth, i % kWidth);
  }
  if (result.ok()) return std::to_string(off) + " off";
  const ascend_twin::Error& error = result.errors[0];
  return std::string(ascend_twin::NameOf(error.kind)) + " [" + error.missing +
         "]: " + error.text;
}

#define BUG(name, blocks, rows, expected, kind, words) \
  {#name,                                              \
   public_bugs::name<true>,                            \
   public_bugs::name<false>,                           \
   blocks,                                             \
   rows,                                               \
   expected,                                           \
   kind,                                               \
   words}
const Bug kBugs[] = {
    BUG(ExpertWithoutRows, 4, 1, SumOfRows, "undefined []",
        "which nobody has written"),
    BUG(UnpermuteTail, 3, kRows, Reversed, "128 off", ""),
    BUG(RightPadding, 1, 1, Doubled, "3 off", ""),
    BUG(SharedWorkspace, 2, 2, X, "race [event]",
        "writes space of rank 0 + 0x0 (256 B)"),
    BUG(QueueOfOne, 1, kRows, X, "refused []",
        "AllocTensor: expected a free buffer, got 1"),
    BUG(FlagReused, 1, 2, X, "flag [", "SetFlag<MTE2_MTE3>(0): "),
};
#undef BUG

class PublicBugs : public testing::TestWithParam<Bug> {};

using ascend_twin::Mode;
constexpr Mode kModes[] = {Mode::kInOrder, Mode::kSeeded, Mode::kLate};

TEST_P(PublicBugs, TheRightKernelGivesItsResult) {
  for (const Mode mode : kModes) {
    EXPECT_EQ(Outcome(GetParam(), true, mode), "0 off")
        << "mode " << static_cast<int>(mode);
  }
}

TEST_P(PublicBugs, WhatIsWrongIsNamed) {
  const Bug& bug = GetParam();
  for (const Mode mode : kModes) {
    const std::string text = Outcome(bug, false, mode);
    EXPECT_EQ(text.rfind(bug.kind, 0), 0u)
        << "expected " << bug.kind << ", got " << text;
    EXPECT_NE(text.find(bug.words), std::string::npos)
        << "expected " << bug.words << ", got " << text;
    if (*bug.words) {
      EXPECT_NE(text.find("public_bugs.h:"), std::string::npos) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, PublicBugs, testing::ValuesIn(kBugs),
                         [](const auto& bug) { return bug.param.name; });

}  // namespace
