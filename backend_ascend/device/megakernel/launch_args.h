// What one rank's launch of the megakernel is given, and what each of its cores
// leaves behind.  Read by the device source, the twin's launcher and the
// operator.  Plain structs; every address is one of the device's memory.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_LAUNCH_ARGS_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_LAUNCH_ARGS_H_

#include <stdint.h>

#include "backend_ascend/image/image.h"
#include "backend_ascend/image/kinds.h"
#include "backend_ascend/image/qualifiers.h"

namespace hpmoe {

// A line of the scalar units' caches.  What one core writes while another polls
// has a line of its own.
constexpr uint32_t kLineBytes = 64;

// A counter that other cores add to: word 0 of a line, and word 8, a float, for
// cube cores of a build with HPMOE_FLOAT_COUNTS.
struct CounterLine {
  int32_t value;
  int32_t unused[15];
};
static_assert(sizeof(CounterLine) == kLineBytes, "CounterLine is a line");

// Lines of the handshake: one for each round, and the last, in which a rank
// tells its own cores that all ranks are there.
constexpr int32_t kReadyLines = 32;
constexpr int32_t kAllReady = kReadyLines - 1;

// Each round doubles the ranks that a rank has heard of; 31 are enough for all
// that an int32 names.
constexpr int32_t ReadyRounds(int32_t num_ranks) {
  int32_t rounds = 0;
  while ((int64_t{1} << rounds) < num_ranks) ++rounds;
  return rounds;
}

// Blocks of one cube core and two vector cores that hold the image's cores.
HPMOE_FUNCTION int32_t BlocksOf(const ImageHeader& h) {
  const int32_t of_aiv = (h.num_aiv + 1) / 2;
  return h.num_aic > of_aiv ? h.num_aic : of_aiv;
}

// Values that a core cannot write itself: a cube core has no vector unit.
constexpr int32_t kOneOfFloats = 0x3F800000;
constexpr int32_t kIdentityRows = 128;  // of the largest tile in L0C
struct Constants {
  int32_t one[16];  // what a cube core adds to an event: 1, then zeros; and
                    // the same of floats
  float identity[kIdentityRows * kIdentityRows];
  float zeros[512];  // an empty sum is a product of zeros
};
static_assert(sizeof(Constants) == kLineBytes + 65536 + 2048,
              "Constants is packed");

enum EndReason : int32_t {
  kNotEnded = 0,  // the core has written nothing: it still runs, or crashed
  kEnded = 1,     // it ran its whole queue
  kEventDeadline = 2,
  kReadyDeadline = 3,  // a rank did not start
};

// Why a core ended: its own line.
struct CoreDiagnosis {
  int32_t reason;  // EndReason
  int32_t task;    // that waited; -1 in the handshake
  int32_t event;   // that it waited for, or line of the handshake
  int32_t expected;
  int32_t actual;
  int32_t tasks_run;
  int32_t unused[10];
};
static_assert(sizeof(CoreDiagnosis) == kLineBytes, "CoreDiagnosis is a line");

// [..] are extents on this rank, in the notation of the design; all arrays are
// dense and row-major.  Addresses marked (heap) lie in the symmetric heap, at
// the same distance from its start on every rank, 64-byte aligned; puts reach
// them on other ranks.  An array that the image does not use is null.
struct LaunchArgs {
  // Constant during a launch.
  const HPMOE_GM uint8_t* image;     // ImageHeader, then its tables
  const HPMOE_GM int32_t* counts;    // [R, E]; these six as PlanView has them
  const HPMOE_GM int32_t* row_base;  // [R, E]
  const HPMOE_GM int32_t* expert_rows;  // [E]
  const HPMOE_GM int32_t* expert_base;  // [E]
  const HPMOE_GM int64_t* slice_begin;  // [R * E + 1]
  const HPMOE_GM int32_t* slice_slots;  // token * K + slot
  // The same of relayed rows, and what they copy to: as PlanView has them.
  const HPMOE_GM int32_t* once_counts;
  const HPMOE_GM int32_t* once_row_base;
  const HPMOE_GM int32_t* once_expert_rows;
  const HPMOE_GM int32_t* once_expert_base;
  const HPMOE_GM int64_t* once_slice_begin;
  const HPMOE_GM int32_t* once_slice_slots;
  const HPMOE_GM int32_t* copy_rows;
  const HPMOE_GM int32_t* copy_slots;
  const HPMOE_GM float* topk_weights;   // [T, K]
  const HPMOE_GM Constants* constants;  // 64-byte aligned
  // Every rank's heap as this rank reaches it (aclshmem_ptr), [R].
  const HPMOE_GM uint64_t* heaps;
  // Buffers of the image's direction, by BufferId.  Weights and their gradients
  // are those of the rank's experts, [L, rows, cols]; those that puts write
  // are in the heap.
  HPMOE_GM uint8_t* buffers[kNumBuffers];
  // float32 sums of a weight gradient between the links of its chain, of the
  // gradient's shape.
  HPMOE_GM float* sums[kNumBuffers];
  // Beside int8 codes: (heap, as their buffer) [N] of rows, [L, cols] of
  // weights.
  HPMOE_GM float* scales[kNumBuffers];
  HPMOE_GM int32_t* header_slot;  // (heap) [N], -1 at launch
  HPMOE_GM float* header_weight;  // (heap) [N]
  // (heap) [N, CopiesOf] beside relayed rows: RowCopy, an array for each part.
  HPMOE_GM int32_t* copy_row;  // -1 at launch
  HPMOE_GM int32_t* copy_slot;
  HPMOE_GM float* copy_weight;
  HPMOE_GM float* d_row_weight;   // [N]
  HPMOE_GM float* d_slot_weight;  // (heap) [T * K]
  HPMOE_GM CounterLine* events;   // (heap) by event, zero at launch
  HPMOE_GM CounterLine* ready;    // (heap) [kReadyLines], zero when made and
                                  // never reset
  HPMOE_GM CoreDiagnosis*
      diagnosis;         // by core: AICs, then AIVs; zero at launch
  uint64_t deadline_us;  // of one wait
  int32_t rank;
  int32_t generation;  // 1 more at each launch on the same heap, from 1
};
static_assert(sizeof(LaunchArgs) == 8 * (18 + 3 * kNumBuffers + 10 + 2),
              "LaunchArgs is packed");

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_LAUNCH_ARGS_H_
