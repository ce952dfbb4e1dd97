// Arithmetic of rows in UB: float32 whatever the storage, one rounding to it.
// A vector instruction that needs the result of another starts behind a
// barrier: inside the pipe they overlap.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_ROWS_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_ROWS_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/rank_tensors.h"
#include "backend_ascend/device/megakernel/symmetric_memory.h"
#include "backend_ascend/device/megakernel/vector_memory.h"
#include "backend_ascend/image/regions.h"

namespace hpmoe {

// Elements as they lie in global memory, and their values.  Storage in float32
// is its own value.
template <typename T>
struct Rows32 {
  AscendC::LocalTensor<T> stored;
  AscendC::LocalTensor<float> values;
};

template <typename T>
constexpr bool kIsFloat = sizeof(T) == sizeof(float);

// Bytes of an element of Rows32.
template <typename T>
constexpr int32_t kRowsBytes = kIsFloat<T> ? 4 : 4 + sizeof(T);

template <typename T>
HPMOE_FUNCTION Rows32<T> TakeRows(int32_t count, Sets* sets) {
  const AscendC::LocalTensor<T> stored = sets->Take<T>(count);
  if constexpr (kIsFloat<T>) {
    return {stored, stored};
  } else {
    return {stored, sets->Take<float>(count)};
  }
}

// values = stored, exactly.
template <typename T>
HPMOE_FUNCTION void Widen(const Rows32<T>& rows, int32_t count) {
  if constexpr (!kIsFloat<T>) {
    AscendC::Cast(rows.values, rows.stored, AscendC::RoundMode::CAST_NONE,
                  count);
  }
}

// stored = values, to nearest, ties to even.
template <typename T>
HPMOE_FUNCTION void Narrow(const Rows32<T>& rows, int32_t count) {
  if constexpr (!kIsFloat<T>) {
    AscendC::Cast(rows.stored, rows.values, AscendC::RoundMode::CAST_RINT,
                  count);
  }
}

// Between casts and arithmetic; float32 is not cast.
template <typename T>
HPMOE_FUNCTION void CastBarrier() {
  if constexpr (!kIsFloat<T>) AscendC::PipeBarrier<PIPE_V>();
}

// What every tile of a vector core has.
class VectorTile {
 protected:
  HPMOE_FUNCTION VectorTile(const TaskDesc& task, const RankTensors& rank,
                            Sets* sets)
      : task_(task),
        kind_(KindRowOf(task)),
        rank_(rank),
        sets_(sets),
        row_(FirstRow(task, rank.plan)),
        rows_(RealRows(task, rank.plan).count()) {}

  const TaskDesc& task_;
  const KindRow kind_;
  const RankTensors& rank_;
  Sets* const sets_;
  const int64_t row_;  // the first where it is written; of a relay, read
  const int32_t rows_;
  const AscendC::LocalTensor<float> weights_ =
      UbTensor<float>(kUbWeights, kWindowRows* kBlockFloats);
};

// Calls tile.RunWindow(first, count) for all of [begin, end), `step` at a time.
// What a window wrote is there, and its place in UB is free, before the next.
template <class Tile>
HPMOE_FUNCTION void RunWindows(int32_t begin, int32_t end, int32_t step,
                               Tile* tile) {
  for (int32_t at = begin; at < end; at += step) {
    tile->RunWindow(at, Least(step, end - at));
    Fence();
  }
}

// Calls tile.RunPass(row, first, col, box) for all passes of a window, which is
// of rows [begin, begin + count) and columns `cols`.  A pass begins at row
// `row` and column `col`; `first` is the row counted from `begin`.  The box has
// no pitch yet.
template <class Tile>
HPMOE_FUNCTION void RunPasses(int32_t begin, int32_t count,
                              const Interval& cols, const Pass& pass,
                              Tile* tile) {
  for (int32_t first = 0; first < count; first += pass.rows) {
    const int32_t rows = Least(pass.rows, count - first);
    for (int32_t col = cols.begin; col < cols.end; col += pass.cols) {
      tile->RunPass(begin + first, first, col,
                    {rows, Least(pass.cols, cols.end - col), 0});
    }
  }
}

// Rows of a pass, each of `width` values.
struct Shape {
  int32_t rows, width;
  HPMOE_FUNCTION int32_t size() const { return rows * width; }
};

// Multiplies each row by its weight, which lies in a block of its own.
HPMOE_FUNCTION void ScaleRows(const AscendC::LocalTensor<float>& values,
                              const AscendC::LocalTensor<float>& weights,
                              const Shape& shape) {
  for (int32_t row = 0; row < shape.rows; ++row) {
    const AscendC::LocalTensor<float> at = values[row * shape.width];
    AscendC::Muls(at, at, weights.GetValue(row * kBlockFloats), shape.width);
  }
}

constexpr int32_t kRepeatFloats = 64;  // of one repeat of an instruction
constexpr int32_t kMaxRepeats = 255;
static_assert(kSetBytes / 8 <= kMaxRepeats * kRepeatFloats,
              "a row of which a set holds two floats a column is summed by one "
              "instruction");

// Adds the values behind the last whole 64 of a row's first `count` to its
// first.
HPMOE_FUNCTION void FoldTails(const AscendC::LocalTensor<float>& values,
                              const Shape& shape, int32_t count) {
  const int32_t tail = count % kRepeatFloats;
  if (count < kRepeatFloats || tail == 0) return;
  for (int32_t row = 0; row < shape.rows; ++row) {
    const AscendC::LocalTensor<float> at = values[row * shape.width];
    AscendC::Add(at, at, at[count - tail], tail);
  }
  AscendC::PipeBarrier<PIPE_V>();
}

// The sum of the first `cols` values of each row, to the first of the row in
// what it returns; values and scratch are overwritten.  64 lanes are summed by
// a tree, and their sums so again; what no 64 divide is added to the first
// lanes before.
HPMOE_FUNCTION AscendC::LocalTensor<float> SumRows(
    AscendC::LocalTensor<float> values, AscendC::LocalTensor<float> scratch,
    const Shape& shape, int32_t cols) {
  for (int32_t left = cols;;) {
    AscendC::PipeBarrier<PIPE_V>();
    FoldTails(values, shape, left);
    const int32_t lanes = Least(left, kRepeatFloats);
    left /= lanes;
    for (int32_t row = 0; row < shape.rows; ++row) {
      SumRepeats(scratch[row * shape.width], values[row * shape.width], lanes,
                 left);
    }
    if (left == 1) return scratch;
    const AscendC::LocalTensor<float> sums = scratch;
    scratch = values;
    values = sums;
  }
}

// Adds each row's sum to its dot.
HPMOE_FUNCTION void AddDots(const AscendC::LocalTensor<float>& dots,
                            const AscendC::LocalTensor<float>& sums,
                            const Shape& shape) {
  AscendC::PipeBarrier<PIPE_V>();
  for (int32_t row = 0; row < shape.rows; ++row) {
    const AscendC::LocalTensor<float> dot = dots[row * kBlockFloats];
    AscendC::Add(dot, dot, sums[row * shape.width], 1);
  }
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_ROWS_H_
