// Rows of int8 codes with a scale each: what host/tiles/codes/code_tiles.h
// says of the host's, with equal bits.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_CODES_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_CODES_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/rank_tensors.h"
#include "backend_ascend/device/megakernel/vector_memory.h"
#include "backend_ascend/device/megakernel/vector_rows.h"
#include "backend_ascend/device/megakernel/vector_swiglu.h"

namespace hpmoe {

constexpr float kTopCode = 127.0f;

// Scales of a window's rows, side by side: those that the scalar unit reads,
// and those that it makes.  A task of codes has no dots.
constexpr uint32_t kUbScales = kUbDots + 4 * kWindowRows;
constexpr uint32_t kUbMadeScales = kUbScales + 4 * kWindowRows;
static_assert(kUbMadeScales + 4 * kWindowRows <= kUbSets, "dots have room");

// Scales that the scalar unit made, to global memory.
HPMOE_FUNCTION void StoreScales(HPMOE_GM float* to,
                                const AscendC::LocalTensor<float>& scales,
                                int32_t count) {
  AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(0);
  AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(0);
  MoveOut(to, scales, {1, count, count});
}

// A part of a row in a set, that becomes codes.  `width`: whole blocks of
// floats, zeros behind the row's end; `room`: whole blocks of codes.
struct CodePart {
  AscendC::LocalTensor<float> values, scratch;
  AscendC::LocalTensor<int8_t> codes;
  int32_t width, room;
};
constexpr int32_t kCodeBytes = 4 + 1;  // of a column, beside its value

// Loads a part: what Row::Make returns is settled.
template <class Row>
HPMOE_FUNCTION CodePart MakePart(const Row& row, int32_t col, int32_t cols,
                                 Sets* sets) {
  const int32_t room = WidthOf<int8_t>(cols);
  sets->Load();
  const AscendC::LocalTensor<float> values = row.Make(col, cols, sets);
  const AscendC::LocalTensor<float> scratch = sets->Take<float>(room);
  return {values, scratch, sets->Take<int8_t>(room), WidthOf<float>(cols),
          room};
}

// The largest magnitude as bits: NaN is the largest.  By halves, then the
// lanes of a block by the scalar unit.
HPMOE_FUNCTION int32_t LargestBits(const CodePart& part) {
  const AscendC::LocalTensor<int32_t> bits =
      part.scratch.ReinterpretCast<int32_t>();
  AscendC::Abs(part.scratch, part.values, part.width);
  for (int32_t left = part.width; left > kBlockFloats;) {
    const int32_t middle = RoundUp(DivideUp(left, 2), kBlockFloats);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Max(bits, bits, bits[middle], left - middle);
    left = middle;
  }
  AscendC::SetFlag<AscendC::HardEvent::V_S>(0);
  AscendC::WaitFlag<AscendC::HardEvent::V_S>(0);
  int32_t largest = 0;
  for (int32_t lane = 0; lane < kBlockFloats; ++lane) {
    const int32_t one = bits.GetValue(lane);
    largest = one > largest ? one : largest;
  }
  // Vector work may overwrite the lanes.
  AscendC::SetFlag<AscendC::HardEvent::S_V>(0);
  AscendC::WaitFlag<AscendC::HardEvent::S_V>(0);
  return largest;
}

// codes = values * factor, to nearest, ties to even; NaN is 0.  Each cast but
// the first is exact.
HPMOE_FUNCTION void MakeCodes(const CodePart& part, float factor) {
  const AscendC::LocalTensor<int16_t> whole =
      part.scratch.ReinterpretCast<int16_t>();
  const AscendC::LocalTensor<half> halves =
      part.scratch.ReinterpretCast<half>()[part.room];
  AscendC::Muls(part.values, part.values, factor, part.width);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Cast(whole, part.values, AscendC::RoundMode::CAST_RINT, part.width);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Cast(halves, whole, AscendC::RoundMode::CAST_NONE, part.width);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Cast(part.codes, halves, AscendC::RoundMode::CAST_RINT, part.width);
}

union BitsOrFloat {
  int32_t bits;
  float value;
};

// Codes of a row to global memory; returns their scale.  A row that a set does
// not hold is made twice: for its largest value, and for its codes.
template <class Row>
HPMOE_FUNCTION float QuantiseRow(const Row& row, int32_t cols,
                                 HPMOE_GM int8_t* to, Sets* sets) {
  const int32_t step = PassOf<int8_t>(cols, Row::kBytes + kCodeBytes).cols;
  BitsOrFloat largest = {0};
  CodePart part;
  for (int32_t col = 0; col < cols; col += step) {
    part = MakePart(row, col, Least(step, cols - col), sets);
    const int32_t bits = LargestBits(part);
    largest.bits = bits > largest.bits ? bits : largest.bits;
    if (step == cols) break;
    sets->StoreComputed();
    sets->End();
  }
  const float factor = largest.bits == 0 ? 0.0f : kTopCode / largest.value;
  for (int32_t col = 0; col < cols; col += step) {
    const int32_t count = Least(step, cols - col);
    if (step < cols) part = MakePart(row, col, count, sets);
    MakeCodes(part, factor);
    sets->StoreComputed();
    MoveOut(to + col, part.codes, {1, count, count});
    sets->End();
  }
  return largest.bits == 0 ? 0.0f : 1.0f / factor;
}

// A row that lies in global memory as it is stored.
template <typename T>
struct StoredRow {
  static constexpr int32_t kBytes = kRowsBytes<T>;
  HPMOE_GM T* from;

