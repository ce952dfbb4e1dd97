// The bits of a launch do not depend on the thread that asks for it.

#ifndef BACKEND_ASCEND_HOST_TILES_FLOAT_ENVIRONMENT_H_
#define BACKEND_ASCEND_HOST_TILES_FLOAT_ENVIRONMENT_H_

#include <cfenv>
#include <cstdint>

#include "backend_ascend/host/tiles/cpu_features.h"

namespace hpmoe {

// Rounds to nearest and keeps subnormal numbers while it lives, whatever the
// caller's thread does: XLA's flush them to zero, and so does what they call
// back.  Threads started meanwhile inherit this.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

// While it lives, and where it is asked for, subnormal numbers are zero: read
// and written so by every sum of bfloat16 products, as by the CPUs' own
// instructions for those.
class FlushedSubnormals {
 public:
  explicit FlushedSubnormals(bool flush) : flush_(flush) {
    if (!flush_) return;
#if HPMOE_X86
    saved_ = __builtin_ia32_stmxcsr();
    constexpr unsigned kFlush = 0x8000, kZeros = 0x0040;
    __builtin_ia32_ldmxcsr(static_cast<unsigned>(saved_) | kFlush | kZeros);
#elif HPMOE_NEON
    constexpr uint64_t kFlush = uint64_t{1} << 24;
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | kFlush));
#endif
  }
  ~FlushedSubnormals() {
    if (!flush_) return;
#if HPMOE_X86
    __builtin_ia32_ldmxcsr(static_cast<unsigned>(saved_));
#elif HPMOE_NEON
    asm volatile("msr fpcr, %0" : : "r"(saved_));
#endif
  }
  FlushedSubnormals(const FlushedSubnormals&) = delete;
  FlushedSubnormals& operator=(const FlushedSubnormals&) = delete;

 private:
  const bool flush_;
  uint64_t saved_ = 0;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_TILES_FLOAT_ENVIRONMENT_H_
