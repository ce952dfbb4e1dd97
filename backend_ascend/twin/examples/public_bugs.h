// Mistakes that public kernels for NPUs were mended for, each beside the kernel
// without it: `right` chooses.  They read nothing of this project.

#ifndef BACKEND_ASCEND_TWIN_EXAMPLES_PUBLIC_BUGS_H_
#define BACKEND_ASCEND_TWIN_EXAMPLES_PUBLIC_BUGS_H_

#include "kernel_operator.h"

namespace public_bugs {

using AscendC::HardEvent;

constexpr uint32_t kWidth = 64;  // elements of a row
constexpr uint32_t kRowBytes = kWidth * sizeof(float);

inline __aicore__ AscendC::GlobalTensor<float> Global(GM_ADDR base,
                                                      uint32_t rows) {
  AscendC::GlobalTensor<float> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(base), rows * kWidth);
  return tensor;
}

// Waits with one pipe for all that another was given.
template <HardEvent event>
__aicore__ inline void Order() {
  AscendC::SetFlag<event>(EVENT_ID0);
  AscendC::WaitFlag<event>(EVENT_ID0);
}

// Moves one row on through UB.
__aicore__ inline void MoveRow(AscendC::GlobalTensor<float> to,
                               AscendC::GlobalTensor<float> from,
                               AscendC::LocalTensor<float> row) {
  AscendC::DataCopy(row, from, kWidth);
  Order<HardEvent::MTE2_MTE3>();
  AscendC::DataCopy(to, row, kWidth);
  Order<HardEvent::MTE3_MTE2>();
}

// Each core adds up one expert's rows; then the first core adds up the experts.
// Memory of torch.empty: an expert without rows must write zeros.  Of 4 experts
// the second has none.
template <bool right>
__aicore__ inline void ExpertWithoutRows(GM_ADDR x, GM_ADDR space, GM_ADDR y) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::QuePosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, 2 * kRowBytes);
  AscendC::LocalTensor<float> sum = buffer.Get<float>();
  AscendC::LocalTensor<float> row = sum[kWidth];
  const uint32_t expert = AscendC::GetBlockIdx();
  const uint32_t begins[] = {0, 3, 3, 5, 8};
  AscendC::GlobalTensor<float> sums = Global(space, 4);
  const auto add = [&](AscendC::GlobalTensor<float> from, uint32_t begin,
                       uint32_t end) {
    AscendC::Duplicate(sum, 0.0f, kWidth);
    for (uint32_t i = begin; i < end; ++i) {
      AscendC::DataCopy(row, from[i * kWidth], kWidth);
      Order<HardEvent::MTE2_V>();
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Add(sum, sum, row, kWidth);
      Order<HardEvent::V_MTE2>();
    }
    Order<HardEvent::V_MTE3>();
  };
  if (!right && begins[expert] == begins[expert + 1]) {
    AscendC::SyncAll();
    return;
  }
  add(Global(x, 8), begins[expert], begins[expert + 1]);
  AscendC::DataCopy(sums[expert * kWidth], sum, kWidth);
  AscendC::PipeBarrier<PIPE_ALL>();
  AscendC::SyncAll();
  if (expert != 0) return;
  add(sums, 0, 4);
  AscendC::DataCopy(Global(y, 1), sum, kWidth);
}

// Rows back in their order, each core a part: 8 rows on 3 cores.
template <bool right>
__aicore__ inline void UnpermuteTail(GM_ADDR x, GM_ADDR, GM_ADDR y) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::QuePosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, kRowBytes);
  const uint32_t rows = 8;
  const uint32_t cores = AscendC::GetBlockNum();
  const uint32_t part = right ? (rows + cores - 1) / cores : rows / cores;
  const uint32_t begin = AscendC::GetBlockIdx() * part;
  for (uint32_t i = begin; i < begin + part && i < rows; ++i) {
    MoveRow(Global(y, rows)[(rows - 1 - i) * kWidth],
            Global(x, rows)[i * kWidth], buffer.Get<float>());
  }
}

// A row of 61 elements, doubled and stored in whole blocks: what DataCopyPad
// puts to the right of them is anything unless isPad says what.
template <bool right>
__aicore__ inline void RightPadding(GM_ADDR x, GM_ADDR, GM_ADDR y) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::QuePosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, kRowBytes);
  AscendC::LocalTensor<float> row = buffer.Get<float>();
  const AscendC::DataCopyExtParams params{1, 61 * sizeof(float), 0, 0, 0};
  const AscendC::DataCopyPadExtParams<float> pad{right, 0, right ? 3 : 0, 0.0f};
  AscendC::DataCopyPad(row, Global(x, 1), params, pad);
  Order<HardEvent::MTE2_V>();
  AscendC::Add(row, row, row, kWidth);
  Order<HardEvent::V_MTE3>();
  AscendC::DataCopy(Global(y, 1), row, kWidth);
}

// Each core keeps a row in the workspace and takes it back.
template <bool right>
__aicore__ inline void SharedWorkspace(GM_ADDR x, GM_ADDR space, GM_ADDR y) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::QuePosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, kRowBytes);
  const uint32_t own = AscendC::GetBlockIdx();
  const uint32_t place = right ? own : 0;
  AscendC::LocalTensor<float> row = buffer.Get<float>();
  MoveRow(Global(space, 8)[place * kWidth], Global(x, 8)[own * kWidth], row);
  MoveRow(Global(y, 8)[own * kWidth], Global(space, 8)[place * kWidth], row);
}

// Loads the next row before it frees the last: that takes two buffers.
template <bool right>
__aicore__ inline void QueueOfOne(GM_ADDR x, GM_ADDR, GM_ADDR y) {
  constexpr int32_t kDepth = right ? 2 : 1;
  AscendC::TPipe pipe;
  AscendC::TQueBind<AscendC::TPosition::VECIN, AscendC::TPosition::VECOUT,
                    kDepth>
      queue;
  pipe.InitBuffer(queue, kDepth, kRowBytes);
  const auto load = [&](uint32_t i) {
    AscendC::LocalTensor<float> row = queue.template AllocTensor<float>();
    AscendC::DataCopy(row, Global(x, 8)[i * kWidth], kWidth);
    queue.EnQue(row);
  };
  load(0);
  for (uint32_t i = 0; i < 8; ++i) {
    if (i + 1 < 8) load(i + 1);
    AscendC::LocalTensor<float> row = queue.template DeQue<float>();
    AscendC::DataCopy(Global(y, 8)[i * kWidth], row, kWidth);
    queue.FreeTensor(row);
  }
}

// Two loads under one flag: the second sets it before the first was waited for.
template <bool right>
__aicore__ inline void FlagReused(GM_ADDR x, GM_ADDR, GM_ADDR y) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::QuePosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, 8 * kRowBytes);
  AscendC::LocalTensor<float> rows = buffer.Get<float>();
  for (uint32_t i = 0; i < 2; ++i) {
    AscendC::DataCopy(rows[i * kWidth], Global(x, 8)[i * kWidth], kWidth);
    AscendC::SetFlag<HardEvent::MTE2_MTE3>(right ? i : 0);
  }
  for (uint32_t i = 0; i < 2; ++i) {
    AscendC::WaitFlag<HardEvent::MTE2_MTE3>(right ? i : 0);
    AscendC::DataCopy(Global(y, 8)[i * kWidth], rows[i * kWidth], kWidth);
  }
}

}  // namespace public_bugs

#endif  // BACKEND_ASCEND_TWIN_EXAMPLES_PUBLIC_BUGS_H_
