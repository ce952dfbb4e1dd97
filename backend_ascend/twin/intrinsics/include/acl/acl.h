// What a program asks of the host's runtime to launch a kernel, of the twin:
// one device, whose memory is the host's, and streams that never wait.

#ifndef BACKEND_ASCEND_TWIN_INTRINSICS_INCLUDE_ACL_ACL_H_
#define BACKEND_ASCEND_TWIN_INTRINSICS_INCLUDE_ACL_ACL_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {

typedef int aclError;
typedef uint16_t aclFloat16;  // bits
typedef void* aclrtStream;
typedef void* aclrtContext;
typedef void* aclrtEvent;
constexpr aclError ACL_SUCCESS = 0;
constexpr aclError ACL_ERROR_BAD_ALLOC = 200000;
constexpr aclError ACL_ERROR_NONE = 0;

enum aclrtMemMallocPolicy {
  ACL_MEM_MALLOC_HUGE_FIRST,
  ACL_MEM_MALLOC_HUGE_ONLY,
  ACL_MEM_MALLOC_NORMAL_ONLY
};
enum aclrtMemcpyKind {
  ACL_MEMCPY_HOST_TO_HOST,
  ACL_MEMCPY_HOST_TO_DEVICE,
  ACL_MEMCPY_DEVICE_TO_HOST,
  ACL_MEMCPY_DEVICE_TO_DEVICE
};

// Of device memory: its bytes are nobody's until they are copied to or set.
aclError aclrtMalloc(void** pointer, size_t bytes, aclrtMemMallocPolicy policy);
aclError aclrtFree(void* pointer);
// Of addresses, `expected` on where it is one; they need no aclrtMapMem here.
aclError aclrtReserveMemAddress(void** pointer, size_t bytes, size_t alignment,
                                void* expected, uint64_t flags);
aclError aclrtReleaseMemAddress(void* pointer);
aclError aclrtMallocHost(void** pointer, size_t bytes);
aclError aclrtFreeHost(void* pointer);
aclError aclrtMemcpy(void* to, size_t most, const void* from, size_t bytes,
                     aclrtMemcpyKind kind);
aclError aclrtMemcpyAsync(void* to, size_t most, const void* from, size_t bytes,
                          aclrtMemcpyKind kind, aclrtStream stream);
aclError aclrtMemset(void* to, size_t most, int32_t value, size_t bytes);

inline aclError aclInit(const char*) { return ACL_SUCCESS; }
inline aclError aclFinalize() { return ACL_SUCCESS; }
inline aclError aclrtSetDevice(int32_t) { return ACL_SUCCESS; }
inline aclError aclrtResetDevice(int32_t) { return ACL_SUCCESS; }
inline aclError aclrtCreateContext(aclrtContext* context, int32_t) {
  *context = nullptr;
  return ACL_SUCCESS;
}
inline aclError aclrtDestroyContext(aclrtContext) { return ACL_SUCCESS; }
inline aclError aclrtCreateStream(aclrtStream* stream) {
  *stream = nullptr;
  return ACL_SUCCESS;
}
inline aclError aclrtDestroyStream(aclrtStream) { return ACL_SUCCESS; }
inline aclError aclrtSynchronizeStream(aclrtStream) { return ACL_SUCCESS; }
inline aclError aclrtSynchronizeDevice() { return ACL_SUCCESS; }
inline const char* aclGetRecentErrMsg() { return ""; }

}  // extern "C"

#endif  // BACKEND_ASCEND_TWIN_INTRINSICS_INCLUDE_ACL_ACL_H_
