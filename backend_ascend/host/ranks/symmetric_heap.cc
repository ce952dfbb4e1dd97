#include "backend_ascend/host/ranks/symmetric_heap.h"

#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe {
namespace {

constexpr int64_t kAlign = 64;

// Returns where `bytes` more go and moves the end of the heap behind them.
int64_t Place(int64_t bytes, int64_t* end) {
  const int64_t at = *end;
  *end += (bytes + kAlign - 1) / kAlign * kAlign;
  return at;
}

}  // namespace

HeapLayout MakeHeapLayout(const ImageHeader& image) {
  HeapLayout heap{};
  for (int b = 0; b < kNumBuffers; ++b) {
    const bool put = IsWritten(image, b) && IsPut(BufferForm(image, b));
    const Array shape = ShapeOf(image, static_cast<BufferId>(b));
    heap.buffers[b] =
        put ? Place(shape.bytes() / image.num_ranks, &heap.bytes) : -1;
  }
  for (int b = 0; b < kNumBuffers; ++b) {
    const bool put = heap.buffers[b] >= 0 && NumScales(image, b) > 0;
    heap.scales[b] = put ? Place(int64_t{image.num_rows} * 4, &heap.bytes) : -1;
  }
  heap.header_slot = Place(int64_t{image.num_rows} * 4, &heap.bytes);
  heap.header_weight = Place(int64_t{image.num_rows} * 4, &heap.bytes);
  const int64_t copies =
      image.relay == 0 ? 0 : int64_t{image.num_rows} * CopiesOf(image);
  heap.copies = Place(copies * sizeof(RowCopy), &heap.bytes);
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  heap.d_slot_weight =
      WeightsTravel(image) ? Place(slots * 4, &heap.bytes) : -1;
  return heap;
}

}  // namespace hpmoe
