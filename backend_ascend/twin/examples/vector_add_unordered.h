// vector_add.h with a mistake: it takes its buffers from the queues but never
// calls EnQue and DeQue, so nothing orders the pipes.  A simulator that runs a
// core's instructions one after the other computes the right sums.

#ifndef BACKEND_ASCEND_TWIN_EXAMPLES_VECTOR_ADD_UNORDERED_H_
#define BACKEND_ASCEND_TWIN_EXAMPLES_VECTOR_ADD_UNORDERED_H_

#include "kernel_operator.h"

extern "C" __global__ __aicore__ void vector_add_unordered(GM_ADDR x, GM_ADDR y,
                                                           GM_ADDR z,
                                                           uint32_t count) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  constexpr uint32_t kTile = 256;
  AscendC::TPipe pipe;
  AscendC::TQue<AscendC::QuePosition::VECIN, 2> in;
  AscendC::TQue<AscendC::QuePosition::VECOUT, 2> out;
  pipe.InitBuffer(in, 2, 2 * kTile * sizeof(float));
  pipe.InitBuffer(out, 2, kTile * sizeof(float));
  const uint32_t part = count / AscendC::GetBlockNum();
  const uint64_t begin = AscendC::GetBlockIdx() * part;
  AscendC::GlobalTensor<float> x_all;
  AscendC::GlobalTensor<float> y_all;
  AscendC::GlobalTensor<float> z_all;
  x_all.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x), count);
  y_all.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(y), count);
  z_all.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(z), count);
  for (uint64_t first = begin; first < begin + part; first += kTile) {
    AscendC::LocalTensor<float> xy = in.AllocTensor<float>();
    AscendC::LocalTensor<float> sum = out.AllocTensor<float>();
    AscendC::DataCopy(xy, x_all[first], kTile);
    AscendC::DataCopy(xy[kTile], y_all[first], kTile);
    AscendC::Add(sum, xy, xy[kTile], kTile);
    AscendC::DataCopy(z_all[first], sum, kTile);
    in.FreeTensor(xy);
    out.FreeTensor(sum);
  }
}

#endif  // BACKEND_ASCEND_TWIN_EXAMPLES_VECTOR_ADD_UNORDERED_H_
