// The vector unit's intrinsics.  All take the mask from its register.

#include <cstring>
#include <deque>
#include <string>

#include "backend_ascend/kernels/ascendc/twin/instructions/rearrange.h"
#include "backend_ascend/kernels/ascendc/twin/instructions/reduce.h"
#include "backend_ascend/kernels/ascendc/twin/instructions/vector.h"
#include "backend_ascend/kernels/ascendc/twin/intrinsics/core_state.h"
#include "backend_ascend/kernels/ascendc/twin/intrinsics/intrinsic.h"

namespace ascend_twin {
namespace {

using AscendC::ReduceOrder;
using AscendC::ReduceType;
using AscendC::RoundMode;

Mask Register() { return Mask::Lanes(false, uint64_t{0}); }

// (dst, src0, src1, repeat, three block strides, three repeat strides).
template <Binary op>
int64_t BinaryCall(const Arguments& a) {
  a.Expect(10, 12);
  const AscendC::BinaryRepeatParams params(
      static_cast<uint8_t>(a.At(4)), static_cast<uint8_t>(a.At(5)),
      static_cast<uint8_t>(a.At(6)), static_cast<uint8_t>(a.At(7)),
      static_cast<uint8_t>(a.At(8)), static_cast<uint8_t>(a.At(9)));
  IssueBinary(a.call, op, a.Of(0), a.Of(1), a.Of(2), Register(), a.At(3),
              params);
  return 0;
}

// Two block strides and two repeat strides from the `first` argument on.
AscendC::UnaryRepeatParams Strides(const Arguments& a, int first) {
  return {static_cast<uint16_t>(a.At(first)),
          static_cast<uint16_t>(a.At(first + 1)),
          static_cast<uint8_t>(a.At(first + 2)),
          static_cast<uint8_t>(a.At(first + 3))};
}

// (dst, src, repeat, strides).
template <Unary op>
int64_t UnaryCall(const Arguments& a) {
  a.Expect(7, 9);
  IssueUnary(a.call, op, a.Of(0), a.Of(1), 0, Register(), a.At(2),
             Strides(a, 3));
  return 0;
}

// (dst, src, scalar, repeat, strides).
template <Unary op>
int64_t ScalarCall(const Arguments& a) {
  a.Expect(8, 10);
  IssueUnary(a.call, op, a.Of(0), a.Of(1), a.Bits(2), Register(), a.At(3),
             Strides(a, 4));
  return 0;
}

// -- Conversions: vconv_SRC2DST and a letter of how it rounds.

struct Named {
  const char* name;
  Type type;
};
constexpr Named kConverted[] = {
    {"f16", Type::kHalf},  {"f32", Type::kFloat}, {"bf16", Type::kBf16},
    {"s8", Type::kInt8},   {"u8", Type::kUint8},  {"s16", Type::kInt16},
    {"s32", Type::kInt32}, {"s64", Type::kInt64},
};
struct Rounded {
  const char* letter;
  RoundMode mode;
};
constexpr Rounded kRounded[] = {
    {"", RoundMode::CAST_NONE},   {"r", RoundMode::CAST_RINT},
    {"f", RoundMode::CAST_FLOOR}, {"c", RoundMode::CAST_CEIL},
    {"a", RoundMode::CAST_ROUND}, {"z", RoundMode::CAST_TRUNC},
    {"o", RoundMode::CAST_ODD},
};

// (dst, src, repeat, strides).
int64_t Convert(const Arguments& a) {
  a.Expect(7, 9);
  const std::string name = a.call.name();
  const std::string letter = name.back() >= '0' && name.back() <= '9'
                                 ? ""
                                 : name.substr(name.size() - 1);
  for (const Rounded& rounded : kRounded) {
    if (letter != rounded.letter) continue;
    IssueCast(a.call, a.Of(0), a.Of(1), rounded.mode, Register(), a.At(2),
              Strides(a, 3));
    return 0;
  }
  a.call.Refuse("expected a way to round that the twin has");
}

// -- Reductions: (dst, src, repeat, dstRep, srcBlk, srcRep[, order]).

template <ReduceType op>
int64_t ReduceBlocksCall(const Arguments& a) {
  a.Expect(6);
  ReduceBlocks(a.call, op, a.Of(0), a.Of(1), Register(), a.At(2),
               {a.At(3), a.At(4), a.At(5)});
  return 0;
}

template <ReduceType op>
int64_t ReduceRepeatsCall(const Arguments& a) {
  a.Expect(6, 7);
  // Of device.h's Order_t, in its order.
  constexpr ReduceOrder kOrders[] = {
      ReduceOrder::ORDER_ONLY_VALUE, ReduceOrder::ORDER_ONLY_INDEX,
      ReduceOrder::ORDER_VALUE_INDEX, ReduceOrder::ORDER_INDEX_VALUE};
  const int64_t order = a.count() == 7 ? a.At(6) : 0;
  a.call.Between("order", order, 0, 3);
  ReduceRepeats(a.call, op, a.Of(0), a.Of(1), Register(), a.At(2),
                {a.At(3), a.At(4), a.At(5)}, kOrders[order]);
  return 0;
}

// -- Moves within the unified buffer.

// (dst, value, repeat, dstBlk, 1, dstRep, 0).
int64_t Duplicated(const Arguments& a) {
  a.Expect(7);
  ThisState().duplicated_at = a.Bits(0);
  ThisState().duplicated = a.Bits(1);
  IssueDuplicate(a.call, a.Of(0), a.Bits(1), Register(), a.At(2),
                 static_cast<uint32_t>(a.At(3)),
                 static_cast<uint32_t>(a.At(5)));
  return 0;
}

// (dst, src, repeat, strides).
int64_t Copied(const Arguments& a) {
  a.Expect(7);
  IssueCopy(a.call, a.Of(0), a.Of(1), Register(), a.At(2),
            {static_cast<uint16_t>(a.At(3)), static_cast<uint16_t>(a.At(4)),
             static_cast<uint16_t>(a.At(5)), static_cast<uint16_t>(a.At(6))});
  return 0;
}

// (dst, src, dstBlk, dstRep, repeat).
int64_t Broadcast(const Arguments& a) {
  a.Expect(5);
  IssueBroadcast(
      a.call, a.Of(0), a.Of(1), a.At(4),
      {static_cast<uint16_t>(a.At(2)), static_cast<uint16_t>(a.At(3))});
  return 0;
}

int64_t Pairs(const Arguments& a) {
  a.Expect(6);
  ReducePairs(a.call, a.Of(0), a.Of(1), Register(), a.At(2),
              {a.At(3), a.At(4), a.At(5)});
  return 0;
}

int64_t Transpose(const Arguments& a) {
  a.Expect(2);
  IssueTranspose(a.call, a.Of(0), a.Of(1));
  return 0;
}

// -- Comparisons and choices: of whole repeats that lie one after the other, or
// of as many elements as the mask counts.

int64_t CountOf(const Arguments& a, int repeat, int first, int last) {
  for (int i = first; i <= last; ++i) {
    a.call.Equal("stride", a.At(i), i - first <= (last - first) / 2 ? 1 : 8);
  }
  const Registers& registers = ThisRegisters();
  if (registers.mask_counts) return static_cast<int64_t>(registers.mask[0]);
  return a.At(repeat) * static_cast<int64_t>(kRepeat / a.Of(1).size());
}

Operand Bits(Operand operand) {
  operand.type = Type::kUint8;
  return operand;
}

// (dst, src0, src1, repeat, strides); the result's repeat is 1.
template <AscendC::CMPMODE mode>
int64_t Compared(const Arguments& a) {
  a.Expect(10);
  const Operand other = a.Of(2);
  // A count is of whole repeats.
  const int64_t each = static_cast<int64_t>(kRepeat / a.Of(1).size());
  const int64_t count = (CountOf(a, 3, 4, 9) + each - 1) / each * each;
  IssueCompare(a.call, Bits(a.Of(0)), a.Of(1), &other, 0, mode, count);
  return 0;
}

// (dst, src, scalar, repeat, strides).
template <AscendC::CMPMODE mode>
int64_t ComparedWith(const Arguments& a) {
  a.Expect(8);
  const int64_t each = static_cast<int64_t>(kRepeat / a.Of(1).size());
  const int64_t count = (CountOf(a, 3, 4, 7) + each - 1) / each * each;
  IssueCompare(a.call, Bits(a.Of(0)), a.Of(1), nullptr, a.Bits(2), mode, count);
  return 0;
}

// Modes 1 and 2 take the scalar, or where the mask lies, from what set_cmpmask
// names: what vector_dup last put there.
uint64_t NamedBits(const Arguments& a) {
  const CoreState& state = ThisState();
  if (state.duplicated_at != state.compare_mask) {
    a.call.Refuse(
        "set_cmpmask: expected what the last vector_dup wrote, got other "
        "bytes");
  }
  return state.duplicated;
}

// (dst, src0, src1 or mask, repeat, strides[, mode]).
int64_t Selected(const Arguments& a) {
  a.Expect(10, 11);
  const int64_t mode = a.count() == 11 ? a.At(10) : 0;
  a.call.Between("mode", mode, 0, 2);
  const int64_t count = CountOf(a, 3, 4, 9);
  Operand mask;
  mask.memory = Memory::kUb;
  mask.type = Type::kUint8;
  const Operand other = a.Of(2);
  uint64_t scalar = 0;
  if (mode == 1) {
    mask.begin = other.begin;
    scalar = NamedBits(a);
  } else {
    mask.begin = mode == 0 ? ThisState().compare_mask : NamedBits(a);
  }
  IssueSelect(a.call, a.Of(0), mask, a.Of(1), mode == 1 ? nullptr : &other,
              scalar, static_cast<AscendC::SELMODE>(mode), count);
  return 0;
}

// What rows of one name each give.
struct Family {
  const char* name;
  int64_t (*run)(const Arguments&);
};
constexpr Family kFamilies[] = {
    {"vadd", &BinaryCall<Binary::kAdd>},
    {"vsub", &BinaryCall<Binary::kSub>},
    {"vmul", &BinaryCall<Binary::kMul>},
    {"vdiv", &BinaryCall<Binary::kDiv>},
    {"vmax", &BinaryCall<Binary::kMax>},
    {"vmin", &BinaryCall<Binary::kMin>},
    {"vmla", &BinaryCall<Binary::kMulAddDst>},
    {"vmadd", &BinaryCall<Binary::kFusedMulAdd>},
    {"vexp", &UnaryCall<Unary::kExp>},
    {"vln", &UnaryCall<Unary::kLn>},
    {"vsqrt", &UnaryCall<Unary::kSqrt>},
    {"vrec", &UnaryCall<Unary::kReciprocal>},
    {"vrsqrt", &UnaryCall<Unary::kRsqrt>},
    {"vabs", &UnaryCall<Unary::kAbs>},
    {"vadds", &ScalarCall<Unary::kAdds>},
    {"vmuls", &ScalarCall<Unary::kMuls>},
    {"vmaxs", &ScalarCall<Unary::kMaxs>},
    {"vmins", &ScalarCall<Unary::kMins>},
    {"vaxpy", &ScalarCall<Unary::kAxpy>},
    {"vcgadd", &ReduceBlocksCall<ReduceType::SUM>},
    {"vcgmax", &ReduceBlocksCall<ReduceType::MAX>},
    {"vcgmin", &ReduceBlocksCall<ReduceType::MIN>},
    {"vcadd", &ReduceRepeatsCall<ReduceType::SUM>},
    {"vcmax", &ReduceRepeatsCall<ReduceType::MAX>},
    {"vcmin", &ReduceRepeatsCall<ReduceType::MIN>},
    {"vaddrelu", &BinaryCall<Binary::kAddRelu>},
    {"vsubrelu", &BinaryCall<Binary::kSubRelu>},
    {"vand", &BinaryCall<Binary::kAnd>},
    {"vor", &BinaryCall<Binary::kOr>},
    {"vrelu", &UnaryCall<Unary::kRelu>},
    {"vnot", &UnaryCall<Unary::kNot>},
    {"vlrelu", &ScalarCall<Unary::kLeakyRelu>},
    {"vcpadd", &Pairs},
    {"vtranspose", &Transpose},
    {"vsel", &Selected},
    {"vcmpv_lt", &Compared<AscendC::CMPMODE::LT>},
    {"vcmpv_gt", &Compared<AscendC::CMPMODE::GT>},
    {"vcmpv_eq", &Compared<AscendC::CMPMODE::EQ>},
    {"vcmpv_le", &Compared<AscendC::CMPMODE::LE>},
    {"vcmpv_ge", &Compared<AscendC::CMPMODE::GE>},
    {"vcmpv_ne", &Compared<AscendC::CMPMODE::NE>},
    {"vcmpvs_lt", &ComparedWith<AscendC::CMPMODE::LT>},
    {"vcmpvs_gt", &ComparedWith<AscendC::CMPMODE::GT>},
    {"vcmpvs_eq", &ComparedWith<AscendC::CMPMODE::EQ>},
    {"vcmpvs_le", &ComparedWith<AscendC::CMPMODE::LE>},
    {"vcmpvs_ge", &ComparedWith<AscendC::CMPMODE::GE>},
    {"vcmpvs_ne", &ComparedWith<AscendC::CMPMODE::NE>},
    {"vector_dup", &Duplicated},
    {"vcopy", &Copied},
    {"vbrcb", &Broadcast},
};

}  // namespace

std::vector<Intrinsic> VectorIntrinsics() {
  std::vector<Intrinsic> all;
  for (const Family& one : kFamilies) all.push_back({one.name, one.run});
  static std::deque<std::string> names;  // of conversions; they stay in place
  for (const Named& src : kConverted) {
    for (const Named& dst : kConverted) {
      for (const Rounded& rounded : kRounded) {
        names.push_back(std::string("vconv_") + src.name + "2" + dst.name +
                        rounded.letter);
        all.push_back({names.back().c_str(), &Convert});
      }
    }
  }
  return all;
}

}  // namespace ascend_twin
