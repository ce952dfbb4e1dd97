// Faults that the host runtime can commit on request, one in one task.
//
// A fault spoils only what its own task writes, from inputs that the task may
// read, so a faulty launch gives the same bits for any number of threads; but
// for kSkippedWait, which is a race, unless puts are late.

#ifndef BACKEND_ASCEND_HOST_CHECKS_FAULTS_H_
#define BACKEND_ASCEND_HOST_CHECKS_FAULTS_H_

#include <cstdint>

#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/image/image.h"

namespace hpmoe {

// What each is called; `faults.toml` says what goes wrong, and where.
#define HPMOE_FAULTS(X)                           \
  X(kNone, "none")                                \
  X(kZeroOutput, "zero_output")                   \
  X(kDroppedTile, "dropped_tile")                 \
  X(kSwappedExperts, "swapped_experts")           \
  X(kStaleRow, "stale_row")                       \
  X(kLostKSlot, "lost_k_slot")                    \
  X(kMisplacedWeight, "misplaced_weight")         \
  X(kMissingWait, "missing_wait")                 \
  X(kMissingSignal, "missing_signal")             \
  X(kEarlySignal, "early_signal")                 \
  X(kWrongOffset, "wrong_offset")                 \
  X(kOffByOneRow, "off_by_one_row")               \
  X(kEarlyRounding, "early_rounding")             \
  X(kWrongAccumulation, "wrong_accumulation")     \
  X(kNarrowOperandsTf32, "narrow_operands_tf32")  \
  X(kNarrowOperandsBf16, "narrow_operands_bf16")  \
  X(kNarrowAccumulator, "narrow_accumulator")     \
  X(kDroppedKTerm, "dropped_k_term")              \
  X(kSwappedGateUp, "swapped_gate_up")            \
  X(kSiluOff, "silu_off")                         \
  X(kEmptyGradNotZeroed, "empty_grad_not_zeroed") \
  X(kWeightGradTwice, "weight_grad_twice")        \
  X(kBlocksOutOfOrder, "blocks_out_of_order")     \
  X(kSkippedWait, "skipped_wait")

enum class FaultKind : int32_t {
#define HPMOE_KIND(kind, name) kind,
  HPMOE_FAULTS(HPMOE_KIND)
#undef HPMOE_KIND
      kNumFaultKinds,
};

struct FaultSpec {
  FaultKind kind;
  int64_t task;
};

// Null for a number that is no fault.
const char* FaultName(FaultKind kind);

// kNone for a name that is no fault.
FaultKind FaultByName(const char* name);

// Whether the fault is one of order: the task's work stays right, when it is
// done or announced does not.
bool IsOrderFault(FaultKind kind);

// Whether the task's work is done out of its turn.
bool IsMoved(FaultKind kind);

// Does the task's work wrongly, `right` being the kernels that do it rightly.
// Returns whether any byte that the task writes differs from what it should
// have written; what this launch does not make, nobody can spoil.
bool RunFaulty(const TaskDesc& task, FaultKind kind, const Layer& layer,
               GemmScratch* scratch, Kernels* right);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_CHECKS_FAULTS_H_
