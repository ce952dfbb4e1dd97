// What a token's rank makes of its rows that came home: their sum, and the
// gradients of its weights.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_TOKENS_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_TOKENS_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/rank_tensors.h"
#include "backend_ascend/device/megakernel/vector_memory.h"
#include "backend_ascend/device/megakernel/vector_puts.h"
#include "backend_ascend/device/megakernel/vector_rows.h"

namespace hpmoe {

// y = the sum of each token's rows in slot order: each product with its weight
// is rounded, then added.
template <typename T>
class SlotSum : VectorTile {
 public:
  HPMOE_FUNCTION SlotSum(const TaskDesc& task, const RankTensors& rank,
                         Sets* sets)
      : VectorTile(task, rank, sets),
        top_k_(rank.image.top_k),
        pass_(PassOf<T>(task.col_end - task.col_begin,
                        top_k_ * kRowsBytes<T> + sizeof(T))) {}

  HPMOE_FUNCTION void Run() {
    RunWindows(task_.row_begin, task_.row_end, kWindowRows / top_k_, this);
  }

  HPMOE_FUNCTION void RunWindow(int32_t begin, int32_t count) {
    if (rank_.IsWeighted(kind_)) {
      MoveIn(weights_,
             const_cast<HPMOE_GM float*>(rank_.args.topk_weights) +
                 int64_t{begin} * top_k_,
             {count * top_k_, 1, 1});
      AwaitMoveIn();
    }
    RunPasses(begin, count, {task_.col_begin, task_.col_end}, pass_, this);
  }

  HPMOE_FUNCTION void RunPass(int64_t token, int32_t first, int32_t col,
                              Box box) {
    const int32_t width = WidthOf<T>(box.cols);
    const Shape slots = {box.rows * top_k_, width};
    sets_->Load();
    const Rows32<T> rows = TakeRows<T>(slots.size(), sets_);
    MoveIn(rows.stored, rank_.At<T>(kind_.left, token * top_k_, col),
           {slots.rows, box.cols, rank_.Cols(kind_.left)});
    sets_->Compute();
    Widen(rows, slots.size());
    if (rank_.IsWeighted(kind_)) {
      CastBarrier<T>();
      ScaleRows(rows.values, weights_[first * top_k_ * kBlockFloats], slots);
    }
    Sum(rows.values, box.rows, width);
    box.pitch = rank_.Cols(kind_.written);
    Store(rows, box, rank_.At<T>(kind_.written, token, col));
    sets_->End();
  }

 private:
  // Of each token, to its first row.
  HPMOE_FUNCTION void Sum(const AscendC::LocalTensor<float>& values,
                          int32_t tokens, int32_t width) const {
    for (int32_t k = 1; k < top_k_; ++k) {
      AscendC::PipeBarrier<PIPE_V>();
      for (int32_t i = 0; i < tokens; ++i) {
        const AscendC::LocalTensor<float> sum = values[i * top_k_ * width];
        AscendC::Add(sum, sum, sum[k * width], width);
      }
    }
  }

  HPMOE_FUNCTION void Store(const Rows32<T>& rows, const Box& box,
                            HPMOE_GM T* out) {
    const int32_t pitch = top_k_ * WidthOf<T>(box.cols);
    CastBarrier<T>();
    for (int32_t i = 0; i < box.rows; ++i) {
      Narrow(Rows32<T>{rows.stored[i * pitch], rows.values[i * pitch]},
             WidthOf<T>(box.cols));
    }
    sets_->StoreComputed();
    const int32_t bytes = (top_k_ - 1) * WidthOf<T>(box.cols) * sizeof(T);
    MoveOut(out, rows.stored, box, bytes / kBlockBytes);
  }

  const int32_t top_k_;
  const Pass pass_;
};

// Gradients of each token's weights: the dots of its row of left with its rows
// of right, or what came home with the rows.
template <typename T>
class WeightDots : VectorTile {
 public:
  HPMOE_FUNCTION WeightDots(const TaskDesc& task, const RankTensors& rank,
                            Sets* sets)
      : VectorTile(task, rank, sets),
        top_k_(rank.image.top_k),
        pass_(PassOf<T>(rank.Cols(kind_.left),
                        top_k_ * (kRowsBytes<T> + 4) + kRowsBytes<T>)) {}

  HPMOE_FUNCTION void Run() {
    RunWindows(task_.row_begin, task_.row_end, kWindowRows / top_k_, this);
  }

  HPMOE_FUNCTION void RunWindow(int32_t begin, int32_t count) {
    const int32_t slots = count * top_k_;
    if (rank_.args.d_slot_weight != nullptr) return CopyGrads(begin, slots);
    AscendC::Duplicate(dots_, 0.0f, slots * kBlockFloats);
    RunPasses(begin, count, {0, rank_.Cols(kind_.left)}, pass_, this);
    MoveOut(rank_.At<float>(kind_.written, begin, 0), dots_, {slots, 1, 1});
  }

  HPMOE_FUNCTION void RunPass(int64_t token, int32_t first, int32_t col,
                              Box box) {
    const int32_t width = WidthOf<T>(box.cols);
    const Shape slots = {box.rows * top_k_, width};
    box.pitch = rank_.Cols(kind_.left);
    sets_->Load();
    const Rows32<T> left = TakeRows<T>(box.rows * width, sets_);
    const Rows32<T> right = TakeRows<T>(slots.size(), sets_);
    const AscendC::LocalTensor<float> scratch =
        sets_->Take<float>(slots.size());
    MoveIn(left.stored, rank_.At<T>(kind_.left, token, col), box);
    MoveIn(right.stored, rank_.At<T>(kind_.right, token * top_k_, col),
           {slots.rows, box.cols, box.pitch});
    sets_->Compute();
    Widen(left, box.rows * width);
    Widen(right, slots.size());
    CastBarrier<T>();
    Multiply(left.values, right.values, slots);
    AddDots(dots_[first * top_k_ * kBlockFloats],
            SumRows(right.values, scratch, slots, box.cols), slots);
    sets_->StoreComputed();
    sets_->End();
  }

 private:
  // They came home with the rows.
  HPMOE_FUNCTION void CopyGrads(int64_t token, int32_t count) {
    CopyRow(rank_.At<float>(kind_.written, token, 0),
            rank_.args.d_slot_weight + token * top_k_, count, sets_);
  }

  // right *= the row of left of its token.
  HPMOE_FUNCTION void Multiply(const AscendC::LocalTensor<float>& left,
                               const AscendC::LocalTensor<float>& right,
                               const Shape& slots) const {
    for (int32_t i = 0; i < slots.rows; ++i) {
      const AscendC::LocalTensor<float> row = right[i * slots.width];
      AscendC::Mul(row, row, left[i / top_k_ * slots.width], slots.width);
    }
  }

  const int32_t top_k_;
  const Pass pass_;
  const AscendC::LocalTensor<float> dots_ =
      UbTensor<float>(kUbDots, kWindowRows* kBlockFloats);
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_TOKENS_H_
