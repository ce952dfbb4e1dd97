// What the compiler of a device knows by itself, for a compiler that does not:
// included first in source that is compiled against real headers.  Clang only.

#ifndef BACKEND_ASCEND_TWIN_INTRINSICS_COMPILER_BUILTINS_H_
#define BACKEND_ASCEND_TWIN_INTRINSICS_COMPILER_BUILTINS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "backend_ascend/twin/intrinsics/argument.h"

// Words that say nothing here.
#define __aicore__
#define __forceinline__ inline
#define __host__
#define __host_aicore__
#define __simd_callee__
#define __simd_vf__
#define __simt_callee__
#define __simt_vf__
#define __sync_alias__
#define __sync_noalias__
#define __check_sync_alias__
#define __inout_pipe__(...)
#define __in_pipe__(...)
#define __out_pipe__(...)
#define __tf__
#define __in__
#define __out__
#define __cce_get_tile_ptr(tile) (tile)

// Which cores run a kernel: where it lies says so.
#define __global__
#define __vector__ __attribute__((section("hpmoe_aiv")))
#define __cube__ __attribute__((section("hpmoe_aic")))
#define __mix__(cubes, vectors) \
  __attribute__((section("hpmoe_mix" #cubes #vectors)))
extern "C" {
#define HPMOE_SECTION(name)                                                 \
  extern char __start_hpmoe_##name[]                                        \
      __attribute__((weak, visibility("hidden")));                          \
  extern char __stop_hpmoe_##name[] __attribute__((weak, visibility("hidde" \
                                                                    "n")));
#define HPMOE_CORES(X) X(aiv) X(aic) X(mix10) X(mix01) X(mix11) X(mix12)
HPMOE_CORES(HPMOE_SECTION)
HPMOE_SECTION(local)
#undef HPMOE_SECTION
// Variables that each core has one of.
__attribute__((used, visibility("default"), weak)) char* hpmoe_twin_locals(
    char** end) {
  *end = __stop_hpmoe_local;
  return __start_hpmoe_local;
}
}
#define __BLOCK_LOCAL__ __attribute__((section("hpmoe_local")))

#define __gm__ __attribute__((address_space(1)))
#define __ubuf__ __attribute__((address_space(2)))
#define __cbuf__ __attribute__((address_space(3)))
#define __ca__ __attribute__((address_space(4)))
#define __cb__ __attribute__((address_space(5)))
#define __cc__ __attribute__((address_space(6)))
#define __fbuf__ __attribute__((address_space(7)))
#define __biasbuf__ __attribute__((address_space(8)))
#define __ssbuf__ __attribute__((address_space(9)))

using half = __fp16;
using float16_t = half;
using float32_t = float;

// The nearest, ties to even.
struct bfloat16_t {
  uint16_t bits;

  bfloat16_t() = default;
  bfloat16_t(const bfloat16_t&) = default;
  bfloat16_t& operator=(const bfloat16_t&) = default;
  // Templates: copying stays trivial.
  template <typename T,
            typename = std::enable_if_t<std::is_same<T, bfloat16_t>::value>>
  bfloat16_t(const __gm__ T& x) : bits(x.bits) {}
  template <typename T,
            typename = std::enable_if_t<std::is_same<T, bfloat16_t>::value>>
  bfloat16_t(const __ubuf__ T& x) : bits(x.bits) {}
  template <typename T,
            typename = std::enable_if_t<std::is_arithmetic<T>::value ||
                                        std::is_same<T, half>::value>>
  bfloat16_t(T number) {
    const float x = static_cast<float>(number);
    uint32_t all;
    std::memcpy(&all, &x, sizeof(all));
    bits = x != x
               ? 0x7FC0
               : static_cast<uint16_t>((all + 0x7FFF + (all >> 16 & 1)) >> 16);
  }
  operator float() const {
    const uint32_t all = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &all, sizeof(x));
    return x;
  }
};

// The compiler's own word for it, which a clang before 15 has not.
#define __bf16 bfloat16_t

