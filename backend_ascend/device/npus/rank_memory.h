// Where one rank's arrays lie on its NPU: those that others write in the
// symmetric heap, the rest in memory of its own.

#ifndef BACKEND_ASCEND_DEVICE_NPUS_RANK_MEMORY_H_
#define BACKEND_ASCEND_DEVICE_NPUS_RANK_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "backend_ascend/device/launch/launch_arrays.h"
#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/device/npus/acl_device.h"
#include "backend_ascend/device/npus/end.h"
#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/load/plan.h"

namespace hpmoe {

// At the begin of every heap, whatever the image: lines of the roll call, then
// those of the handshake.
struct HeapHead {
  uint64_t roll, ready, bytes;
};
HeapHead HeapHeadOf(int32_t num_ranks);

// Of one rank, for an image.
uint64_t HeapBytesOf(const ImageHeader& header);

class RankMemory {
 public:
  // Gives every array of a launch a place, and copies in what is constant.
  // `heap` holds the head and has room for `heap_bytes`.
  End Begin(const ImageView& view, const Plan& plan,
            const std::vector<uint64_t>& heaps, uint64_t heap_bytes,
            int32_t rank, const hpmoe_npus_call& call, int32_t generation);
  // Copies results to where they were asked for.  Past the last valid row they
  // are zero, but for what was written there.
  End CopyResults(const ImageView& view, const Plan& plan) const;

  // On the device.
  void* args() const { return args_at_; }
  // Of the cores, once the launch has ended.
  End Ends(const ImageHeader& header, std::vector<CoreDiagnosis>* ends) const;

 private:
  class Placer;
  using Tensors = std::map<std::string, hpmoe_npus_tensor>;

  End Tell(const ImageHeader& header, const hpmoe_npus_call& call);
  End Place(const ImageHeader& header, const Plan& plan, uint64_t heap,
            uint64_t heap_bytes);
  End FillIn(const ImageView& view, const Plan& plan,
             const std::vector<uint64_t>& heaps) const;
  End CopyInputs(const ImageHeader& header) const;
  End CopyResult(const ImageHeader& header, const Plan& plan, int b,
                 const hpmoe_npus_tensor& to) const;
  const hpmoe_npus_tensor* Find(const std::string& name) const;

  struct Placed {
    void* at;
    uint64_t bytes;
    Content content;
  };

  Tensors tensors_;
  DeviceBlock own_;
  std::vector<Placed> placed_;
  LaunchArgs args_{};
  LaunchArgs* args_at_ = nullptr;
  bool poison_ = false;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_NPUS_RANK_MEMORY_H_
