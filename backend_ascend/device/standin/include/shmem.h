// A stand-in for SHMEM's header of this name: the host calls that the host
// program makes, between processes that share a board.

#ifndef BACKEND_ASCEND_DEVICE_STANDIN_INCLUDE_SHMEM_H_
#define BACKEND_ASCEND_DEVICE_STANDIN_INCLUDE_SHMEM_H_

#include <stddef.h>
#include <stdint.h>

extern "C" {

enum aclshmem_error_code_t : int {
  ACLSHMEM_SUCCESS = 0,
  ACLSHMEM_INVALID_PARAM = -1,
  ACLSHMEM_INVALID_VALUE = -2,
  ACLSHMEM_SMEM_ERROR = -3,
  ACLSHMEM_INNER_ERROR = -4,
  ACLSHMEM_NOT_INITED = -5,
  ACLSHMEM_BOOTSTRAP_ERROR = -6,
  ACLSHMEM_TIMEOUT_ERROR = -7
};
enum aclshmemx_bootstrap_t : unsigned int {
  ACLSHMEMX_INIT_WITH_UNIQUEID = 1U << 3
};

struct aclshmemx_uniqueid_t {
  int32_t version;
  int my_pe;
  int n_pes;
  char internal[124];
};
constexpr int32_t ACLSHMEM_UNIQUEID_VERSION =
    (1 << 16) + sizeof(aclshmemx_uniqueid_t);
#define ACLSHMEM_UNIQUEID_INITIALIZER   \
  {                                     \
    ACLSHMEM_UNIQUEID_VERSION, 0, 0, {} \
  }

struct aclshmem_init_optional_attr_t {
  uint32_t shm_init_timeout = 120;
  uint32_t shm_create_timeout = 120;
  uint32_t control_operation_timeout = 120;
};
struct aclshmemx_init_attr_t {
  int my_pe = 0;
  int n_pes = 0;
  uint64_t local_mem_size = 0;
  aclshmem_init_optional_attr_t option_attr;
  void* comm_args = nullptr;
};

int aclshmemx_get_uniqueid(aclshmemx_uniqueid_t* id);
int aclshmemx_set_attr_uniqueid_args(int pe, int pes, int64_t local_mem_size,
                                     aclshmemx_uniqueid_t* id,
                                     aclshmemx_init_attr_t* attributes);
int aclshmemx_init_attr(aclshmemx_bootstrap_t flags,
                        aclshmemx_init_attr_t* attributes);
int aclshmem_finalize(void);
void* aclshmem_malloc(size_t size);
void* aclshmem_calloc(size_t count, size_t size);
void aclshmem_free(void* at);
void* aclshmem_ptr(void* at, int pe);
void aclshmem_putmem(void* to, void* from, size_t size, int32_t pe);

}  // extern "C"

#endif  // BACKEND_ASCEND_DEVICE_STANDIN_INCLUDE_SHMEM_H_