// Enums that the device's compiler knows by itself: their order is ours.
enum pipe_t {
  PIPE_S,
  PIPE_V,
  PIPE_M,
  PIPE_MTE1,
  PIPE_MTE2,
  PIPE_MTE3,
  PIPE_ALL,
  PIPE_MTE4,
  PIPE_MTE5,
  PIPE_V2,
  PIPE_FIX
};
enum event_t {
  EVENT_ID0,
  EVENT_ID1,
  EVENT_ID2,
  EVENT_ID3,
  EVENT_ID4,
  EVENT_ID5,
  EVENT_ID6,
  EVENT_ID7
};
enum QuantMode_t {
  NoQuant,
  F322F16,
  F322BF16,
  DEQF16,
  VDEQF16,
  DEQS16,
  VDEQS16,
  REQ8,
  VREQ8,
  REQ4,
  VREQ4,
  QF322B8_PRE,
  VQF322B8_PRE,
  QF162B8_PRE,
  VQF162B8_PRE,
  QF162S4_PRE,
  VQF162S4_PRE,
  QF322F16_PRE,
  VQF322F16_PRE,
  QF322BF16_PRE,
  VQF322BF16_PRE,
  QF322F32_PRE,
  VQF322F32_PRE,
  QS322BF16_PRE,
  VQS322BF16_PRE,
  SHIFTS322S16,
  VSHIFTS322S16
};
enum cache_line_t { SINGLE_CACHE_LINE, ENTIRE_DATA_CACHE };
enum dcci_dst_t {
  CACHELINE_ALL,
  CACHELINE_UB,
  CACHELINE_OUT,
  CACHELINE_ATOMIC
};
enum mem_dsb_t { DSB_ALL, DSB_DDR, DSB_UB, DSB_SEQ };
enum Order_t { ONLY_VALUE, ONLY_INDEX, VALUE_INDEX, INDEX_VALUE };
enum addr_cal_mode_t { inc, dec };
enum pad_t {
  PAD_NONE,
  PAD_MODE1,
  PAD_MODE2,
  PAD_MODE3,
  PAD_MODE4,
  PAD_MODE5,
  PAD_MODE6,
  PAD_MODE7,
  PAD_MODE8
};
enum mem_t { L1, L0A, L0B, L0C, UB, BT };
enum ub_addr8_t { VA0, VA1, VA2, VA3, VA4, VA5, VA6, VA7 };
enum va_half_t { L128, H128 };
enum atomic_type_t {
  ATOMIC_NONE,
  ATOMIC_F32,
  ATOMIC_F16,
  ATOMIC_S16,
  ATOMIC_S32,
  ATOMIC_S8,
  ATOMIC_BF16
};
enum atomic_op_t { ATOMIC_SUM };
namespace __cce_scalar {
using ::addr_cal_mode_t;
}

// Not templates: they go before those of a library.
#define HPMOE_LESS(type)                                       \
  constexpr type min(type x, type y) { return y < x ? y : x; } \
  constexpr type max(type x, type y) { return x < y ? y : x; }
HPMOE_LESS(int32_t)
HPMOE_LESS(uint32_t)
HPMOE_LESS(int64_t)
HPMOE_LESS(uint64_t)
HPMOE_LESS(float)
#undef HPMOE_LESS

namespace bisheng {
namespace cce {
inline void metrics_prof_start() {}
inline void metrics_prof_stop() {}
template <pipe_t pipe, class... A>
void mark_stamp(A...) {}
}  // namespace cce
}  // namespace bisheng

