// Memory and flags that a core hands out by itself: what TPipe and TQue are on
// top of.

#ifndef BACKEND_ASCEND_TWIN_ENGINE_LOCAL_PIPE_H_
#define BACKEND_ASCEND_TWIN_ENGINE_LOCAL_PIPE_H_

#include <cstdint>

#include "backend_ascend/twin/engine/sync.h"

namespace ascend_twin {

constexpr int kMostBuffers = 8;        // of a queue
constexpr int kMostQueueBuffers = 64;  // of a kernel

// One buffer of a queue.  It keeps its ids: a buffer is filled again only after
// it was free, so no flag of it is ever set twice.
struct LocalBuffer {
  enum State : uint8_t { kFree, kTaken, kFilled, kOut };
  uint32_t begin;
  State state = kFree;
  PipeEvent filled;
  int32_t filled_id = 0;
  int32_t free_id = 0;
  bool freed = false;  // and nobody has waited for it
};

class LocalPipe {
 public:
  LocalPipe();

  uint32_t Take(Memory memory, uint32_t bytes, Site site);
  LocalBuffer* TakeBuffers(Memory memory, int count, uint32_t bytes,
                           PipeEvent filled, Site site);
  int32_t AllocId(PipeEvent event, Site site);
  int32_t FetchId(PipeEvent event, Site site);
  void ReleaseId(PipeEvent event, int32_t id, Site site);
  // Waits for all that is set for free buffers, and for all pipes.
  void Destroy(Site site);
  void Reset(Site site);

 private:
  uint8_t& Ids(PipeEvent event) {
    return ids_[static_cast<int>(event.from)][static_cast<int>(event.to)];
  }

  uint32_t used_[kNumMemories] = {};
  uint8_t ids_[kNumPipes][kNumPipes] = {};  // reserved, bit i: id i
  LocalBuffer buffers_[kMostQueueBuffers];
  int num_buffers_ = 0;
};

class LocalQueue {
 public:
  void Init(LocalPipe* pipe, Memory memory, int count, uint32_t bytes,
            PipeEvent filled, Site site);
  // Byte where a buffer begins: of the next that is free, of the one that was
  // filled first.
  uint32_t Alloc(Site site);
  uint32_t DeQue(Site site);
  void EnQue(uint64_t begin, Site site);
  void Free(uint64_t begin, Site site);

  uint32_t bytes() const { return bytes_; }
  int32_t idle() const { return Count(LocalBuffer::kFree); }
  int32_t filled() const { return Count(LocalBuffer::kFilled); }

 private:
  int32_t Count(LocalBuffer::State state) const;
  LocalBuffer& Of(const char* call, uint64_t begin, Site site);

  LocalPipe* pipe_ = nullptr;
  LocalBuffer* buffers_ = nullptr;
  int count_ = 0;
  uint32_t bytes_ = 0;
  int next_ = 0;                  // to be allocated
  int order_[kMostBuffers] = {};  // filled ones, first in first out
  int num_filled_ = 0;
};

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_ENGINE_LOCAL_PIPE_H_
