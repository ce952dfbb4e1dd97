// Instruction sets of the host tile kernels, chosen at run time.

#ifndef BACKEND_ASCEND_HOST_TILES_CPU_FEATURES_H_
#define BACKEND_ASCEND_HOST_TILES_CPU_FEATURES_H_

#include <cstdint>

#if defined(__x86_64__)
#define HPMOE_X86 1
#elif defined(__aarch64__)
#define HPMOE_NEON 1
#endif

// A function with one of these attributes may use that instruction set
// whatever flags its file is compiled with.
#define HPMOE_AVX2 __attribute__((target("avx2,fma,f16c")))
#define HPMOE_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma,f16c")))

#define HPMOE_AVX512_BF16                                     \
  __attribute__((                                             \
      target("avx512bf16,avx512f,avx512bw,avx512vl,avx2,fma," \
             "f16c")))

// Bodies that each instruction set compiles for itself, from one source.
#define HPMOE_INLINE inline __attribute__((always_inline))

namespace hpmoe {

// kAvx512Amx: AMX for sums of bfloat16 in order even_odd_32, else AVX-512.
enum class Isa : int32_t {
  kPortable,
  kNeon,
  kAvx2,
  kAvx512,
  kAvx512Bf16,
  kAvx512Amx
};
constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kNeon,       Isa::kAvx2,
                            Isa::kAvx512,   Isa::kAvx512Bf16, Isa::kAvx512Amx};

// Whether this build has it and this CPU runs it.
bool IsaSupported(Isa isa);
// AVX-512's products of bytes: of codes, beside any Isa of AVX-512.
bool HasVnni();
Isa BestIsa();
const char* IsaName(Isa isa);

}  // namespace hpmoe

// Defines KernelsOf(Isa): the file's Kernels of an instruction set.  make(name,
// target) defines constant k##name, whose functions have attribute `target`.
// On aarch64 fma and NEON are the baseline: the portable copy is the NEON one.
#if HPMOE_X86
#define HPMOE_KERNELS_OF_ISA(make)                    \
  make(Portable, );                                   \
  make(Avx2, HPMOE_AVX2);                             \
  make(Avx512, HPMOE_AVX512);                         \
  const Kernels& KernelsOf(Isa isa) {                 \
    if (isa == Isa::kAvx2) return kAvx2;              \
    return isa >= Isa::kAvx512 ? kAvx512 : kPortable; \
  }
#else
#define HPMOE_KERNELS_OF_ISA(make) \
  make(Portable, );                \
  const Kernels& KernelsOf(Isa) { return kPortable; }
#endif

#endif  // BACKEND_ASCEND_HOST_TILES_CPU_FEATURES_H_