namespace hpmoe_twin {

using ascend_twin::Argument;
using ascend_twin::Space;

// Numbers of ascend_twin::Type.
template <typename T>
constexpr uint8_t TypeOf() {
  using U = std::remove_cv_t<T>;
  if (std::is_same<U, half>::value) return 4;
  if (std::is_same<U, bfloat16_t>::value) return 5;
  if (std::is_same<U, float>::value) return 8;
  if (!std::is_integral<U>::value) return ascend_twin::kNoType;
  if constexpr (std::is_integral<U>::value) {
    const uint8_t no_sign = std::is_unsigned<U>::value ? 1 : 0;
    switch (sizeof(U)) {
      case 1:
        return no_sign;
      case 2:
        return 2 + no_sign;
      case 4:
        return 6 + no_sign;
      default:
        return 9 + no_sign;
    }
  }
  return ascend_twin::kNoType;
}

template <typename T>
Argument Pack(T value) {
  uint64_t bits = 0;
  if constexpr (std::is_integral<T>::value || std::is_enum<T>::value) {
    bits = static_cast<uint64_t>(static_cast<int64_t>(value));
  } else {
    static_assert(sizeof(T) <= sizeof(bits), "a value, or a pointer");
    std::memcpy(&bits, &value, sizeof(T));
  }
  return {Space::kNone, TypeOf<T>(), bits};
}
#define HPMOE_SPACE(word, space)                           \
  template <typename T>                                    \
  Argument Pack(word T* pointer) {                         \
    return {Space::space, TypeOf<T>(), (uint64_t)pointer}; \
  }
HPMOE_SPACE(__gm__, kGm)
HPMOE_SPACE(__ubuf__, kUb)
HPMOE_SPACE(__cbuf__, kL1)
HPMOE_SPACE(__ca__, kL0A)
HPMOE_SPACE(__cb__, kL0B)
HPMOE_SPACE(__cc__, kL0C)
HPMOE_SPACE(__fbuf__, kFixpipe)
HPMOE_SPACE(__biasbuf__, kBias)
HPMOE_SPACE(__ssbuf__, kSsBuffer)
#undef HPMOE_SPACE

// `kernel<<<blocks, ub, stream>>>(arguments)`.
inline const char* CoresOf(const void* kernel) {
  const char* const at = static_cast<const char*>(kernel);
#define HPMOE_IN(name) \
  if (at >= __start_hpmoe_##name && at < __stop_hpmoe_##name) return #name;
  HPMOE_CORES(HPMOE_IN)
#undef HPMOE_IN
#undef HPMOE_CORES
  return "";
}

template <typename... A>
struct Launcher {
  uint32_t blocks;
  std::tuple<A...> given;

  template <typename... P>
  static void Invoke(const void* function, const void* arguments) {
    std::apply((void (*)(P...))function,
               *static_cast<const std::tuple<P...>*>(arguments));
  }
  template <typename... P>
  void Run(void (*kernel)(P...)) const {
    const auto cast = [](const A&... one) {
      return std::tuple<P...>{(P)one...};
    };
    const std::tuple<P...> arguments = std::apply(cast, given);
    const auto* const at = reinterpret_cast<const void*>(kernel);
    hpmoe_twin_launch(at, CoresOf(at), blocks, &Invoke<P...>, &arguments);
  }
  // Of kernels of one name, the one whose parameters are the arguments' types.
  void On(void (*kernel)(A...)) const { Run(kernel); }
  template <typename... P,
            typename = std::enable_if_t<sizeof...(P) == sizeof...(A)>>
  void On(void (*kernel)(P...)) const {
    Run(kernel);
  }
};
struct Launch {
  uint32_t blocks;

  template <typename... Rest>
  explicit Launch(uint32_t count, Rest...) : blocks(count) {}
  template <typename... A>
  Launcher<A...> With(A... arguments) const {
    return {blocks, {arguments...}};
  }
};

// bfloat16_t is a class here, and no class can be assigned to in a memory.
template <typename T, typename U>
void Assign(T& to, U from) {
  to = from;
}
template <typename U>
void Assign(__gm__ bfloat16_t& to, U from) {
  to.bits = bfloat16_t(from).bits;
}
template <typename U>
void Assign(__ubuf__ bfloat16_t& to, U from) {
  to.bits = bfloat16_t(from).bits;
}

// A pointer of the host's, where one of the device's is expected.
template <typename T>
struct Near {
  const T* at;

  template <typename U>
  constexpr operator U*() const {
    return (U*)(uint64_t)at;
  }
};
template <typename T>
constexpr Near<T> ToDevice(const T* pointer) {
  return {pointer};
}

}  // namespace hpmoe_twin

// One intrinsic, of any arguments: build_kernel.py writes a line for each.
#define HPMOE_INTRINSIC(result, name)                                     \
  template <typename... A>                                                \
  inline result name(A... arguments) {                                    \
    static const void* const intrinsic = hpmoe_twin_find(#name);          \
    const ascend_twin::Argument all[] = {hpmoe_twin::Pack(arguments)...,  \
                                         ascend_twin::Argument{}};        \
    return static_cast<result>(                                           \
        hpmoe_twin_call(intrinsic, all, static_cast<int>(sizeof...(A)))); \
  }

// The compiler's variable.
static const struct HpmoeBlockIdx {
  operator int64_t() const {
    static const void* const intrinsic = hpmoe_twin_find("get_block_idx");
    return hpmoe_twin_call(intrinsic, nullptr, 0);
  }
} block_idx;

#endif  // BACKEND_ASCEND_TWIN_INTRINSICS_COMPILER_BUILTINS_H_
