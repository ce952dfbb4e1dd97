// Faults that the host runtime can commit on request, one in one task.
//
// A fault spoils only what its own task writes, from inputs that the task may
// read, so a faulty launch gives the same bits for any number of threads; but
// for kSkippedWait, which is a race, unless puts are late.

#ifndef BACKEND_ASCEND_KERNELS_HOST_FAULTS_H_
#define BACKEND_ASCEND_KERNELS_HOST_FAULTS_H_

#include <cstdint>

#include "backend_ascend/kernels/host/launch/runtime_tasks.h"
#include "backend_ascend/kernels/image.h"

namespace hpmoe {

enum class FaultKind : int32_t {
  kNone = 0,
  kZeroOutput,          // writes zeros
  kDroppedTile,         // writes nothing
  kSwappedExperts,      // GEMM: the next expert's weights
  kStaleRow,            // dispatch: one row is another token's
  kLostKSlot,           // combine: one slot of one token is left out
  kMisplacedWeight,     // combine, dispatch of dy, SwiGLU and its gradient: the
                        // next slot's or row's weight
  kMissingWait,         // runs before everything else
  kMissingSignal,       // never signals
  kEarlySignal,         // signals when ready, runs after everything else
  kWrongOffset,         // put: rows begin one element too far, wrapping
  kOffByOneRow,         // return: row n + 1 in place of row n, wrapping
  kEarlyRounding,       // SwiGLU and its gradient: silu rounded to bfloat16
  kWrongAccumulation,   // GEMM: bfloat16 sums
  kNarrowOperandsTf32,  // GEMM: operands rounded to TF32, 10 bits
  kNarrowOperandsBf16,  // GEMM: operands rounded to bfloat16
  kNarrowAccumulator,   // GEMM: the sum rounded to bfloat16 at one K block
  kDroppedKTerm,        // GEMM: the last term of each sum is left out
  kSwappedGateUp,       // SwiGLU and its gradient: gate and up change places
  kSiluOff,             // SwiGLU and its gradient: silu is 1e-4 too large
  // Weight gradients only.
  kEmptyGradNotZeroed,  // nothing written, for an expert without rows
  kWeightGradTwice,     // the task's rows are summed twice
  kBlocksOutOfOrder,    // the later half of its rows is summed first
  // Both passes.
  kSkippedWait,  // takes its turn in its queue, but waits for nothing
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

#endif  // BACKEND_ASCEND_KERNELS_HOST_FAULTS_H_
