// A poll of a word that other cores add to.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_READ_COUNTER_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_READ_COUNTER_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/launch_args.h"

namespace hpmoe {

// What cube cores count in, and its word of a line.  Public kernels add int32
// words from L1 (hyper-parallel), or floats (asc-devkit's samples).
#ifdef HPMOE_FLOAT_COUNTS
using CubeCount = float;
constexpr int32_t kCubeWord = 8;
#else
using CubeCount = int32_t;
constexpr int32_t kCubeWord = 0;
#endif

// No access of memory is moved across it by the compiler, or kept from one side
// for the other: nothing tells it that dropping a cache line changes a word.
HPMOE_FUNCTION void CompilerBarrier() { __asm__ __volatile__("" ::: "memory"); }

// The value in memory: a line that the scalar cache holds is dropped first.
HPMOE_FUNCTION int32_t ReadCounter(HPMOE_GM CounterLine* line) {
  const AscendC::GlobalTensor<int32_t> word =
      GlobalOf(reinterpret_cast<HPMOE_GM int32_t*>(line));
  CompilerBarrier();
  AscendC::DataCacheCleanAndInvalid<int32_t,
                                    AscendC::CacheLine::SINGLE_CACHE_LINE,
                                    AscendC::DcciDst::CACHELINE_OUT>(word);
  CompilerBarrier();
  int32_t count = word.GetValue(0);
  if (kCubeWord > 0) {
    count += static_cast<int32_t>(
        GlobalOf(reinterpret_cast<HPMOE_GM CubeCount*>(line))
            .GetValue(kCubeWord));
  }
  return count;
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_READ_COUNTER_H_
