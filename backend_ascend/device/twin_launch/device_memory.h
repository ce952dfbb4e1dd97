// Global memory of all ranks of a launch on the twin: every rank has its own
// arrays, and a symmetric heap that the others reach.

#ifndef BACKEND_ASCEND_DEVICE_TWIN_LAUNCH_DEVICE_MEMORY_H_
#define BACKEND_ASCEND_DEVICE_TWIN_LAUNCH_DEVICE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "backend_ascend/device/launch/launch_arrays.h"
#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/load/plan.h"
#include "backend_ascend/twin/engine/kernel_launch.h"

namespace hpmoe {

// What the twin holds a kernel to.
inline ascend_twin::GlobalKind KindOf(Content content) {
  switch (content) {
    case Content::kConstant:
      return ascend_twin::GlobalKind::kConstant;
    case Content::kEmpty:
      return ascend_twin::GlobalKind::kEmpty;
    case Content::kCounters:
      return ascend_twin::GlobalKind::kFlags;
    default:
      return ascend_twin::GlobalKind::kFilled;
  }
}

class DeviceMemory {
 public:
  // Copies the inputs of `tensors` in; what tasks write is poison.  `plan` is
  // of the routing.  All three must outlive this.  Has room for an image that
  // is `slack` bytes larger.
  DeviceMemory(const ImageView& view, const Plan& plan,
               const LaunchTensors& tensors, uint64_t deadline_us,
               uint64_t slack);

  // Makes image, counters and diagnosis those of a new launch.  `image` has the
  // view's layer.
  void Begin(const std::vector<uint64_t>& image);

  // What the kernel of a rank is called with.
  LaunchArgs* args(int32_t rank) const { return args_[rank]; }
  // Its arrays, each on a boundary of 512 bytes.  Between two of them lies
  // memory that is nobody's.
  const std::vector<ascend_twin::GlobalRange>& ranges() const {
    return ranges_;
  }

  // Copies what the tensors hold to where a task has written bytes of them;
  // whether they differ.
  bool CopyIn(uint64_t begin, uint64_t bytes) const;

  // Copies what tasks wrote into the tensors, which arrive zeroed: past a
  // rank's last valid row they stay so, but for what was written there.
  void CopyOut() const;

 private:
  // Gives out memory; in a first round, without any, it only counts.
  class Placer;
  void Place(Placer* placer);
  void Fill();
  void FillBuffer(int b);
  void CopyBuffer(int b) const;
  void CopyScales(int b, int32_t rank) const;

  const ImageView& view_;
  const ImageHeader& header_;
  const Plan& plan_;
  const LaunchTensors& tensors_;
  const uint64_t deadline_us_, slack_;
  std::unique_ptr<char[]> storage_;
  std::vector<ascend_twin::GlobalRange> ranges_;
  std::vector<LaunchArgs*> args_;  // by rank, in the device's memory
  int32_t generation_ = 0;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_TWIN_LAUNCH_DEVICE_MEMORY_H_
