// What a product, a vector tile and a row that travels take: for the engine,
// task by task, and for the formula of a schedule.

#ifndef BACKEND_ASCEND_SIMULATOR_PRICES_H_
#define BACKEND_ASCEND_SIMULATOR_PRICES_H_

#include <algorithm>
#include <cmath>

#include "backend_ascend/image/image.h"
#include "backend_ascend/image/regions.h"
#include "backend_ascend/image/rows.h"
#include "backend_ascend/simulator/figures.h"

namespace hpmoe::sim {

constexpr double kFloatBytes = 4;

// How often each side of a product is read: accumulators hold a tile that
// stands or lies.
struct Passes {
  double left, right;
};

inline Passes PassesOf(const Figures& figures, double rows, double cols) {
  const double high = figures.cube_tile_rows, wide = figures.cube_tile_cols;
  const auto passes = [&](double height, double width) {
    return std::ceil(rows / height) * std::ceil(cols / width);
  };
  const bool lies = passes(wide, high) < passes(high, wide);
  return {std::ceil(cols / (lies ? high : wide)),
          std::ceil(rows / (lies ? wide : high))};
}

// Seconds of a product of a depth and of what it writes.
inline double WithWriteOut(const Figures& figures, double depth, double product,
                           double written) {
  const double write = written / figures.aic_write;
  if (figures.write_beside == 0 || depth == 0) return product + write;
  const double hidden = product * std::min(1.0, figures.write_beside / depth);
  return product + std::max(0.0, write - hidden);
}

// Seconds a byte that a put over this latency takes more than its AIV's rate:
// no more of it is on its way than the window holds.
inline double HeldUp(const Figures& figures, double latency) {
  if (figures.aiv_window == 0) return 0;
  return std::max(0.0, latency / figures.aiv_window - 1 / figures.aiv_link);
}

// Whether what an AIV adds to events has a price of its own.
inline bool PricesAdds(const Figures& figures) { return figures.aiv_add > 0; }

// Seconds that an AIV takes to add `count` words to events.  None is on its
// trip when it begins: its fence has waited.
inline double AddSeconds(const Figures& figures, int32_t count) {
  const double add = figures.aiv_add, there = add + figures.add_trip;
  const auto places = static_cast<int32_t>(figures.add_waits);
  if (count == 0 || places == 0) return count * there;
  const double round = std::max(places * add, there);  // of the ring of places
  return (count - 1) / places * round + ((count - 1) % places + 1) * add;
}

// Seconds of the signals of a task.
inline double SignalSeconds(const Figures& figures, Unit unit, int32_t count) {
  const bool adds = unit == kAiv && PricesAdds(figures);
  return adds ? AddSeconds(figures, count) : count * figures.signal;
}

// Seconds from an AIV that goes on until its last word is there.
inline double InFlight(const Figures& figures) {
  return PricesAdds(figures) && figures.add_waits >= 1 ? figures.add_trip : 0;
}

// Seconds from an event until others see it: who polls it misses for half of a
// pause, on average.
inline double SeenAfter(const Figures& figures) {
  return figures.poll + figures.poll_miss / 2;
}

// Operations of the whole steps that a cube takes; a host's vector lengths are
// no matter.
inline double CubeOperations(const Figures& figures, double rows, double cols,
                             double depth, double step_depth) {
  if (figures.threads > 0) return 2 * rows * cols * depth;
  constexpr double kFractal = 16;  // rows and columns of a step
  const auto up = [](double value, double multiple) {
    return std::ceil(value / multiple) * multiple;
  };
  return 2 * up(rows, kFractal) * up(cols, kFractal) * up(depth, step_depth);
}

// Seconds of an AIC for a tile of a product, were nothing shared.
// `rate`: operations a second; `read`, `right`, `written`: bytes, those of the
// right side also among what is read.
inline double ProductSeconds(const Figures& figures, double depth,
                             double operations, double rate, double read,
                             double right, double written) {
  const double compute = operations / (rate * figures.cube_efficiency);
  const double product =
      std::max(compute, read / figures.aic_read) + right * figures.pack;
  return WithWriteOut(figures, depth, product, written);
}

// Of an element that becomes a code: casts, absolute value, row maximum, scale
// and casts to int8; and of a sum that becomes a number: a cast and two scales.
constexpr double kQuantiseOps = 8, kDequantiseOps = 3;

// Of elements that a vector tile reads and writes.  The activation of codes
// also dequantises both halves of its row, and quantises what it makes.
inline double VectorOperations(const Figures& figures,
                               const ImageHeader& header, Work work,
                               double read, double written) {
  const double codes =
      IsQuantised(header) ? 2 * kDequantiseOps + kQuantiseOps : 0;
  return work == Work::kActivation ? written * (figures.activation_ops + codes)
         : work == Work::kActivationGrad ? written * figures.activation_grad_ops
                                         : read * figures.sum_ops;
}

// Of a row of codes.
inline double ScaleBytes(const ImageHeader& header, int buffer) {
  return NumScales(header, buffer) > 0 ? kFloatBytes : 0;
}

// What a put makes of an element that it sends.
inline double SentOperations(const ImageHeader& header, Work work) {
  if (!IsQuantised(header) || work == Work::kRelayRows) return 0;
  return work == Work::kPutHome ? kDequantiseOps : kQuantiseOps;
}

// What travels beside a row of a buffer.
inline double BesideBytes(const ImageHeader& header, int buffer) {
  if (BesideOf(header, buffer) == 0) return 0;
  switch (kBuffers[buffer].beside) {
    case Beside::kHeader:  // a slot and a weight
      return 8 + ScaleBytes(header, buffer);
    case Beside::kHeaders:
      return sizeof(RowCopy) * CopiesOf(header) + ScaleBytes(header, buffer);
    default:
      return kFloatBytes;
  }
}

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_PRICES_H_