  HPMOE_FUNCTION AscendC::LocalTensor<float> Make(int32_t col, int32_t cols,
                                                  Sets* sets) const {
    const Rows32<T> row = TakeRows<T>(WidthOf<int8_t>(cols), sets);
    MoveIn(row.stored, from + col, {1, cols, cols});
    sets->Compute();
    Widen(row, WidthOf<T>(cols));
    CastBarrier<T>();
    return row.values;
  }
};

// What sums of codes mean, in their place and settled.
HPMOE_FUNCTION AscendC::LocalTensor<float> Dequantise(
    const AscendC::LocalTensor<int32_t>& sums, float row_scale,
    const AscendC::LocalTensor<float>& col_scales, int32_t width) {
  const AscendC::LocalTensor<float> values = sums.ReinterpretCast<float>();
  AscendC::Cast(values, sums, AscendC::RoundMode::CAST_RINT, width);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Muls(values, values, row_scale, width);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Mul(values, values, col_scales, width);
  AscendC::PipeBarrier<PIPE_V>();
  return values;
}

// Rounds settled values as the storage does; `scratch` has their size.
template <typename T>
HPMOE_FUNCTION void RoundStored(const AscendC::LocalTensor<float>& values,
                                const AscendC::LocalTensor<float>& scratch,
                                int32_t width) {
  if constexpr (!kIsFloat<T>) {
    const Rows32<T> rows = {scratch.ReinterpretCast<T>(), values};
    Narrow(rows, width);
    AscendC::PipeBarrier<PIPE_V>();
    Widen(rows, width);
    AscendC::PipeBarrier<PIPE_V>();
  }
}

// act(gate) * up [* weight] of a row of sums.
template <typename T>
struct SwigluRow {
  static constexpr int32_t kBytes = 4 * 4;
  const RankTensors& rank;
  HPMOE_GM int32_t* sums;  // gate, then up
  HPMOE_GM float* scales;  // of their columns
  float row_scale;
  float weight;
  bool weighted;

  HPMOE_FUNCTION AscendC::LocalTensor<float> Make(int32_t col, int32_t cols,
                                                  Sets* sets) const {
    const int32_t room = WidthOf<int8_t>(cols), width = WidthOf<float>(cols);
    const int32_t up_col = rank.image.d_ff + col;
    const Box box = {1, cols, cols};
    const AscendC::LocalTensor<int32_t> gate_sums = sets->Take<int32_t>(room);
    const AscendC::LocalTensor<int32_t> up_sums = sets->Take<int32_t>(room);
    const AscendC::LocalTensor<float> out = sets->Take<float>(room);
    const AscendC::LocalTensor<float> scratch = sets->Take<float>(room);
    MoveIn(gate_sums, sums + col, box);
    MoveIn(up_sums, sums + up_col, box);
    MoveIn(out, scales + col, box);
    MoveIn(scratch, scales + up_col, box);
    sets->Compute();
    const AscendC::LocalTensor<float> gate =
        Dequantise(gate_sums, row_scale, out, width);
    const AscendC::LocalTensor<float> up =
        Dequantise(up_sums, row_scale, scratch, width);
    Round(gate, scratch, width);
    Round(up, scratch, width);
    Activate(static_cast<ActivationKind>(rank.image.activation), out, gate,
             width);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(out, out, up, width);
    AscendC::PipeBarrier<PIPE_V>();
    if (weighted) {
      AscendC::Muls(out, out, weight, width);
      AscendC::PipeBarrier<PIPE_V>();
    }
    Round(out, scratch, width);
    return out;
  }

 private:
  HPMOE_FUNCTION void Round(const AscendC::LocalTensor<float>& values,
                            const AscendC::LocalTensor<float>& scratch,
                            int32_t width) const {
    if (rank.image.quantised == kInt8TokenChannelWide) return;
    RoundStored<T>(values, scratch, width);
  }
};

// Whole rows, whatever the columns of the task: a row has one scale.
template <typename T>
class CodeSwiglu : VectorTile {
 public:
  HPMOE_FUNCTION CodeSwiglu(const TaskDesc& task, const RankTensors& rank,
                            Sets* sets)
      : VectorTile(task, rank, sets) {}

  HPMOE_FUNCTION void Run() { RunWindows(0, rows_, kWindowRows, this); }

  HPMOE_FUNCTION void RunWindow(int32_t begin, int32_t count) {
    const bool weighted = rank_.IsWeighted(kind_);
    const int64_t first = row_ + begin;
    if (weighted) LoadRowWeights(weights_, rank_, first, count);
    MoveIn(scales_, rank_.RowScale(kExpertIn, first), {1, count, count});
    AwaitMoveIn();
    for (int32_t i = 0; i < count; ++i) {
      const SwigluRow<T> row = {
          rank_,
          rank_.At<int32_t>(kind_.left, first + i, 0),
          rank_.ColScale(kWGateUp, task_.expert, 0),
          scales_.GetValue(i),
          weighted ? weights_.GetValue(i * kBlockFloats) : 1.0f,
          weighted};
      made_.SetValue(
          i, QuantiseRow(row, rank_.image.d_ff,
                         rank_.At<int8_t>(kind_.written, first + i, 0), sets_));
    }
    StoreScales(rank_.RowScale(kind_.written, first), made_, count);
  }

 private:
  const AscendC::LocalTensor<float> scales_ =
      UbTensor<float>(kUbScales, kWindowRows);
  const AscendC::LocalTensor<float> made_ =
      UbTensor<float>(kUbMadeScales, kWindowRows);
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_CODES_H_
