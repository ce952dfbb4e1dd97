// The activation of gate and up, and its gradient.  silu rounds where
// host/tiles/tile_kernels.h says; its slope rounds each product and sum, where
// the host has fused ones: equal but for rounding.
//
// With e = exp(-gate) and s = 1 / (1 + e): silu = gate / (1 + e) and its slope
// is silu * rest + s, where rest = c / (1 + c), c = min(e, 2^126): 1 - s with
// all its digits, finite where e is not.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_SWIGLU_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_SWIGLU_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/rank_tensors.h"
#include "backend_ascend/device/megakernel/vector_memory.h"
#include "backend_ascend/device/megakernel/vector_rows.h"

namespace hpmoe {

constexpr float kLargest = 8.507059173023462e37f;  // 2^126
constexpr float kSteep = 1.7014118346046923e38f;   // 2^127

// act = activation(gate).
HPMOE_FUNCTION void Activate(ActivationKind activation,
                             const AscendC::LocalTensor<float>& act,
                             const AscendC::LocalTensor<float>& gate,
                             int32_t count) {
  if (activation == kAbsolute) return AscendC::Abs(act, gate, count);
  AscendC::Muls(act, gate, -1.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Exp(act, act, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Adds(act, act, 1.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Div(act, gate, act, count);
}

// act = |gate|, slope = its sign: a subnormal times 2^254 is more than 1.
HPMOE_FUNCTION void AbsoluteSlope(const AscendC::LocalTensor<float>& gate,
                                  const AscendC::LocalTensor<float>& act,
                                  const AscendC::LocalTensor<float>& slope,
                                  int32_t count) {
  AscendC::Abs(act, gate, count);
  AscendC::Muls(slope, gate, kSteep, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Muls(slope, slope, kSteep, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Maxs(slope, slope, -1.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Mins(slope, slope, 1.0f, count);
}

// act = silu(gate) and its slope; gate and scratch are overwritten.
HPMOE_FUNCTION void SiluSlope(const AscendC::LocalTensor<float>& gate,
                              const AscendC::LocalTensor<float>& act,
                              const AscendC::LocalTensor<float>& slope,
                              const AscendC::LocalTensor<float>& scratch,
                              int32_t count) {
  AscendC::Muls(slope, gate, -1.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Exp(slope, slope, count);  // e
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Adds(scratch, slope, 1.0f, count);  // 1 + e
  AscendC::Mins(act, slope, kLargest, count);  // c
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Adds(slope, act, 1.0f, count);  // 1 + c
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Div(slope, act, slope, count);  // rest
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Div(act, gate, scratch, count);  // silu
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Mul(slope, act, slope, count);
  AscendC::Duplicate(gate, 1.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Div(gate, gate, scratch, count);  // s
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Add(slope, slope, gate, count);
}

// Weights of rows of the rank, from their headers, each to a block of its own.
HPMOE_FUNCTION void LoadRowWeights(const AscendC::LocalTensor<float>& weights,
                                   const RankTensors& rank, int64_t row,
                                   int32_t count) {
  MoveIn(weights, rank.args.header_weight + row, {count, 1, 1});
  AwaitMoveIn();
}

// out = act(gate) * up [* weight] for a tile.
template <typename T>
class SwigluTileOnUb : VectorTile {
 public:
  HPMOE_FUNCTION SwigluTileOnUb(const TaskDesc& task, const RankTensors& rank,
                                Sets* sets)
      : VectorTile(task, rank, sets),
        pass_(PassOf<T>(task.col_end - task.col_begin, 3 * kRowsBytes<T>)) {}

  HPMOE_FUNCTION void Run() { RunWindows(0, rows_, kWindowRows, this); }

  HPMOE_FUNCTION void RunWindow(int32_t begin, int32_t count) {
    if (rank_.IsWeighted(kind_)) {
      LoadRowWeights(weights_, rank_, row_ + begin, count);
    }
    RunPasses(begin, count, {task_.col_begin, task_.col_end}, pass_, this);
  }

  HPMOE_FUNCTION void RunPass(int32_t row, int32_t first, int32_t col,
                              Box box) {
    const Shape shape = {box.rows, WidthOf<T>(box.cols)};
    sets_->Load();
    const Rows32<T> gate = TakeRows<T>(shape.size(), sets_);
    const Rows32<T> up = TakeRows<T>(shape.size(), sets_);
    const Rows32<T> out = TakeRows<T>(shape.size(), sets_);
    box.pitch = rank_.Cols(kind_.left);
    MoveIn(gate.stored, rank_.At<T>(kind_.left, row_ + row, col), box);
    MoveIn(up.stored,
           rank_.At<T>(kind_.left, row_ + row, rank_.image.d_ff + col), box);
    sets_->Compute();
    Widen(gate, shape.size());
    Widen(up, shape.size());
    CastBarrier<T>();
    Activate(static_cast<ActivationKind>(rank_.image.activation), out.values,
             gate.values, shape.size());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(out.values, out.values, up.values, shape.size());
    if (rank_.IsWeighted(kind_)) {
      AscendC::PipeBarrier<PIPE_V>();
      ScaleRows(out.values, weights_[first * kBlockFloats], shape);
    }
    CastBarrier<T>();
    Narrow(out, shape.size());
    sets_->StoreComputed();
    box.pitch = rank_.Cols(kind_.written);
    MoveOut(rank_.At<T>(kind_.written, row_ + row, col), out.stored, box);
    sets_->End();
  }

 private:
  const Pass pass_;
};

// Gradients of gate and up over whole rows, and of each row's weight where it
// is applied before w_down.
template <typename T>
class SwigluGradOnUb : VectorTile {
 public:
  HPMOE_FUNCTION SwigluGradOnUb(const TaskDesc& task, const RankTensors& rank,
                                Sets* sets)
      : VectorTile(task, rank, sets),
        pass_(PassOf<T>(rank.image.d_ff, 5 * kRowsBytes<T> + 4)) {}

  HPMOE_FUNCTION void Run() { RunWindows(0, rows_, kWindowRows, this); }

  HPMOE_FUNCTION void RunWindow(int32_t begin, int32_t count) {
    const bool weighted = rank_.IsWeighted(kind_);
    if (weighted) {
      LoadRowWeights(weights_, rank_, row_ + begin, count);
      AscendC::Duplicate(dots_, 0.0f, count * kBlockFloats);
    }
    RunPasses(begin, count, {0, rank_.image.d_ff}, pass_, this);
    if (!weighted) return;
    // Behind the last pass's store, which waited for all vector work.
    MoveOut(rank_.args.d_row_weight + row_ + begin, dots_, {count, 1, 1});
  }

  HPMOE_FUNCTION void RunPass(int32_t row, int32_t first, int32_t col,
                              Box box) {
    const Shape shape = {box.rows, WidthOf<T>(box.cols)};
    sets_->Load();
    const Buffers at = Take(shape.size());
    Load(at, row_ + row, col, box);
    sets_->Compute();
    Widen(at.d, shape.size());
    Widen(at.gate, shape.size());
    Widen(at.up, shape.size());
    CastBarrier<T>();
    Slope(at, shape.size());
    if (rank_.IsWeighted(kind_)) WeightGrads(at, shape, first, box.cols);
    Products(at, shape.size());
    CastBarrier<T>();
    Narrow(at.d_gate, shape.size());
    Narrow(at.d_up, shape.size());
    sets_->StoreComputed();
    box.pitch = rank_.Cols(kind_.written);
    HPMOE_GM T* const out = rank_.At<T>(kind_.written, row_ + row, col);
    MoveOut(out, at.d_gate.stored, box);
    MoveOut(out + rank_.image.d_ff, at.d_up.stored, box);
    sets_->End();
  }

 private:
  // What a pass works on.
  struct Buffers {
    Rows32<T> d, gate, up, d_gate, d_up;
    AscendC::LocalTensor<float> scratch;
  };

  HPMOE_FUNCTION Buffers Take(int32_t count) {
    const Rows32<T> d = TakeRows<T>(count, sets_);
    const Rows32<T> gate = TakeRows<T>(count, sets_);
    const Rows32<T> up = TakeRows<T>(count, sets_);
    const Rows32<T> d_gate = TakeRows<T>(count, sets_);
    const Rows32<T> d_up = TakeRows<T>(count, sets_);
    return {d, gate, up, d_gate, d_up, sets_->Take<float>(count)};
  }

  HPMOE_FUNCTION void Load(const Buffers& at, int64_t row, int32_t col,
                           Box box) {
    box.pitch = rank_.Cols(kind_.left);
    MoveIn(at.d.stored, rank_.At<T>(kind_.left, row, col), box);
    box.pitch = rank_.Cols(kind_.right);
    HPMOE_GM T* const gate = rank_.At<T>(kind_.right, row, col);
    MoveIn(at.gate.stored, gate, box);
    MoveIn(at.up.stored, gate + rank_.image.d_ff, box);
  }

  // d_gate = slope, d_up = activation.  Only d_gate is not settled: it is read
  // behind the barrier of Products.
  HPMOE_FUNCTION void Slope(const Buffers& at, int32_t count) {
    if (rank_.image.activation == kAbsolute) {
      AbsoluteSlope(at.gate.values, at.d_up.values, at.d_gate.values, count);
    } else {
      SiluSlope(at.gate.values, at.d_up.values, at.d_gate.values, at.scratch,
                count);
    }
  }

  // Adds to each row's dot of d and act * up, then d *= the row's weight.
  // `first`: the pass's first row, of the window.
  HPMOE_FUNCTION void WeightGrads(const Buffers& at, const Shape& shape,
                                  int32_t first, int32_t cols) {
    AscendC::Mul(at.scratch, at.d_up.values, at.up.values, shape.size());
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(at.scratch, at.d.values, at.scratch, shape.size());
    const AscendC::LocalTensor<float> sums =
        SumRows(at.scratch, at.gate.values, shape, cols);
    AddDots(dots_[first * kBlockFloats], sums, shape);
    ScaleRows(at.d.values, weights_[first * kBlockFloats], shape);
    AscendC::PipeBarrier<PIPE_V>();
  }

  // d_gate *= d * up, d_up *= d.
  HPMOE_FUNCTION void Products(const Buffers& at, int32_t count) {
    AscendC::Mul(at.d_up.values, at.d.values, at.d_up.values, count);
    AscendC::Mul(at.up.values, at.d.values, at.up.values, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(at.d_gate.values, at.up.values, at.d_gate.values, count);
  }

  const Pass pass_;
  const AscendC::LocalTensor<float> dots_ =
      UbTensor<float>(kUbDots, kWindowRows* kBlockFloats);
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_SWIGLU_H_
