#include "backend_ascend/kernels/host/tiles/cpu_features.h"

#if HPMOE_X86
#include <cpuid.h>
#endif

namespace hpmoe {
namespace {

#if HPMOE_X86
// Not every compiler's __builtin_cpu_supports knows it.
bool HasF16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

bool Detect(Isa isa) {
#if HPMOE_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") &&
                    __builtin_cpu_supports("fma") && HasF16c();
  if (isa == Isa::kAvx2) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl");
  if (isa == Isa::kAvx512) return avx512;
  if (isa == Isa::kAvx512Bf16) {
    return avx512 && __builtin_cpu_supports("avx512bf16");
  }
#elif HPMOE_NEON
  if (isa == Isa::kNeon) return true;  // part of every aarch64
#endif
  return isa == Isa::kPortable;
}

// Intel's units take four times as long for a VDPBF16PS as for an FMA, which
// makes it half as fast (docs/fast_lane.md).
bool IsSlow(Isa isa) {
#if HPMOE_X86
  return isa == Isa::kAvx512Bf16 && !__builtin_cpu_is("amd");
#else
  (void)isa;
  return false;
#endif
}

Isa DetectBest() {
  Isa best = Isa::kPortable;
  for (const Isa isa : kAllIsas) {
    if (Detect(isa) && !IsSlow(isa)) best = isa;
  }
  return best;
}

}  // namespace

bool IsaSupported(Isa isa) {
  static const bool supported[] = {Detect(Isa::kPortable), Detect(Isa::kNeon),
                                   Detect(Isa::kAvx2), Detect(Isa::kAvx512),
                                   Detect(Isa::kAvx512Bf16)};
  return supported[static_cast<int32_t>(isa)];
}

Isa BestIsa() {
  static const Isa best = DetectBest();
  return best;
}

const char* IsaName(Isa isa) {
  constexpr const char* kNames[] = {"portable", "neon", "avx2", "avx512",
                                    "avx512_bf16"};
  return kNames[static_cast<int32_t>(isa)];
}

}  // namespace hpmoe
