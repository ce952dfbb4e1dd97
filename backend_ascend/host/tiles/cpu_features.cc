#include "backend_ascend/host/tiles/cpu_features.h"

#if HPMOE_X86
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace hpmoe {
namespace {

#if HPMOE_X86
// Not every compiler's __builtin_cpu_supports knows it.
bool HasF16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// State of AMX's tiles in XCR0, and what the kernel is asked for.
constexpr uint64_t kTileStates = uint64_t{3} << 17;
constexpr long kRequestState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM

// The CPU's instructions and the system's support, then the kernel's leave for
// this process: a container's filter may refuse it, and then there is no AMX.
bool HasAmx() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  unsigned a, b, c, d;
  constexpr unsigned kSavesStates = 1u << 27;
  constexpr unsigned kBf16AndTiles = 1u << 22 | 1u << 24;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSavesStates) == 0) {
    return false;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 ||
      (d & kBf16AndTiles) != kBf16AndTiles) {
    return false;
  }
  asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  if (((uint64_t{d} << 32 | a) & kTileStates) != kTileStates) return false;
  return syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
#else
  return false;
#endif
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
  if (isa == Isa::kAvx512Amx) return avx512 && HasAmx();
#elif HPMOE_NEON
  if (isa == Isa::kNeon) return true;  // part of every aarch64
#endif
  return isa == Isa::kPortable;
}

// Intel's units take four times as long for a VDPBF16PS as for an FMA, which
// makes it half as fast (docs/development.md).
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
  static const bool supported[] = {
      Detect(Isa::kPortable),   Detect(Isa::kNeon),
      Detect(Isa::kAvx2),       Detect(Isa::kAvx512),
      Detect(Isa::kAvx512Bf16), Detect(Isa::kAvx512Amx)};
  return supported[static_cast<int32_t>(isa)];
}

bool HasVnni() {
#if HPMOE_X86
  static const bool has = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vnni") != 0;
  }();
  return has;
#else
  return false;
#endif
}

Isa BestIsa() {
  static const Isa best = DetectBest();
  return best;
}

const char* IsaName(Isa isa) {
  constexpr const char* kNames[] = {"portable", "neon",        "avx2",
                                    "avx512",   "avx512_bf16", "avx512_amx"};
  return kNames[static_cast<int32_t>(isa)];
}

}  // namespace hpmoe
