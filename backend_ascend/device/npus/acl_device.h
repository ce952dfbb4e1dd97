// One NPU as this process has it: ACL's calls, each with its error in words.

#ifndef BACKEND_ASCEND_DEVICE_NPUS_ACL_DEVICE_H_
#define BACKEND_ASCEND_DEVICE_NPUS_ACL_DEVICE_H_

#include <cstddef>
#include <cstdint>

#include "backend_ascend/device/npus/end.h"

namespace hpmoe {

// Memory of the device that only this rank touches.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  ~DeviceBlock() { Free(); }

  // At least as large; what it held is lost where it grows.
  End Grow(uint64_t bytes);
  void Free();
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

End CopyIn(void* to, const void* from, uint64_t bytes);
End CopyOut(void* to, const void* from, uint64_t bytes);
End CopyOn(void* to, const void* from, uint64_t bytes);  // device to device
End Fill(void* at, int value, uint64_t bytes);

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { Close(); }

  // Takes the device and loads the kernel.
  End Open(int32_t device, const char* kernel);
  // Refuses more than it has: the rest would start when others end.
  End CheckBlocks(int32_t blocks) const;
  // Runs hpmoe_megakernel(args) and waits for its end.  All blocks start at
  // once or none does: their cores wait for each other.
  End Run(void* args, int32_t blocks, double deadline_s);
  End Close();

  int32_t physical() const { return physical_; }
  // A2: the 8 devices of a group are joined, groups are not.
  bool in_groups() const { return in_groups_; }
  int64_t pod() const { return pod_; }

 private:
  End Load(const char* kernel);
  End Describe();
  End Launch(void* args, int32_t blocks, double limit_s);

  int32_t device_ = -1, physical_ = -1;
  bool initialised_ = false;  // by us: a framework may have done it
  bool in_groups_ = false;
  int64_t pod_ = -1;
  int64_t cubes_ = 0;
  void* stream_ = nullptr;
  void* binary_ = nullptr;
  void* function_ = nullptr;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_NPUS_ACL_DEVICE_H_
