#include "shmem.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "backend_ascend/device/standin/process.h"

namespace hpmoe {
namespace {

constexpr int64_t kMostBytes = int64_t{40} << 30;

struct Instance {
  bool started = false;
  int pe = -1, pes = 0;
  uint32_t seconds = 0;  // of a control barrier
};
Instance& Only() {
  static Instance one;
  return one;
}

// Whether all came.  It knows nothing of processes: a dead one is late.
bool ControlBarrier() {
  const Instance& one = Only();
  Board& board = *ThisProcess().board;
  const uint32_t mine = ++board.seats[one.pe].meetings;
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(one.seconds);
  for (int pe = 0; pe < one.pes; ++pe) {
    while (board.seats[pe].meetings < mine) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }
  return true;
}

void* Allocate(uint64_t bytes, bool zero) {
  if (!Only().started) return nullptr;
  void* const at = ThisProcess().heap.Take(bytes);
  if (zero && at != nullptr) std::memset(at, 0, bytes);
  // Nobody compares sizes: where they differ, so do addresses.
  return ControlBarrier() ? at : nullptr;
}

}  // namespace
}  // namespace hpmoe

using namespace hpmoe;  // NOLINT: what follows is C

int aclshmemx_get_uniqueid(aclshmemx_uniqueid_t* id) {
  if (ThisProcess().device < 0) return ACLSHMEM_INNER_ERROR;
  std::snprintf(id->internal, sizeof(id->internal), "board of %d", getpid());
  return ACLSHMEM_SUCCESS;
}

int aclshmemx_set_attr_uniqueid_args(int pe, int pes, int64_t local_mem_size,
                                     aclshmemx_uniqueid_t* id,
                                     aclshmemx_init_attr_t* attributes) {
  if (local_mem_size <= 0 || local_mem_size > kMostBytes) {
    return ACLSHMEM_INVALID_VALUE;
  }
  attributes->my_pe = pe;
  attributes->n_pes = pes;
  attributes->local_mem_size = static_cast<uint64_t>(local_mem_size);
  attributes->comm_args = id;  // not copied
  return ACLSHMEM_SUCCESS;
}

int aclshmemx_init_attr(aclshmemx_bootstrap_t flags,
                        aclshmemx_init_attr_t* attributes) {
  Instance& one = Only();
  Process& process = ThisProcess();
  const auto* const id =
      static_cast<const aclshmemx_uniqueid_t*>(attributes->comm_args);
  Drill("aclshmemx_init_attr");
  if (flags != ACLSHMEMX_INIT_WITH_UNIQUEID || process.device < 0) {
    return ACLSHMEM_INVALID_PARAM;
  }
  if (one.started) return ACLSHMEM_INNER_ERROR;
  if (id->version != ACLSHMEM_UNIQUEID_VERSION || id->internal[0] == 0) {
    return ACLSHMEM_BOOTSTRAP_ERROR;
  }
  one.pe = attributes->my_pe;
  one.pes = attributes->n_pes;
  one.seconds = attributes->option_attr.control_operation_timeout;
  // On the board a rank's device is that of its number.
  if (one.pe != process.device || one.pes != process.board->num_ranks) {
    return ACLSHMEM_INVALID_VALUE;
  }
  process.board->seats[one.pe].heap_bytes = attributes->local_mem_size;
  if (!ControlBarrier()) return ACLSHMEM_TIMEOUT_ERROR;
  for (int pe = 0; pe < one.pes; ++pe) {
    if (process.board->seats[pe].heap_bytes != attributes->local_mem_size) {
      return ACLSHMEM_SMEM_ERROR;  // local size diffs
    }
  }
  process.heap =
      Arena(process.board->HeapOf(one.pe), attributes->local_mem_size);
  one.started = true;
  return ACLSHMEM_SUCCESS;
}

int aclshmem_finalize(void) {
  Instance& one = Only();
  if (!one.started) return ACLSHMEM_NOT_INITED;
  const bool all = ControlBarrier();
  one.started = false;
  return all ? ACLSHMEM_SUCCESS : ACLSHMEM_TIMEOUT_ERROR;
}

void* aclshmem_malloc(size_t size) { return Allocate(size, false); }
void* aclshmem_calloc(size_t count, size_t size) {
  return Allocate(count * size, true);
}

void aclshmem_free(void* at) {
  if (Only().started && ControlBarrier()) ThisProcess().heap.Give(at);
}

// Of every rank, whether its memory can be reached or not.
void* aclshmem_ptr(void* at, int pe) {
  const Instance& one = Only();
  if (!one.started || pe < 0 || pe >= one.pes) return nullptr;
  Board& board = *ThisProcess().board;
  return static_cast<char*>(at) - board.HeapOf(one.pe) + board.HeapOf(pe);
}

void aclshmem_putmem(void* to, void* from, size_t size, int32_t pe) {
  Process& process = ThisProcess();
  Drill("aclshmem_putmem");
  if (!process.heap.Holds(to, size) || !process.own.Holds(from, size)) {
    std::fprintf(stderr,
                 "aclshmem_putmem: expected symmetric memory to put "
                 "to, and the device's to put from, got other\n");
    return;
  }
  std::memcpy(aclshmem_ptr(to, pe), from, size);
}
