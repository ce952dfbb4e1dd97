// Vector arithmetic, element by element.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_VECTOR_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_VECTOR_H_

#include "backend_ascend/twin/instructions/lanes.h"
#include "backend_ascend/twin/instructions/operand.h"
#include "backend_ascend/twin/instructions/params.h"

namespace ascend_twin {

enum class Binary : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMax,
  kMin,
  kMulAddDst,    // dst = src0 * src1 + dst
  kFusedMulAdd,  // dst = src0 * dst + src1
  kAddRelu,
  kSubRelu,
  kAnd,
  kOr
};
enum class Unary : uint8_t {
  kExp,
  kLn,
  kSqrt,
  kReciprocal,
  kRsqrt,
  kAbs,
  kAdds,
  kMuls,
  kMaxs,
  kMins,
  kAxpy,  // dst = scalar * src + dst
  kRelu,
  kLeakyRelu,  // dst = src, below 0 times the scalar
  kNot
};

void IssueBinary(const Call& call, Binary op, const Operand& dst,
                 const Operand& src0, const Operand& src1, const Mask& mask,
                 int64_t repeat, const AscendC::BinaryRepeatParams& params);
// `scalar`: the bits of an element of src's type.
void IssueUnary(const Call& call, Unary op, const Operand& dst,
                const Operand& src, uint64_t scalar, const Mask& mask,
                int64_t repeat, const AscendC::UnaryRepeatParams& params);
void IssueCast(const Call& call, const Operand& dst, const Operand& src,
               AscendC::RoundMode mode, const Mask& mask, int64_t repeat,
               const AscendC::UnaryRepeatParams& params);

// Strides of the form that counts elements, where dst and src differ in size.
AscendC::UnaryRepeatParams Contiguous(const Operand& dst, const Operand& src);
AscendC::BinaryRepeatParams ContiguousBinary(const Operand& dst,
                                             const Operand& src);

}  // namespace ascend_twin

