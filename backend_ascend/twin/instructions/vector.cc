#include "backend_ascend/twin/instructions/vector.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>

#include "backend_ascend/twin/instructions/numbers.h"

namespace ascend_twin {
namespace {

// How elements are computed with: as floats, or as integers that wrap.
// Integer overflow is not published.  [inferred]
struct FloatElement {
  using Stored = float;
  using Number = float;
  static float Load(float x) { return x; }
  static float Store(float x, bool) { return Canonical(x); }
};
struct HalfElement {
  using Stored = uint16_t;
  using Number = float;
  static float Load(uint16_t x) { return FloatOfHalf(x); }
  static uint16_t Store(float x, bool saturate) {
    return HalfOfFloat(saturate ? Saturate(x, kLargestHalf) : x);
  }
};
template <typename T>
struct IntegerElement {
  using Stored = T;
  using Number = T;
  static T Load(T x) { return x; }
  static T Store(T x, bool) { return x; }
};

// Operands of a loop are the same memory or apart, so its turns may go at once.
#if defined(__clang__)
#define ASCEND_TWIN_APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define ASCEND_TWIN_APART _Pragma("GCC ivdep")
#endif

template <typename D, typename S, typename F>
PieceFunction Loop1(bool saturate, F f) {
  return [saturate, f](int64_t lanes, char* const pointers[]) {
    auto* const to = reinterpret_cast<typename D::Stored*>(pointers[0]);
    const auto* const from =
        reinterpret_cast<const typename S::Stored*>(pointers[1]);
    ASCEND_TWIN_APART
    for (int64_t i = 0; i < lanes; ++i) {
      to[i] = D::Store(f(S::Load(from[i]), D::Load(to[i])), saturate);
    }
  };
}

template <typename D, typename S, typename F>
PieceFunction Loop2(bool saturate, F f) {
  return [saturate, f](int64_t lanes, char* const pointers[]) {
    auto* const to = reinterpret_cast<typename D::Stored*>(pointers[0]);
    const auto* const a =
        reinterpret_cast<const typename S::Stored*>(pointers[1]);
    const auto* const b =
        reinterpret_cast<const typename S::Stored*>(pointers[2]);
    ASCEND_TWIN_APART
    for (int64_t i = 0; i < lanes; ++i) {
      to[i] =
          D::Store(f(S::Load(a[i]), S::Load(b[i]), D::Load(to[i])), saturate);
    }
  };
}

// NaN in, NaN out.  [inferred]
template <typename T>
T Larger(T a, T b) {
  return a != a ? a : b != b ? b : a > b ? a : b;
}
template <typename T>
T Smaller(T a, T b) {
  return a != a ? a : b != b ? b : a < b ? a : b;
}

// Of 64 bits where they are integers: those that are kept wrap.
template <typename T, typename F>
T Wrapped(T a, T b, F f) {
  if constexpr (std::is_same<T, float>::value) {
    return f(a, b);
  } else {
    return static_cast<T>(f(int64_t{a}, int64_t{b}));
  }
}
template <typename T>
T Plus(T a, T b) {
  return Wrapped(a, b, std::plus<>());
}
template <typename T>
T Minus(T a, T b) {
  return Wrapped(a, b, std::minus<>());
}
template <typename T>
T Times(T a, T b) {
  return Wrapped(a, b, std::multiplies<>());
}

// Calls `f` with how elements of an arithmetic type are computed with.
template <typename F>
PieceFunction WithElement(Type type, F f) {
  switch (type) {
    case Type::kHalf:
      return f(HalfElement());
    case Type::kInt16:
      return f(IntegerElement<int16_t>());
    case Type::kInt32:
      return f(IntegerElement<int32_t>());
    default:
      return f(FloatElement());
  }
}

// The same for a real destination and what it is computed from.
template <typename F>
PieceFunction WithReals(Type dst, Type src, F f) {
  if (dst == Type::kHalf) return f(HalfElement(), HalfElement());
  return src == Type::kHalf ? f(FloatElement(), HalfElement())
                            : f(FloatElement(), FloatElement());
}

template <typename E>
PieceFunction Arithmetic(E, Binary op, bool saturate) {
  using N = typename E::Number;
  const auto loop = [=](auto f) { return Loop2<E, E>(saturate, f); };
  switch (op) {
    case Binary::kAdd:
      return loop([](N a, N b, N) { return Plus(a, b); });
    case Binary::kSub:
      return loop([](N a, N b, N) { return Minus(a, b); });
    case Binary::kMul:
      return loop([](N a, N b, N) { return Times(a, b); });
    case Binary::kMax:
      return loop([](N a, N b, N) { return Larger(a, b); });
    case Binary::kAddRelu:
      return loop([](N a, N b, N) { return Larger(Plus(a, b), N{0}); });
    case Binary::kSubRelu:
      return loop([](N a, N b, N) { return Larger(Minus(a, b), N{0}); });
    default:
      return loop([](N a, N b, N) { return Smaller(a, b); });
  }
}

// Products and sums of one rounding.  [inferred]
template <typename D, typename S>
PieceFunction Real(D, S, Binary op, bool saturate) {
  const auto loop = [=](auto f) { return Loop2<D, S>(saturate, f); };
  if (op == Binary::kDiv) {
    return loop([](float a, float b, float) { return a / b; });
  }
  if (op == Binary::kMulAddDst) {
    return loop([](float a, float b, float c) { return std::fma(a, b, c); });
  }
  return loop([](float a, float b, float c) { return std::fma(a, c, b); });
}

bool IsBits(Binary op) { return op == Binary::kAnd || op == Binary::kOr; }

PieceFunction FunctionOf(Binary op, Type dst, Type src, bool saturate) {
  if (IsBits(op)) {
    using E = IntegerElement<int16_t>;
    const auto both = [](int a, int b, int) { return int16_t(a & b); };
    const auto either = [](int a, int b, int) { return int16_t(a | b); };
    return op == Binary::kAnd ? Loop2<E, E>(false, both)
                              : Loop2<E, E>(false, either);
  }
  if (op == Binary::kDiv || op == Binary::kMulAddDst ||
      op == Binary::kFusedMulAdd) {
    return WithReals(dst, src,
                     [=](auto d, auto s) { return Real(d, s, op, saturate); });
  }
  return WithElement(dst, [=](auto e) { return Arithmetic(e, op, saturate); });
}

void CheckReal(const Call& call, Type type) {
  call.OneOf("dst", type, {Type::kHalf, Type::kFloat});
}

void CheckBits(const Call& call, Type type) {
  call.OneOf("dst", type, {Type::kInt16, Type::kUint16});
}

void CheckArithmetic(const Call& call, Type type) {
  call.OneOf("dst", type,
             {Type::kHalf, Type::kFloat, Type::kInt16, Type::kInt32});
}

// float from half is all that may differ.
void CheckWidening(const Call& call, Type dst, Type src) {
  CheckReal(call, dst);
  if (dst == Type::kFloat && src == Type::kHalf) return;
  call.Same("src", src, dst);
}

}  // namespace

AscendC::UnaryRepeatParams Contiguous(const Operand& dst, const Operand& src) {
  const uint64_t widest = std::max(dst.size(), src.size());
  return {1, 1, static_cast<uint8_t>(8 * dst.size() / widest),
          static_cast<uint8_t>(8 * src.size() / widest)};
}

AscendC::BinaryRepeatParams ContiguousBinary(const Operand& dst,
                                             const Operand& src) {
  const AscendC::UnaryRepeatParams unary = Contiguous(dst, src);
  return {1, 1, 1, unary.dstRepStride, unary.srcRepStride, unary.srcRepStride};
}

namespace {

Family FamilyOf(Binary op, const Operand& dst, const Operand& src) {
  if (op == Binary::kMulAddDst || op == Binary::kFusedMulAdd) {
    return dst.size() > src.size() ? Family::kToWiderDst : Family::kToDst;
  }
  return op == Binary::kDiv || IsBits(op) ? Family::kLanewise
                                          : Family::kArithmetic;
}

}  // namespace

void IssueBinary(const Call& call, Binary op, const Operand& dst,
                 const Operand& src0, const Operand& src1, const Mask& mask,
                 int64_t repeat, const AscendC::BinaryRepeatParams& params) {
  const bool to_dst = op == Binary::kMulAddDst || op == Binary::kFusedMulAdd;
  if (op == Binary::kMulAddDst) {
    CheckWidening(call, dst.type, src0.type);
  } else if (op == Binary::kDiv || op == Binary::kFusedMulAdd) {
    CheckReal(call, dst.type);
  } else if (IsBits(op)) {
    CheckBits(call, dst.type);
  } else if (op == Binary::kAddRelu || op == Binary::kSubRelu) {
    call.OneOf("dst", dst.type, {Type::kHalf, Type::kFloat, Type::kInt16});
  } else {
    CheckArithmetic(call, dst.type);
  }
  const Lanes lanes =
      LanesOf(call, FamilyOf(op, dst, src0), mask, repeat,
              {{"dst", dst, params.dstBlkStride, params.dstRepStride},
               {"src0", src0, params.src0BlkStride, params.src0RepStride},
               {"src1", src1, params.src1BlkStride, params.src1RepStride}});
  IssueLanes(call, lanes,
             FunctionOf(op, dst.type, src0.type, ThisNumerics().saturate),
             to_dst);
}

namespace {

// One unit in the last place up or down; zero, infinity and NaN stay.
float Nudged(float x, ExpMode mode) {
  if (mode == ExpMode::kNearest || x == 0.0f || !std::isfinite(x)) return x;
  const float infinity = std::numeric_limits<float>::infinity();
  return std::nextafter(x, mode == ExpMode::kUp ? infinity : -infinity);
}

// The page gives Reciprocal an error of 1e-4: the twin cuts 13 bits of the
// fraction's 23, so that nobody counts on them.  [inferred]
float RoughReciprocal(float x) {
  const float exact = 1.0f / x;
  if (!std::isfinite(exact)) return exact;
  return FloatOfBits(BitsOfFloat(exact) & ~((1u << 10) - 1));
}

template <typename D, typename S>
PieceFunction UnaryLoop(D, S, Unary op, float s, const Numerics& numerics) {
  const auto loop = [&](auto f) { return Loop1<D, S>(numerics.saturate, f); };
  switch (op) {
    case Unary::kExp:
      return loop([mode = numerics.exp](float x, float) {
        return Nudged(static_cast<float>(std::exp(double{x})), mode);
      });
    case Unary::kLn:
      return loop([](float x, float) {
        return static_cast<float>(std::log(double{x}));
      });
    case Unary::kSqrt:
      return loop([](float x, float) { return std::sqrt(x); });
    case Unary::kReciprocal:
      return loop([](float x, float) { return RoughReciprocal(x); });
    case Unary::kRsqrt:
      return loop([](float x, float) {
        return static_cast<float>(1.0 / std::sqrt(double{x}));
      });
    case Unary::kAbs:
      return loop([](float x, float) { return std::fabs(x); });
    case Unary::kAxpy:
      return loop([s](float x, float sum) { return std::fma(s, x, sum); });
    case Unary::kLeakyRelu:
      return loop([s](float x, float) { return x < 0 ? x * s : x; });
    default:
      return nullptr;
  }
}

template <typename E>
PieceFunction ScalarLoop(E, Unary op, typename E::Number s, bool saturate) {
  using N = typename E::Number;
  const auto loop = [=](auto f) { return Loop1<E, E>(saturate, f); };
  switch (op) {
    case Unary::kAdds:
      return loop([s](N x, N) { return Plus(x, s); });
    case Unary::kMuls:
      return loop([s](N x, N) { return Times(x, s); });
    case Unary::kMaxs:
      return loop([s](N x, N) { return Larger(x, s); });
    case Unary::kRelu:
      return loop([](N x, N) { return Larger(x, N{0}); });
    default:
      return loop([s](N x, N) { return Smaller(x, s); });
  }
}

// Of any arithmetic type.
bool TakesScalarOfItsType(Unary op) {
  return op == Unary::kAdds || op == Unary::kMuls || op == Unary::kMaxs ||
         op == Unary::kMins || op == Unary::kRelu;
}

PieceFunction FunctionOf(Unary op, Type dst, Type src, uint64_t scalar,
                         const Numerics& numerics) {
  if (op == Unary::kNot) {
    using E = IntegerElement<int16_t>;
    return Loop1<E, E>(false, [](int x, int) { return int16_t(~x); });
  }
  const float real = src == Type::kHalf
                         ? FloatOfHalf(static_cast<uint16_t>(scalar))
                         : FloatOfBits(static_cast<uint32_t>(scalar));
  if (!TakesScalarOfItsType(op)) {
    return WithReals(dst, src, [&](auto d, auto s) {
      return UnaryLoop(d, s, op, real, numerics);
    });
  }
  return WithElement(dst, [&](auto e) {
    using N = typename decltype(e)::Number;
    const bool is_real = std::is_same<N, float>::value;
    return ScalarLoop(e, op, is_real ? N(real) : N(scalar), numerics.saturate);
  });
}

}  // namespace

void IssueUnary(const Call& call, Unary op, const Operand& dst,
                const Operand& src, uint64_t scalar, const Mask& mask,
                int64_t repeat, const AscendC::UnaryRepeatParams& params) {
  if (op == Unary::kRelu) {
    call.OneOf("dst", dst.type, {Type::kHalf, Type::kFloat, Type::kInt32});
  } else if (op == Unary::kNot) {
    CheckBits(call, dst.type);
  } else if (TakesScalarOfItsType(op)) {
    CheckArithmetic(call, dst.type);
  } else if (op == Unary::kAxpy) {
    CheckWidening(call, dst.type, src.type);
  } else {
    CheckReal(call, dst.type);
  }
  const Family family = op != Unary::kAxpy        ? Family::kLanewise
                        : dst.size() > src.size() ? Family::kToWiderDst
                                                  : Family::kToDst;
  const Lanes lanes =
      LanesOf(call, family, mask, repeat,
              {{"dst", dst, params.dstBlkStride, params.dstRepStride},
               {"src", src, params.srcBlkStride, params.srcRepStride}});
  IssueLanes(call, lanes,
             FunctionOf(op, dst.type, src.type, scalar, ThisNumerics()),
             op == Unary::kAxpy);
}

namespace {

constexpr unsigned Bit(RoundMode mode) { return 1u << static_cast<int>(mode); }
constexpr unsigned kNone = Bit(RoundMode::CAST_NONE);
constexpr unsigned kFive =
    Bit(RoundMode::CAST_RINT) | Bit(RoundMode::CAST_FLOOR) |
    Bit(RoundMode::CAST_CEIL) | Bit(RoundMode::CAST_ROUND) |
    Bit(RoundMode::CAST_TRUNC);

// What A2 and A3 convert, and how they may round.
struct Conversion {
  Type src;
  Type dst;
  unsigned modes;
};
constexpr Conversion kConversions[] = {
    {Type::kInt8, Type::kHalf, kNone},
    {Type::kUint8, Type::kHalf, kNone},
    {Type::kInt16, Type::kHalf, kFive | kNone},
    {Type::kInt16, Type::kFloat, kNone},
    {Type::kHalf, Type::kInt8, kFive | kNone},
    {Type::kHalf, Type::kUint8, kFive | kNone},
    {Type::kHalf, Type::kInt16, kFive},
    {Type::kHalf, Type::kInt32, kFive},
    {Type::kHalf, Type::kFloat, kNone},
    {Type::kBf16, Type::kInt32, kFive},
    {Type::kBf16, Type::kFloat, kNone},
    {Type::kInt32, Type::kInt16, kNone},
    {Type::kInt32, Type::kFloat, kFive | kNone},
    {Type::kInt32, Type::kInt64, kNone},
    {Type::kFloat, Type::kInt16, kFive},
    {Type::kFloat, Type::kHalf, kFive | kNone | Bit(RoundMode::CAST_ODD)},
    {Type::kFloat, Type::kBf16, kFive},
    {Type::kFloat, Type::kInt32, kFive},
    {Type::kFloat, Type::kFloat, kFive},
    {Type::kFloat, Type::kInt64, kFive},
    {Type::kInt64, Type::kInt32, kNone},
    {Type::kInt64, Type::kFloat, kFive},
};

constexpr const char* kModeNames[] = {"CAST_NONE", "CAST_RINT",  "CAST_FLOOR",
                                      "CAST_CEIL", "CAST_ROUND", "CAST_TRUNC",
                                      "CAST_ODD"};

void CheckConversion(const Call& call, Type src, Type dst, RoundMode mode) {
  for (const Conversion& conversion : kConversions) {
    if (conversion.src != src || conversion.dst != dst) continue;
    if ((conversion.modes & Bit(mode)) != 0) return;
    std::string expected;
    for (int i = 0; i < 7; ++i) {
      if ((conversion.modes >> i & 1) == 0) continue;
      expected += (expected.empty() ? "" : ", ") + std::string(kModeNames[i]);
    }
    call.Refuse(std::string("roundMode of ") + NameOf(src) + " to " +
                NameOf(dst) + ": expected " + expected + "; got " +
                kModeNames[static_cast<int>(mode)]);
  }
  call.Refuse(std::string("expected a conversion that A2 and A3 have, got ") +
              NameOf(src) + " to " + NameOf(dst));
}

// A number that a conversion takes: exact either way.
struct Number {
  bool is_integer;
  int64_t integer;
  float real;
};

Number NumberAt(const char* at, Type type) {
  switch (type) {
    case Type::kInt8:
      return {true, Read<int8_t>(at), 0};
    case Type::kUint8:
      return {true, Read<uint8_t>(at), 0};
    case Type::kInt16:
      return {true, Read<int16_t>(at), 0};
    case Type::kInt32:
      return {true, Read<int32_t>(at), 0};
    case Type::kInt64:
      return {true, Read<int64_t>(at), 0};
    default:
      return {false, 0, FloatAt(at, type)};
  }
}

float FloatOfInteger(int64_t x, RoundMode mode) {
  const bool negative = x < 0;
  uint64_t magnitude = negative ? 0 - static_cast<uint64_t>(x) : x;
  int cut = 0;
  while (magnitude >> cut >= uint64_t{1} << 24) ++cut;
  if (cut > 0) {
    const uint64_t kept = magnitude >> cut;
    const uint64_t rest = magnitude & ((uint64_t{1} << cut) - 1);
    magnitude =
        (kept + Grows(mode, negative, kept, rest, uint64_t{1} << (cut - 1)))
        << cut;
  }
  const float result = static_cast<float>(magnitude);
  return negative ? -result : result;
}

// Integers saturate, and NaN is zero.  [inferred]
template <typename T>
T IntegerOf(const Number& number, RoundMode mode) {
  const int64_t low = std::numeric_limits<T>::min();
  const int64_t high = std::numeric_limits<T>::max();
  if (number.is_integer) {
    return static_cast<T>(std::min(std::max(number.integer, low), high));
  }
  const float rounded = RoundedToInteger(number.real, mode);
  if (rounded != rounded) return 0;
  if (rounded >= static_cast<float>(high)) return static_cast<T>(high);
  if (rounded <= static_cast<float>(low)) return static_cast<T>(low);
  return static_cast<T>(rounded);
}

void Convert(const char* from, Type src, char* to, Type dst, RoundMode mode,
             bool saturate) {
  const Number number = NumberAt(from, src);
  const auto real = [&](float largest) {
    const float x =
        number.is_integer ? FloatOfInteger(number.integer, mode) : number.real;
    return saturate ? Saturate(x, largest) : x;
  };
  switch (dst) {
    case Type::kInt8:
      return Write(to, IntegerOf<int8_t>(number, mode));
    case Type::kUint8:
      return Write(to, IntegerOf<uint8_t>(number, mode));
    case Type::kInt16:
      return Write(to, IntegerOf<int16_t>(number, mode));
    case Type::kInt32:
      return Write(to, IntegerOf<int32_t>(number, mode));
    case Type::kInt64:
      return Write(to, IntegerOf<int64_t>(number, mode));
    case Type::kHalf:
      return Write(to, HalfOfFloat(real(kLargestHalf), mode));
    case Type::kBf16:
      return Write(to, Bf16OfFloat(real(kLargestBf16), mode));
    default:
      if (src == Type::kFloat) {
        return Write(to,
                     Canonical(RoundedToInteger(real(kLargestFloat), mode)));
      }
      return Write(to, real(kLargestFloat));
  }
}

PieceFunction ConversionOf(Type src, Type dst, RoundMode mode, bool saturate) {
  if (src == Type::kBf16 && dst == Type::kFloat && !saturate) {
    return [](int64_t lanes, char* const pointers[]) {
      auto* const to = reinterpret_cast<uint32_t*>(pointers[0]);
      const auto* const from = reinterpret_cast<const uint16_t*>(pointers[1]);
      ASCEND_TWIN_APART
      for (int64_t i = 0; i < lanes; ++i) {
        to[i] = static_cast<uint32_t>(from[i]) << 16;
      }
    };
  }
  if (src == Type::kFloat && dst == Type::kBf16 &&
      mode == RoundMode::CAST_RINT && !saturate) {
    return [](int64_t lanes, char* const pointers[]) {
      auto* const to = reinterpret_cast<uint16_t*>(pointers[0]);
      const auto* const from = reinterpret_cast<const float*>(pointers[1]);
      ASCEND_TWIN_APART
      for (int64_t i = 0; i < lanes; ++i) to[i] = NearestBf16(from[i]);
    };
  }
  return [=](int64_t lanes, char* const pointers[]) {
    for (int64_t i = 0; i < lanes; ++i) {
      Convert(pointers[1] + i * SizeOf(src), src, pointers[0] + i * SizeOf(dst),
              dst, mode, saturate);
    }
  };
}

}  // namespace

void IssueCast(const Call& call, const Operand& dst, const Operand& src,
               AscendC::RoundMode mode, const Mask& mask, int64_t repeat,
               const AscendC::UnaryRepeatParams& params) {
  CheckConversion(call, src.type, dst.type, mode);
  const Family family = dst.size() > src.size()   ? Family::kWidening
                        : dst.size() < src.size() ? Family::kNarrowing
                                                  : Family::kConversion;
  const Lanes lanes =
      LanesOf(call, family, mask, repeat,
              {{"dst", dst, params.dstBlkStride, params.dstRepStride},
               {"src", src, params.srcBlkStride, params.srcRepStride}});
  IssueLanes(call, lanes,
             ConversionOf(src.type, dst.type, mode, ThisNumerics().saturate));
}

}  // namespace ascend_twin
