// Runs each kernel of public_bugs.h, right and wrong, in each mode, and prints
// what the twin finds, or how the result is.

#include "backend_ascend/twin/examples/public_bugs.h"

#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "backend_ascend/twin/engine/launch.h"

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
  std::function<float(uint32_t row, uint32_t column)> expected;
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

void Run(const Bug& bug, bool right, const char* mode_name,
         ascend_twin::Mode mode) {
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
  std::printf("%s|%s|%s|", bug.name, right ? "right" : "wrong", mode_name);
  if (result.ok()) {
    std::printf("%d off\n", off);
  } else {
    const ascend_twin::Error& error = result.errors[0];
    std::printf("%s [%s]: %s\n", ascend_twin::NameOf(error.kind),
                error.missing.c_str(), error.text.c_str());
  }
}

}  // namespace

int main() {
#define BUG(name, blocks, rows, expected)                                   \
  {                                                                         \
    #name, public_bugs::name<true>, public_bugs::name<false>, blocks, rows, \
        expected                                                            \
  }
  const Bug bugs[] = {
      BUG(ExpertWithoutRows, 4, 1, SumOfRows),
      BUG(UnpermuteTail, 3, kRows, Reversed),
      BUG(RightPadding, 1, 1, Doubled),
      BUG(SharedWorkspace, 2, 2, X),
      BUG(QueueOfOne, 1, kRows, X),
      BUG(FlagReused, 1, 2, X),
  };
#undef BUG
  for (const Bug& bug : bugs) {
    for (const bool right : {true, false}) {
      Run(bug, right, "in order", ascend_twin::Mode::kInOrder);
      Run(bug, right, "seeded", ascend_twin::Mode::kSeeded);
      Run(bug, right, "late", ascend_twin::Mode::kLate);
    }
  }
  return 0;
}
