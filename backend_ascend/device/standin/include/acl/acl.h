// A stand-in for ACL's header of this name: the calls that the host program
// makes, whose device is the twin.  docs/on_an_npu.md says where the real one
// is.

#ifndef BACKEND_ASCEND_DEVICE_STANDIN_INCLUDE_ACL_ACL_H_
#define BACKEND_ASCEND_DEVICE_STANDIN_INCLUDE_ACL_ACL_H_

#include <stddef.h>
#include <stdint.h>

// As the real calls, these are for whoever loads the library that holds them.
#pragma GCC visibility push(default)

extern "C" {

typedef int aclError;
typedef void* aclrtStream;
typedef void* aclrtBinHandle;
typedef void* aclrtFuncHandle;
typedef void* aclrtArgsHandle;
typedef void* aclrtParamHandle;
struct aclrtBinaryLoadOptions;

enum aclrtMemMallocPolicy { ACL_MEM_MALLOC_HUGE_FIRST };
enum aclrtMemcpyKind {
  ACL_MEMCPY_HOST_TO_HOST,
  ACL_MEMCPY_HOST_TO_DEVICE,
  ACL_MEMCPY_DEVICE_TO_HOST,
  ACL_MEMCPY_DEVICE_TO_DEVICE
};
enum aclrtDevAttr {
  ACL_DEV_ATTR_CUBE_CORE_NUM = 102,
  ACL_DEV_ATTR_SUPER_POD_ID = 405
};
enum aclrtLaunchKernelAttrId {
  ACL_RT_LAUNCH_KERNEL_ATTR_SCHEM_MODE = 1,
  ACL_RT_LAUNCH_KERNEL_ATTR_TIMEOUT = 7
};
union aclrtLaunchKernelAttrValue {
  uint8_t schemMode;
  uint16_t timeout;  // seconds
  uint32_t rsv[4];
};
struct aclrtLaunchKernelAttr {
  aclrtLaunchKernelAttrId id;
  aclrtLaunchKernelAttrValue value;
};
struct aclrtLaunchKernelCfg {
  aclrtLaunchKernelAttr* attrs;
  size_t numAttrs;
};

aclError aclInit(const char* config);
aclError aclFinalize();
const char* aclGetRecentErrMsg();
const char* aclrtGetSocName();
aclError aclrtSetDevice(int32_t device);
aclError aclrtResetDevice(int32_t device);
aclError aclrtGetPhyDevIdByLogicDevId(const int32_t logic,
                                      int32_t* const physical);
aclError aclrtGetDeviceInfo(uint32_t device, aclrtDevAttr attribute,
                            int64_t* value);
aclError aclrtCreateStream(aclrtStream* stream);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t ms);
aclError aclrtMalloc(void** at, size_t size, aclrtMemMallocPolicy policy);
aclError aclrtFree(void* at);
aclError aclrtMemcpy(void* to, size_t most, const void* from, size_t count,
                     aclrtMemcpyKind kind);
aclError aclrtMemset(void* at, size_t most, int32_t value, size_t count);
aclError aclrtBinaryLoadFromFile(const char* path,
                                 aclrtBinaryLoadOptions* options,
                                 aclrtBinHandle* binary);
aclError aclrtBinaryUnLoad(aclrtBinHandle binary);
aclError aclrtBinaryGetFunction(const aclrtBinHandle binary, const char* name,
                                aclrtFuncHandle* function);
aclError aclrtKernelArgsInit(aclrtFuncHandle function, aclrtArgsHandle* args);
aclError aclrtKernelArgsAppend(aclrtArgsHandle args, void* param, size_t size,
                               aclrtParamHandle* handle);
aclError aclrtKernelArgsFinalize(aclrtArgsHandle args);
aclError aclrtLaunchKernelWithConfig(aclrtFuncHandle function, uint32_t blocks,
                                     aclrtStream stream,
                                     aclrtLaunchKernelCfg* config,
                                     aclrtArgsHandle args, void* reserved);

}  // extern "C"

#pragma GCC visibility pop

#endif  // BACKEND_ASCEND_DEVICE_STANDIN_INCLUDE_ACL_ACL_H_
