// How a launch that checks differs from one that only computes, which has none
// of these.

#ifndef BACKEND_ASCEND_HOST_CHECKS_MODES_H_
#define BACKEND_ASCEND_HOST_CHECKS_MODES_H_

#include <cstdint>

#include "backend_ascend/image/image.h"

namespace hpmoe {

// What becomes of one task at its turn, bits of Modes::actions; see modes.py.
enum Action : uint8_t { kActRun = 1, kActCapture = 2, kActHeal = 4 };

struct Modes {
  // What tasks write, and scratch tiles, start as what is in memory, zeros
  // (scratch: what is there) or NaN.
  enum class Start { kUndefined, kZeros, kPoison };
  Start start = Start::kUndefined;
  bool permute = false;
  uint64_t seed = 0;
  bool late_puts = false;
  bool races = false;
  bool guards = false;
  bool trace = false;
  bool times = false;
  const uint8_t* actions = nullptr;  // [tasks], or null: all run
  // By BufferId, those that tasks of the image write; null where no action
  // asks for them.
  void* captured[kNumBuffers] = {};
  const void* given[kNumBuffers] = {};
  // Gradients of weights that travel with their rows, before w_down.
  float* captured_row_weight = nullptr;   // [R, N]
  float* captured_slot_weight = nullptr;  // [R, T * K]
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_CHECKS_MODES_H_
