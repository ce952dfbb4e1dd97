// What tiles need of the memories of a core (A2 and A3), and the first task of
// an image that needs more than there is.  Freestanding: device source, the
// image's checks and Python read the same numbers.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_TILE_BUDGET_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_TILE_BUDGET_H_

#include <stdint.h>

#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/image/image.h"
#include "backend_ascend/image/qualifiers.h"
#include "backend_ascend/image/regions.h"

namespace hpmoe {

// Bytes that a kernel may use.
constexpr int32_t kL0Bytes = 64 * 1024;  // L0A, and as much of L0B
constexpr int32_t kL0cBytes = 128 * 1024;
constexpr int32_t kL1Bytes = 512 * 1024 - 256;
constexpr int32_t kUbBytes = 184 * 1024;  // the compiler keeps the last 8 KiB

// Vector tiles go through UB in parts, so any height and width fits; but all
// slots of a token at once.
constexpr int32_t kMaxTopK = 128;

// L1 starts with what a cube core adds to events.
constexpr int32_t kL1Signal = 0;
constexpr int32_t kL1Stages = 512;

constexpr int32_t kFractalRows = 16;
constexpr int32_t kBlockBytes = 32;  // of a row of a fractal
constexpr int32_t kFractalBytes = kFractalRows * kBlockBytes;
constexpr int32_t kStages = 2;  // of L1 and of L0: one fills, one is read
constexpr int32_t kSums = 2;    // halves of L0C: one adds up, one moves out

HPMOE_FUNCTION constexpr int32_t Least(int32_t a, int32_t b) {
  return a < b ? a : b;
}

HPMOE_FUNCTION constexpr int32_t DivideUp(int32_t a, int32_t b) {
  return (a + b - 1) / b;
}

HPMOE_FUNCTION constexpr int32_t RoundUp(int32_t a, int32_t unit) {
  return DivideUp(a, unit) * unit;
}

// Columns of a right side, and terms of a sum, come so many at once: squares
// of whole fractals.
HPMOE_FUNCTION constexpr int32_t UnitOf(int32_t element_bytes) {
  return element_bytes == 1 ? kBlockBytes : kFractalRows;
}

// Bytes of one stage.  Every stage starts at a fractal.
constexpr int32_t kL0StageBytes = kL0Bytes / kStages;
constexpr int32_t kL1StageBytes =
    (kL1Bytes - kL1Stages) / kStages / kFractalBytes * kFractalBytes;
constexpr int32_t kSumsBytes = kL0cBytes / kSums;

// Columns of a strip of a [m, n] tile: all, if a half of L0C holds their sums,
// else about half of them, so that one strip moves out while the other adds up.
HPMOE_FUNCTION constexpr int32_t StripOf(int32_t m, int32_t n,
                                         int32_t element_bytes) {
  const int32_t unit = UnitOf(element_bytes);
  const int64_t sums = int64_t{RoundUp(m, kFractalRows)} * RoundUp(n, unit) *
                       static_cast<int32_t>(sizeof(float));
  return sums <= kSumsBytes ? n : RoundUp(DivideUp(n, kSums), unit);
}

// Terms of the sum that one stage of L0 and one of L1 hold: multiples of
// UnitOf, l1 of l0.  0: not even the smallest stage fits.
struct CubeDepths {
  int32_t l0, l1;
};

HPMOE_FUNCTION constexpr CubeDepths DepthsOf(int32_t m, int32_t n,
                                             int32_t element_bytes) {
  const int32_t unit = UnitOf(element_bytes);
  const int32_t a = RoundUp(m, kFractalRows) * element_bytes;
  const int32_t b = RoundUp(n, unit) * element_bytes;
  const int32_t strip =
      RoundUp(StripOf(m, n, element_bytes), unit) * element_bytes;
  const int32_t wider = a > strip ? a : strip;
  const int32_t l0 = kL0StageBytes / wider / unit * unit;
  return {l0, l0 == 0 ? 0 : kL1StageBytes / (a + b) / l0 * l0};
}

// Bytes of a memory that a tile needs; none: memory is null.
struct Shortage {
  const char* memory;
  int64_t needed;
  int64_t available;
};

// Of a [m, n] tile of a cube core.  `carried`: its sums start from others.
HPMOE_FUNCTION constexpr Shortage CubeShortage(int64_t m, int64_t n,
                                               int64_t element_bytes,
                                               bool carried) {
  const int64_t unit = UnitOf(static_cast<int32_t>(element_bytes));
  const int64_t a = (m + kFractalRows - 1) / kFractalRows * kFractalRows;
  const int64_t b = (n + unit - 1) / unit * unit;
  const int64_t sums = a * b * int64_t{sizeof(float)};
  const int64_t strip =
      (DivideUp(static_cast<int32_t>(b / unit), kSums)) * unit;
  // A carry enters as float32.
  const int64_t bytes = carried ? int64_t{sizeof(float)} : element_bytes;
  const Shortage needs[] = {
      {"L0C",
       sums <= kSumsBytes ? sums : kSums * a * strip * int64_t{sizeof(float)},
       kL0cBytes},
      {"L0A", kStages * a * unit * bytes, kL0Bytes},
      {"L0B", kStages * b * unit * bytes, kL0Bytes},
      {"L1", kL1Stages + kStages * (a + b) * unit * bytes, kL1Bytes},
      {"identity", carried ? m * m * 4 : 0, sizeof(Constants::identity)},
  };
  for (const Shortage& need : needs) {
    if (need.needed > need.available) return need;
  }
  return {nullptr, 0, 0};
}

// Of a tile of a vector core.
HPMOE_FUNCTION Shortage VectorShortage(const ImageHeader& h, Work work) {
  const bool slots = work == Work::kSumSlots || work == Work::kWeightDots;
  if (!slots || h.top_k <= kMaxTopK) return {nullptr, 0, 0};
  return {"UB", int64_t{kUbBytes} / kMaxTopK * h.top_k, kUbBytes};
}

HPMOE_FUNCTION Shortage ShortageOf(const ImageHeader& h, const TaskDesc& task) {
  const WorkInfo& info = KindOf(task).info();
  if (info.unit == kAiv) return VectorShortage(h, KindOf(task).work);
  const bool carried = info.form == Form::kWeightTile && LinksOf(h) > 1;
  return CubeShortage(int64_t{task.row_end} - task.row_begin,
                      int64_t{task.col_end} - task.col_begin,
                      IsQuantised(h) ? int64_t{sizeof(int8_t)}
                                     : BytesOf(static_cast<DType>(h.dtype)),
                      carried);
}

// The first task that needs more than a core has; none: its memory is null.
struct TooLarge {
  uint64_t task;
  Shortage shortage;
};

// `tasks` are all of the image's.
HPMOE_FUNCTION TooLarge FirstTooLarge(const ImageHeader& h,
                                      const TaskDesc* tasks) {
  for (uint64_t i = 0; i < h.tasks.count; ++i) {
    const Shortage shortage = ShortageOf(h, tasks[i]);
    if (shortage.memory != nullptr) return {i, shortage};
  }
  return {h.tasks.count, {nullptr, 0, 0}};
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_TILE_BUDGET_H_
