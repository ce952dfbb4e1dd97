// Storage dtypes: their one table, and orders in which products of them are
// summed.  Loader, tiles, proofs and Python read it.

#ifndef BACKEND_ASCEND_IMAGE_DTYPES_H_
#define BACKEND_ASCEND_IMAGE_DTYPES_H_

#include <stdint.h>

namespace hpmoe {

// Stored values as bits, so that overloads can tell them apart.
struct Bf16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

// X(id, type, name, mantissa bits stored, ...): IEEE-like formats; what is
// neither sign nor mantissa is exponent.  The order is that of codes in images.
#define HPMOE_DTYPES(X, ...)                     \
  X(kFloat32, float, "float32", 23, __VA_ARGS__) \
  X(kBFloat16, Bf16, "bfloat16", 7, __VA_ARGS__) \
  X(kFloat16, Half, "float16", 10, __VA_ARGS__)

#define HPMOE_DTYPE_ID(id, ...) id,
enum DType : uint32_t { HPMOE_DTYPES(HPMOE_DTYPE_ID, ) kNumDTypes };
#undef HPMOE_DTYPE_ID

struct DTypeInfo {
  const char* name;
  int64_t bytes;
  int32_t mantissa_bits;

  // The exponent's bits; all set in infinities and NaN.
  constexpr uint32_t exponent() const {
    return ((1u << (8 * bytes - 1 - mantissa_bits)) - 1) << mantissa_bits;
  }
};

#define HPMOE_DTYPE_INFO(id, type, name, mantissa, ...) \
  {name, sizeof(type), mantissa},
constexpr DTypeInfo kDTypes[] = {HPMOE_DTYPES(HPMOE_DTYPE_INFO, )};
#undef HPMOE_DTYPE_INFO

constexpr int64_t BytesOf(DType dtype) { return kDTypes[dtype].bytes; }

// Of a GEMM's sums: host/tiles/gemm.h.
enum AccumulationOrder : uint16_t { kAscending = 0, kEvenOdd32 = 1 };
constexpr int32_t kEvenOddTerms = 32;  // that kEvenOdd32 takes at a time

// A statement with `T` the type of a dtype.
#define HPMOE_STORED(dtype, ...)                 \
  switch (dtype) {                               \
    HPMOE_DTYPES(HPMOE_STORED_CASE, __VA_ARGS__) \
    default:                                     \
      break;                                     \
  }
#define HPMOE_STORED_CASE(id, type, name, mantissa, ...) \
  case id: {                                             \
    using T = type;                                      \
    __VA_ARGS__;                                         \
    break;                                               \
  }

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_IMAGE_DTYPES_H_
