// A kernel as others write them: z = x + y on all AIVs, each over its part, in
// tiles through queues of two buffers.  It includes nothing of this project.

#ifndef BACKEND_ASCEND_TWIN_EXAMPLES_VECTOR_ADD_H_
#define BACKEND_ASCEND_TWIN_EXAMPLES_VECTOR_ADD_H_

#include "kernel_operator.h"

class VectorAdd {
 public:
  static constexpr uint32_t kBuffers = 2;  // of each queue
  static constexpr uint32_t kTile = 256;   // elements

  __aicore__ inline void Init(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint32_t count) {
    const uint32_t part = count / AscendC::GetBlockNum();
    const uint64_t first = AscendC::GetBlockIdx() * part;
    tiles_ = part / kTile;
    x_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x) + first, part);
    y_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(y) + first, part);
    z_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(z) + first, part);
    pipe_.InitBuffer(x_queue_, kBuffers, kTile * sizeof(float));
    pipe_.InitBuffer(y_queue_, kBuffers, kTile * sizeof(float));
    pipe_.InitBuffer(z_queue_, kBuffers, kTile * sizeof(float));
  }

  __aicore__ inline void Process() {
    for (uint32_t tile = 0; tile < tiles_; ++tile) {
      Load(tile);
      Compute();
      Store(tile);
    }
  }

 private:
  __aicore__ inline void Load(uint32_t tile) {
    AscendC::LocalTensor<float> x = x_queue_.AllocTensor<float>();
    AscendC::LocalTensor<float> y = y_queue_.AllocTensor<float>();
    AscendC::DataCopy(x, x_[tile * kTile], kTile);
    AscendC::DataCopy(y, y_[tile * kTile], kTile);
    x_queue_.EnQue(x);
    y_queue_.EnQue(y);
  }

  __aicore__ inline void Compute() {
    AscendC::LocalTensor<float> x = x_queue_.DeQue<float>();
    AscendC::LocalTensor<float> y = y_queue_.DeQue<float>();
    AscendC::LocalTensor<float> z = z_queue_.AllocTensor<float>();
    AscendC::Add(z, x, y, kTile);
    z_queue_.EnQue(z);
    x_queue_.FreeTensor(x);
    y_queue_.FreeTensor(y);
  }

  __aicore__ inline void Store(uint32_t tile) {
    AscendC::LocalTensor<float> z = z_queue_.DeQue<float>();
    AscendC::DataCopy(z_[tile * kTile], z, kTile);
    z_queue_.FreeTensor(z);
  }

  AscendC::TPipe pipe_;
  AscendC::TQue<AscendC::QuePosition::VECIN, kBuffers> x_queue_;
  AscendC::TQue<AscendC::QuePosition::VECIN, kBuffers> y_queue_;
  AscendC::TQue<AscendC::QuePosition::VECOUT, kBuffers> z_queue_;
  AscendC::GlobalTensor<float> x_;
  AscendC::GlobalTensor<float> y_;
  AscendC::GlobalTensor<float> z_;
  uint32_t tiles_ = 0;
};

extern "C" __global__ __aicore__ void vector_add(GM_ADDR x, GM_ADDR y,
                                                 GM_ADDR z, uint32_t count) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  VectorAdd kernel;
  kernel.Init(x, y, z, count);
  kernel.Process();
}

#endif  // BACKEND_ASCEND_TWIN_EXAMPLES_VECTOR_ADD_H_