namespace AscendC {

// Two forms of each call: a mask, which is bits of lanes or how many lanes, and
// a count of elements.  TEMPLATE names the types as Ascend C does, for calls
// that give them.
#define ASCEND_TWIN_T typename T
#define ASCEND_TWIN_TU typename T, typename U

#define ASCEND_TWIN_BINARY(NAME, TEMPLATE, U)                                  \
  template <TEMPLATE, bool isSetMask = true, typename M>                       \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src0,             \
            const LocalTensor<U>& src1, M mask, int64_t repeat,                \
            const BinaryRepeatParams& params, Site site = Site::Here()) {      \
    ascend_twin::IssueBinary(                                                  \
        {#NAME, site}, ascend_twin::Binary::k##NAME, dst, src0, src1,          \
        ascend_twin::Mask::Lanes(isSetMask, mask), repeat, params);            \
  }                                                                            \
  template <TEMPLATE>                                                          \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src0,             \
            const LocalTensor<U>& src1, const int32_t& count,                  \
            Site site = Site::Here()) {                                        \
    ascend_twin::IssueBinary({#NAME, site}, ascend_twin::Binary::k##NAME, dst, \
                             src0, src1, ascend_twin::Mask::Count(count), 0,   \
                             ascend_twin::ContiguousBinary(dst, src0));        \
  }
ASCEND_TWIN_BINARY(Add, ASCEND_TWIN_T, T)
ASCEND_TWIN_BINARY(Sub, ASCEND_TWIN_T, T)
ASCEND_TWIN_BINARY(Mul, ASCEND_TWIN_T, T)
ASCEND_TWIN_BINARY(Div, ASCEND_TWIN_T, T)
ASCEND_TWIN_BINARY(Max, ASCEND_TWIN_T, T)
ASCEND_TWIN_BINARY(Min, ASCEND_TWIN_T, T)
ASCEND_TWIN_BINARY(And, ASCEND_TWIN_T, T)
ASCEND_TWIN_BINARY(Or, ASCEND_TWIN_T, T)
ASCEND_TWIN_BINARY(FusedMulAdd, ASCEND_TWIN_T, T)
ASCEND_TWIN_BINARY(MulAddDst, ASCEND_TWIN_TU, U)
#undef ASCEND_TWIN_BINARY

// SCALAR and BITS: nothing and 0, or a parameter and its bits.
#define ASCEND_TWIN_UNARY(NAME, TEMPLATE, U, SCALAR, BITS)                   \
  template <TEMPLATE, bool isSetMask = true, typename M>                     \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src SCALAR,     \
            M mask, int64_t repeat, const UnaryRepeatParams& params,         \
            Site site = Site::Here()) {                                      \
    ascend_twin::IssueUnary(                                                 \
        {#NAME, site}, ascend_twin::Unary::k##NAME, dst, src, BITS,          \
        ascend_twin::Mask::Lanes(isSetMask, mask), repeat, params);          \
  }                                                                          \
  template <TEMPLATE>                                                        \
  void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src SCALAR,     \
            const int32_t& count, Site site = Site::Here()) {                \
    ascend_twin::IssueUnary({#NAME, site}, ascend_twin::Unary::k##NAME, dst, \
                            src, BITS, ascend_twin::Mask::Count(count), 0,   \
                            ascend_twin::Contiguous(dst, src));              \
  }
#define ASCEND_TWIN_NONE
#define ASCEND_TWIN_SCALAR_T , const T& scalar
#define ASCEND_TWIN_SCALAR_U , const U& scalar
#define ASCEND_TWIN_BITS ascend_twin::BitsOf(scalar)
ASCEND_TWIN_UNARY(Exp, ASCEND_TWIN_T, T, ASCEND_TWIN_NONE, 0)
ASCEND_TWIN_UNARY(Ln, ASCEND_TWIN_T, T, ASCEND_TWIN_NONE, 0)
ASCEND_TWIN_UNARY(Sqrt, ASCEND_TWIN_T, T, ASCEND_TWIN_NONE, 0)
ASCEND_TWIN_UNARY(Reciprocal, ASCEND_TWIN_T, T, ASCEND_TWIN_NONE, 0)
ASCEND_TWIN_UNARY(Rsqrt, ASCEND_TWIN_T, T, ASCEND_TWIN_NONE, 0)
ASCEND_TWIN_UNARY(Abs, ASCEND_TWIN_T, T, ASCEND_TWIN_NONE, 0)
ASCEND_TWIN_UNARY(Not, ASCEND_TWIN_T, T, ASCEND_TWIN_NONE, 0)
ASCEND_TWIN_UNARY(Relu, ASCEND_TWIN_T, T, ASCEND_TWIN_NONE, 0)
ASCEND_TWIN_UNARY(Adds, ASCEND_TWIN_T, T, ASCEND_TWIN_SCALAR_T,
                  ASCEND_TWIN_BITS)
ASCEND_TWIN_UNARY(Muls, ASCEND_TWIN_T, T, ASCEND_TWIN_SCALAR_T,
                  ASCEND_TWIN_BITS)
ASCEND_TWIN_UNARY(Maxs, ASCEND_TWIN_T, T, ASCEND_TWIN_SCALAR_T,
                  ASCEND_TWIN_BITS)
ASCEND_TWIN_UNARY(Mins, ASCEND_TWIN_T, T, ASCEND_TWIN_SCALAR_T,
                  ASCEND_TWIN_BITS)
ASCEND_TWIN_UNARY(Axpy, ASCEND_TWIN_TU, U, ASCEND_TWIN_SCALAR_U,
                  ASCEND_TWIN_BITS)
#undef ASCEND_TWIN_BITS
#undef ASCEND_TWIN_SCALAR_U
#undef ASCEND_TWIN_SCALAR_T
#undef ASCEND_TWIN_NONE
#undef ASCEND_TWIN_UNARY
#undef ASCEND_TWIN_TU
#undef ASCEND_TWIN_T

template <typename T, typename U, bool isSetMask = true, typename M>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src,
          const RoundMode& mode, M mask, int64_t repeat,
          const UnaryRepeatParams& params, Site site = Site::Here()) {
  ascend_twin::IssueCast({"Cast", site}, dst, src, mode,
                         ascend_twin::Mask::Lanes(isSetMask, mask), repeat,
                         params);
}
template <typename T, typename U>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src,
          const RoundMode& mode, uint32_t count, Site site = Site::Here()) {
  ascend_twin::IssueCast({"Cast", site}, dst, src, mode,
                         ascend_twin::Mask::Count(count), 0,
                         ascend_twin::Contiguous(dst, src));
}

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_VECTOR_H_
