// What all device source includes first: Ascend C, and what the headers shared
// with a host put before functions and pointers.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_ASCENDC_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_ASCENDC_H_

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

// Whether elements are int8 codes.
template <typename T>
constexpr bool kIsCode = sizeof(T) == 1;

// What products of elements add up in, and are stored as.
template <typename T>
struct Product {
  using Sum = float;
  using Stored = T;
};
template <>
struct Product<int8_t> {
  using Sum = int32_t;
  using Stored = int32_t;
};

// What CANN's versions spell differently, by names that all have: those of
// Ascend C from 8.5, and what its compiler knows by itself.  ReduceRepeat,
// SetSaturationFlag and DisableDmaAtomic came with 9.0 and 9.1.

// Products of floats are of floats.
HPMOE_FUNCTION void KeepFloats() { AscendC::SetHF32Mode(false); }

// Infinities and NaN stay what they are.
HPMOE_FUNCTION void KeepInfinities() {
  constexpr int32_t kFloatsStay = 48;  // of the control register
  set_ctrl(sbitset1(get_ctrl(), kFloatsStay));
}

// The sum of the first `lanes` of each of `repeats` times 64 floats, one after
// the other.
HPMOE_FUNCTION void SumRepeats(const AscendC::LocalTensor<float>& to,
                               const AscendC::LocalTensor<float>& from,
                               int32_t lanes, int32_t repeats) {
  constexpr int32_t kBlocks = 8;  // of a repeat
  AscendC::WholeReduceSum<float>(to, from, lanes, repeats, 1, 1, kBlocks);
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_ASCENDC_H_
