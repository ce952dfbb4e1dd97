#include "backend_ascend/device/npus/acl_device.h"

#include <algorithm>
#include <cstring>

#include "acl/acl.h"

namespace hpmoe {
namespace {

constexpr aclError kDone = 0;
constexpr aclError kRepeated = 100002;  // aclInit: a framework was first
constexpr uint8_t kAllAtOnce = 1;       // schedule mode: batch
// What a launch may take beyond its waits: the kernel's own deadline comes
// first, and says who was waited for.
constexpr double kMargin_s = 30;
constexpr double kMostSeconds = 65535;  // of the attribute
constexpr int64_t kNoPod = 0xFFFFFFFF;

End Acl(aclError code, const char* call) {
  if (code == kDone) return {};
  const char* const more = aclGetRecentErrMsg();
  return {HPMOE_NPUS_LIBRARY,
          std::string(call) + ": expected 0, got " + std::to_string(code) +
              (more == nullptr ? "" : std::string(": ") + more)};
}

End Copy(void* to, const void* from, uint64_t bytes, aclrtMemcpyKind kind) {
  if (bytes == 0) return {};
  return Acl(aclrtMemcpy(to, bytes, from, bytes, kind), "aclrtMemcpy");
}

}  // namespace

End DeviceBlock::Grow(uint64_t bytes) {
  if (bytes <= bytes_) return {};
  Free();
  HPMOE_TRY(Acl(aclrtMalloc(&data_, bytes, ACL_MEM_MALLOC_HUGE_FIRST),
                "aclrtMalloc"));
  bytes_ = bytes;
  return {};
}

void DeviceBlock::Free() {
  if (data_ != nullptr) aclrtFree(data_);
  data_ = nullptr;
  bytes_ = 0;
}

End CopyIn(void* to, const void* from, uint64_t bytes) {
  return Copy(to, from, bytes, ACL_MEMCPY_HOST_TO_DEVICE);
}
End CopyOut(void* to, const void* from, uint64_t bytes) {
  return Copy(to, from, bytes, ACL_MEMCPY_DEVICE_TO_HOST);
}
End CopyOn(void* to, const void* from, uint64_t bytes) {
  return Copy(to, from, bytes, ACL_MEMCPY_DEVICE_TO_DEVICE);
}
End Fill(void* at, int value, uint64_t bytes) {
  if (bytes == 0) return {};
  return Acl(aclrtMemset(at, bytes, value, bytes), "aclrtMemset");
}

End Device::Open(int32_t device, const char* kernel) {
  const aclError started = aclInit(nullptr);
  if (started != kRepeated) HPMOE_TRY(Acl(started, "aclInit"));
  initialised_ = started == kDone;
  HPMOE_TRY(Acl(aclrtSetDevice(device), "aclrtSetDevice"));
  device_ = device;
  HPMOE_TRY(Acl(aclrtCreateStream(&stream_), "aclrtCreateStream"));
  HPMOE_TRY(Describe());
  return Load(kernel);
}

End Device::Describe() {
  const char* const chip = aclrtGetSocName();
  in_groups_ = chip != nullptr && std::strncmp(chip, "Ascend910B", 10) == 0;
  HPMOE_TRY(Acl(aclrtGetPhyDevIdByLogicDevId(device_, &physical_),
                "aclrtGetPhyDevIdByLogicDevId"));
  HPMOE_TRY(
      Acl(aclrtGetDeviceInfo(device_, ACL_DEV_ATTR_CUBE_CORE_NUM, &cubes_),
          "aclrtGetDeviceInfo"));
  // What has no super pod need not know of them.
  const aclError told =
      aclrtGetDeviceInfo(device_, ACL_DEV_ATTR_SUPER_POD_ID, &pod_);
  if (told != kDone || pod_ == kNoPod) pod_ = -1;
  return {};
}

End Device::Load(const char* kernel) {
  HPMOE_TRY(Acl(aclrtBinaryLoadFromFile(kernel, nullptr, &binary_),
                "aclrtBinaryLoadFromFile"));
  return Acl(aclrtBinaryGetFunction(binary_, "hpmoe_megakernel", &function_),
             "aclrtBinaryGetFunction");
}

// The runtime puts before our argument what a kernel of both kinds of core has
// first, the address of their flags: only a launch by handle knows to.
End Device::Launch(void* args, int32_t blocks, double limit_s) {
  aclrtArgsHandle handle = nullptr;
  aclrtParamHandle param = nullptr;
  HPMOE_TRY(
      Acl(aclrtKernelArgsInit(function_, &handle), "aclrtKernelArgsInit"));
  HPMOE_TRY(Acl(aclrtKernelArgsAppend(handle, &args, sizeof(args), &param),
                "aclrtKernelArgsAppend"));
  HPMOE_TRY(Acl(aclrtKernelArgsFinalize(handle), "aclrtKernelArgsFinalize"));
  aclrtLaunchKernelAttr attributes[2] = {};
  attributes[0].id = ACL_RT_LAUNCH_KERNEL_ATTR_SCHEM_MODE;
  attributes[0].value.schemMode = kAllAtOnce;
  attributes[1].id = ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT;
  attributes[1].value.timeout =
      static_cast<uint16_t>(std::min(limit_s, kMostSeconds));
  aclrtLaunchKernelCfg config = {attributes, 2};
  return Acl(
      aclrtLaunchKernelWithConfig(function_, static_cast<uint32_t>(blocks),
                                  stream_, &config, handle, nullptr),
      "aclrtLaunchKernelWithConfig");
}

End Device::CheckBlocks(int32_t blocks) const {
  if (blocks <= cubes_) return {};
  return {HPMOE_NPUS_INPUT,
          "num_aic, num_aiv: expected at most " + std::to_string(cubes_) +
              " blocks of 1 and 2, got " + std::to_string(blocks)};
}

End Device::Run(void* args, int32_t blocks, double deadline_s) {
  const double limit_s = 2 * deadline_s + kMargin_s;
  HPMOE_TRY(Launch(args, blocks, limit_s));
  const double wait_ms = std::min(1000 * (limit_s + kMargin_s), 2e9);
  return Acl(
      aclrtSynchronizeStreamWithTimeout(stream_, static_cast<int32_t>(wait_ms)),
      "aclrtSynchronizeStreamWithTimeout");
}

End Device::Close() {
  End first;
  const auto note = [&first](aclError code, const char* call) {
    if (first.ok()) first = Acl(code, call);
  };
  if (binary_ != nullptr) note(aclrtBinaryUnLoad(binary_), "aclrtBinaryUnLoad");
  if (stream_ != nullptr) {
    note(aclrtDestroyStream(stream_), "aclrtDestroyStream");
  }
  // A framework's device and ACL stay.
  if (initialised_ && device_ >= 0) {
    note(aclrtResetDevice(device_), "aclrtResetDevice");
  }
  if (initialised_) note(aclFinalize(), "aclFinalize");
  binary_ = stream_ = nullptr;
  initialised_ = false;
  device_ = -1;
  return first;
}

}  // namespace hpmoe
