// One rank of a launch over several NPUs, as C: a process for each NPU calls
// these in this order.
//
//   hpmoe_npus_open      on every rank: the device is taken, SHMEM not yet
//   begun (the caller gives every rank all ranks' hellos) hpmoe_npus_join on
//   every rank: SHMEM, the heap, who reaches whom (the caller gives every rank
//   all ranks' counts) hpmoe_npus_launch    on every rank, as often as wanted
//   hpmoe_npus_close     on every rank
//
// Each returns `end->code`.  Nothing is thrown; no call waits for ever.

#ifndef BACKEND_ASCEND_DEVICE_NPUS_NPUS_H_
#define BACKEND_ASCEND_DEVICE_NPUS_NPUS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HPMOE_NPUS_API __attribute__((visibility("default")))
#define HPMOE_NPUS_MAX_RANKS 64
#define HPMOE_NPUS_SUSPECTS 8

enum {
  HPMOE_NPUS_SUCCESS = 0,
  HPMOE_NPUS_INPUT = 1,        // an argument; the text names it
  HPMOE_NPUS_LIBRARY = 2,      // a call of ACL or SHMEM failed
  HPMOE_NPUS_UNREACHABLE = 3,  // ranks that cannot write to each other's memory
  HPMOE_NPUS_RANK_LOST = 4,    // ranks that did not answer, or gave up
  HPMOE_NPUS_DEADLINE = 5,     // a core waited longer than the deadline
  HPMOE_NPUS_INTERNAL = 6      // this library contradicts itself
};

// How a call ended.
typedef struct hpmoe_npus_end {
  int32_t code;
  int32_t num_ranks;  // at fault, as far as is known
  int32_t ranks[HPMOE_NPUS_MAX_RANKS];
  int32_t task;  // that waited, or -1
  int32_t event;
  int32_t expected;
  int32_t actual;
  int32_t num_suspects;  // tasks that may not have signalled the event
  int32_t suspects[HPMOE_NPUS_SUSPECTS];
  char text[1024];  // one line
} hpmoe_npus_end;

// What each rank tells all others before they join: plain bytes.
typedef struct hpmoe_npus_hello {
  int32_t rank;
  int32_t num_ranks;
  int32_t device;     // physical
  int32_t in_groups;  // whether devices reach those of their group of 8 only
  uint64_t server;    // which machine
  int64_t pod;        // super pod, or -1
  uint64_t heap_bytes;
  uint8_t unique_id[256];  // rank 0's is SHMEM's
} hpmoe_npus_hello;

typedef struct hpmoe_npus_options {
  int32_t rank;
  int32_t num_ranks;
  int32_t device;       // as aclrtSetDevice takes it
  uint64_t heap_bytes;  // hpmoe_npus_heap_bytes of the largest image; the same
                        // on every rank
  double start_s;       // seconds that ranks wait for each other to start
  const char* kernel;   // absolute path of hpmoe_megakernel's binary
} hpmoe_npus_options;

// The rank's slab of a tensor, by its name.
typedef struct hpmoe_npus_tensor {
  const char* name;
  void* data;
  uint64_t bytes;
  int32_t on_device;  // the device's memory, 64-byte aligned, used where it is
} hpmoe_npus_tensor;

typedef struct hpmoe_npus_call {
  const void* image;  // the same bytes on every rank
  uint64_t image_bytes;
  const int32_t* topk_ids;           // [T, K], the rank's, on the host
  const int32_t* counts;             // [R, E] of all ranks; with relay [R, 2 E]
  const hpmoe_npus_tensor* tensors;  // inputs but topk_ids, and results: some
  int32_t num_tensors;
  int32_t poison;     // results begin as NaN, so that what is not written shows
  double deadline_s;  // of one wait, and for ranks to come and to end
} hpmoe_npus_call;

typedef struct hpmoe_npus hpmoe_npus;

// Of one rank, for an image; 0: it is none.
HPMOE_NPUS_API uint64_t hpmoe_npus_heap_bytes(const void* image,
                                              uint64_t image_bytes);

// `*session` is null after a failure.
HPMOE_NPUS_API int32_t hpmoe_npus_open(const hpmoe_npus_options* options,
                                       hpmoe_npus_hello* hello,
                                       hpmoe_npus** session,
                                       hpmoe_npus_end* end);

// `hellos`: [num_ranks], by rank.
HPMOE_NPUS_API int32_t hpmoe_npus_join(hpmoe_npus* session,
                                       const hpmoe_npus_hello* hellos,
                                       hpmoe_npus_end* end);

// After a failure nothing is left but to close: the others are told, and end.
HPMOE_NPUS_API int32_t hpmoe_npus_launch(hpmoe_npus* session,
                                         const hpmoe_npus_call* call,
                                         hpmoe_npus_end* end);

// Frees the session, whatever it returns.
HPMOE_NPUS_API int32_t hpmoe_npus_close(hpmoe_npus* session,
                                        hpmoe_npus_end* end);

#ifdef __cplusplus
}
#endif

#endif  // BACKEND_ASCEND_DEVICE_NPUS_NPUS_H_
