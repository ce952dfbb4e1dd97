// One rank of a session, from its device to its end.

#ifndef BACKEND_ASCEND_DEVICE_NPUS_SESSION_H_
#define BACKEND_ASCEND_DEVICE_NPUS_SESSION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "backend_ascend/device/npus/acl_device.h"
#include "backend_ascend/device/npus/end.h"
#include "backend_ascend/device/npus/peers.h"
#include "backend_ascend/device/npus/rank_memory.h"
#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe {

class Session {
 public:
  Session();
  ~Session();

  End Open(const hpmoe_npus_options& options, hpmoe_npus_hello* hello);
  End Join(const hpmoe_npus_hello* hellos);
  End Launch(const hpmoe_npus_call& call);
  End Close();

 private:
  struct Shmem;  // what its library keeps pointers to

  End Start(const hpmoe_npus_hello* hellos);
  End AllocateHeap();
  End Load(const hpmoe_npus_call& call, const LoadedImage** image);
  End Run(const ImageView& view, const hpmoe_npus_call& call);
  End RunKernel(const ImageView& view, const hpmoe_npus_call& call);
  End Blame(const End& failed, double deadline_s);

  int32_t rank_ = 0, num_ranks_ = 0;
  uint64_t heap_bytes_ = 0;
  double start_s_ = 0;
  Device device_;
  std::unique_ptr<Shmem> shmem_;
  bool joined_ = false;
  bool lost_ = false;  // ranks no longer wait for each other
  int32_t generation_ = 0;
  std::vector<uint64_t> heaps_;
  // Freed before the device is: the last are first.
  std::unique_ptr<RankMemory> memory_;
  std::unique_ptr<RollCall> roll_;
  std::vector<std::unique_ptr<LoadedImage>> images_;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_NPUS_SESSION_H_
