// One-sided communication between ranks that share no address space.
//
// Every rank owns a heap of the same layout and one counter per event.  Others
// write into the heap and add to the counters; only the owner reads them.

#ifndef BACKEND_ASCEND_HOST_RANKS_TRANSPORT_H_
#define BACKEND_ASCEND_HOST_RANKS_TRANSPORT_H_

#include <cstdint>

#include "backend_ascend/image/image.h"

namespace hpmoe {

// What others write on a rank: byte offsets from the start of its heap.
struct HeapLayout {
  int64_t buffers[kNumBuffers];  // -1: not written by puts
  int64_t header_slot;           // [N] int32
  int64_t header_weight;         // [N] float
  int64_t scales[kNumBuffers];   // [N] float beside codes, or -1: none
  int64_t copies;                // [N, CopiesOf] RowCopy, with relay
  int64_t d_slot_weight;         // [T * K] float, or -1: not used
  int64_t bytes;
};

// Ranks are those of the image; none of them is the caller's.  A call may throw
// what the transport's own language throws; the launch ends with it.
class Transport {
 public:
  virtual ~Transport() = default;

  // Starts writing to `rank`'s heap.  `data` must stay as it is until Flush.
  virtual void Put(int32_t rank, int64_t offset, const void* data,
                   int64_t bytes) = 0;

  // Returns when every earlier Put to `rank` is complete there.
  virtual void Flush(int32_t rank) = 0;

  // Adds to `rank`'s counter of `event`, atomically with other ranks' adds.
  virtual void Add(int32_t rank, int32_t event, int32_t amount) = 0;

  // What was put here before an add that was seen here can be read.
  virtual void Sync() = 0;

  // Lets the transport work while this rank has nothing to do.
  virtual void Progress() = 0;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_RANKS_TRANSPORT_H_
