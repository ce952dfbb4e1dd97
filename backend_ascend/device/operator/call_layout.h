// Where the arrays of an operator's launch lie beside a layer's tensors.

#ifndef BACKEND_ASCEND_DEVICE_OPERATOR_CALL_LAYOUT_H_
#define BACKEND_ASCEND_DEVICE_OPERATOR_CALL_LAYOUT_H_

#include "backend_ascend/device/launch/launch_arrays.h"
#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/device/operator/launch_tiling.h"

namespace hpmoe {

struct CallLayout {
  LaunchArgs args;  // addresses as launch_tiling.h says
  uint64_t bytes[kNumCallBlobs];
};

// Places arrays one behind the other, each on a line of its own.  Tensors and
// the image are operands themselves, and have no address yet.
class CallPlacer {
 public:
  explicit CallPlacer(CallLayout* layout) : layout_(*layout) {}

  template <class T>
  void Add(T** field, const char*, int64_t count, Content content) {
    const void* const weights = &layout_.args.topk_weights;
    if (count == 0 || sizeof(T) == 1 || field == weights) return;
    const CallBlob blob = content == Content::kConstant ? kTables
                          : content == Content::kEmpty  ? kWorkspace
                                                        : kState;
    uint64_t* const end = &layout_.bytes[blob];
    *field = reinterpret_cast<T*>((blob + uint64_t{1}) << kBlobBit | *end);
    *end += (count * sizeof(T) + kLineBytes - 1) / kLineBytes * kLineBytes;
  }

 private:
  CallLayout& layout_;
};

// Of one rank: what puts write are its own results, so no heap is needed.
inline CallLayout LayoutOf(const ImageHeader& h) {
  CallLayout layout{};
  LaunchArgs* const args = &layout.args;
  args->generation = 1;  // counters are made anew for each launch
  CallPlacer placer(&layout);
  LaunchArgs* begin = nullptr;
  placer.Add(&begin, "launch_args", 1, Content::kConstant);
  placer.Add(&args->heaps, "heaps", h.num_ranks, Content::kConstant);
  const int64_t slots = int64_t{h.num_tokens} * h.top_k;
  PlaceTables(h, h.total_bytes, {h.num_ranks * slots, 0}, &placer, args);
  PlaceHeap(h, &placer, args);
  PlaceReady(&placer, args);
  PlaceOwn(h, &placer, args);
  return layout;
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_OPERATOR_CALL_LAYOUT_H_
