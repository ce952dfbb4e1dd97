// What all device source includes first: Ascend C, and what the headers shared
// with a host put before functions and pointers.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_ASCENDC_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_ASCENDC_H_

#include "kernel_operator.h"

#define HPMOE_FUNCTION __aicore__ inline
#define HPMOE_GM __gm__

// A build that counts or changes what a task does says so here; -1: no task.
#ifndef HPMOE_ON_TASK
#define HPMOE_ON_TASK(index)
#endif

namespace hpmoe {

// Constructors between address spaces do not exist: what lies in global memory
// is copied word by word.
typedef uint32_t __attribute__((__may_alias__)) AliasedWord;

// Only of what no core writes during a launch: the scalar cache may be stale.
template <typename T>
HPMOE_FUNCTION void CopyConstant(const HPMOE_GM T* from, T* to) {
  static_assert(sizeof(T) % sizeof(AliasedWord) == 0, "whole words");
  const HPMOE_GM AliasedWord* const words =
      reinterpret_cast<const HPMOE_GM AliasedWord*>(from);
  AliasedWord* const out = reinterpret_cast<AliasedWord*>(to);
  for (uint32_t i = 0; i < sizeof(T) / sizeof(AliasedWord); ++i) {
    out[i] = words[i];
  }
}

template <typename T>
HPMOE_FUNCTION AscendC::GlobalTensor<T> GlobalOf(HPMOE_GM T* address) {
  AscendC::GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(address);
  return tensor;
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_ASCENDC_H_
