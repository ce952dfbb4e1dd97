// The vector unit's intrinsics.  All take the mask from its register.

#include <cstring>
#include <string>
#include <utility>

#include "backend_ascend/twin/instructions/lanes.h"
#include "backend_ascend/twin/instructions/numbers.h"
#include "backend_ascend/twin/instructions/rearrange.h"
#include "backend_ascend/twin/instructions/reduce.h"
#include "backend_ascend/twin/instructions/vector.h"
#include "backend_ascend/twin/intrinsics/core_state.h"
#include "backend_ascend/twin/intrinsics/intrinsic.h"

namespace ascend_twin {
namespace {

using AscendC::ReduceOrder;
using AscendC::ReduceType;
using AscendC::RoundMode;

Mask Register() { return Mask::Lanes(false, uint64_t{0}); }

// (dst, src0, src1, repeat, three block strides, three repeat strides).
template <Binary op>
void BinaryCall(const Arguments& a) {
  IssueBinary(a.call, op, a.Of(0), a.Of(1), a.Of(2), Register(), a.At(3),
              {a[4], a[5], a[6], a[7], a[8], a[9]});
}

// (dst, src, repeat, strides).
template <Unary op>
void UnaryCall(const Arguments& a) {
  IssueUnary(a.call, op, a.Of(0), a.Of(1), 0, Register(), a.At(2),
             {a[3], a[4], a[5], a[6]});
}

// (dst, src, scalar, repeat, strides).
template <Unary op>
void ScalarCall(const Arguments& a) {
  IssueUnary(a.call, op, a.Of(0), a.Of(1), a.Bits(2), Register(), a.At(3),
             {a[4], a[5], a[6], a[7]});
}

// -- Conversions: vconv_SRC2DST and a letter of how it rounds.

constexpr const char* kConverted[] = {"f16", "f32", "bf16", "s8",
                                      "u8",  "s16", "s32",  "s64"};
constexpr std::pair<const char*, RoundMode> kRounded[] = {
    {"", RoundMode::CAST_NONE},   {"r", RoundMode::CAST_RINT},
    {"f", RoundMode::CAST_FLOOR}, {"c", RoundMode::CAST_CEIL},
    {"a", RoundMode::CAST_ROUND}, {"z", RoundMode::CAST_TRUNC},
    {"o", RoundMode::CAST_ODD},
};

// (dst, src, repeat, strides), whose types say what is converted.
void AddConversions(std::vector<Intrinsic>* all) {
  for (const std::string src : kConverted) {
    for (const std::string dst : kConverted) {
      for (const auto& [letter, mode] : kRounded) {
        all->emplace_back("vconv_" + src + "2" + dst + letter, 7, 9,
                          [mode = mode](const Arguments& a) {
                            IssueCast(a.call, a.Of(0), a.Of(1), mode,
                                      Register(), a.At(2),
                                      {a[3], a[4], a[5], a[6]});
                          });
      }
    }
  }
}

// (dst, src, repeat, strides): int32_t times set_deqscale's half.  How the
// product is rounded is not published: once, to the nearest half.  [inferred]
void Dequantised(const Arguments& a) {
  a.call.OneOf("src", a.Of(1).type, {Type::kInt32});
  a.call.OneOf("dst", a.Of(0).type, {Type::kHalf});
  const auto bits = static_cast<uint16_t>(ThisState().dequant);
  const float scale = FloatOfHalf(bits);
  const Lanes lanes =
      LanesOf(a.call, Family::kNarrowing, Register(), a.At(2),
              {{"dst", a.Of(0), a[3], a[5]}, {"src", a.Of(1), a[4], a[6]}});
  IssueLanes(a.call, lanes, [=](int64_t count, char* const pointers[]) {
    for (int64_t i = 0; i < count; ++i) {
      const auto x = static_cast<float>(Read<int32_t>(pointers[1] + 4 * i));
      Write(pointers[0] + 2 * i, HalfOfFloat(x * scale));
    }
  });
}

// -- Reductions: (dst, src, repeat, dstRep, srcBlk, srcRep[, order]).

template <ReduceType op>
void ReduceBlocksCall(const Arguments& a) {
  ReduceBlocks(a.call, op, a.Of(0), a.Of(1), Register(), a.At(2),
               {a.At(3), a.At(4), a.At(5)});
}

template <ReduceType op>
void ReduceRepeatsCall(const Arguments& a) {
  // Of compiler_builtins.h's Order_t, in its order.
  constexpr ReduceOrder kOrders[] = {
      ReduceOrder::ORDER_ONLY_VALUE, ReduceOrder::ORDER_ONLY_INDEX,
      ReduceOrder::ORDER_VALUE_INDEX, ReduceOrder::ORDER_INDEX_VALUE};
  const int64_t order = a.count() == 7 ? a.At(6) : 0;
  a.call.Between("order", order, 0, 3);
  ReduceRepeats(a.call, op, a.Of(0), a.Of(1), Register(), a.At(2),
                {a.At(3), a.At(4), a.At(5)}, kOrders[order]);
}

// (..., 1): all repeats in a register, which get_acc_val reads.
void Added(const Arguments& a) {
  if (a.count() < 7 || a.At(6) == 0) {
    return ReduceRepeatsCall<ReduceType::SUM>(a);
  }
  ReduceAll(a.call, a.Of(0), a.Of(1), Register(), a.At(2),
            {a.At(3), a.At(4), a.At(5)}, &ThisState().sum);
}

// -- Moves within the unified buffer.

// (dst, value, repeat, dstBlk, 1, dstRep, 0).
void Duplicated(const Arguments& a) {
  ThisState().duplicated_at = a.Bits(0);
  ThisState().duplicated = a.Bits(1);
  IssueDuplicate(a.call, a.Of(0), a.Bits(1), Register(), a.At(2), a[3], a[5]);
}

// (dst, src, repeat, strides).
void Copied(const Arguments& a) {
  IssueCopy(a.call, a.Of(0), a.Of(1), Register(), a.At(2),
            {a[3], a[4], a[5], a[6]});
}

// (dst, src, dstBlk, dstRep, repeat).
void Broadcast(const Arguments& a) {
  IssueBroadcast(a.call, a.Of(0), a.Of(1), a.At(4), {a[2], a[3]});
}

void Pairs(const Arguments& a) {
  ReduceNeighbours(a.call, ReduceType::SUM, a.Of(0), a.Of(1), Register(),
                   a.At(2), {a.At(3), a.At(4), a.At(5)}, /*width=*/2);
}

void Transpose(const Arguments& a) { IssueTranspose(a.call, a.Of(0), a.Of(1)); }

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

// (dst, src0, src1 or a scalar, repeat, strides); the result's repeat is 1.
void Compared(const Arguments& a, AscendC::CMPMODE mode) {
  const bool tensor = a.count() == 10;
  const Operand other = tensor ? a.Of(2) : Operand();
  // A count is of whole repeats.
  const auto count = static_cast<uint64_t>(CountOf(a, 3, 4, a.count() - 1));
  IssueCompare(a.call, Bits(a.Of(0)), a.Of(1), tensor ? &other : nullptr,
               a.Bits(2), mode,
               static_cast<int64_t>(RoundUp(count, kRepeat / a.Of(1).size())));
}

void AddComparisons(std::vector<Intrinsic>* all) {
  constexpr const char* kNames[] = {"lt", "gt", "eq", "le", "ge", "ne"};
  for (int i = 0; i < 6; ++i) {  // in CMPMODE's order
    const auto run = [i](const Arguments& a) {
      Compared(a, static_cast<AscendC::CMPMODE>(i));
    };
    all->emplace_back(std::string("vcmpv_") + kNames[i], 10, 10, run);
    all->emplace_back(std::string("vcmpvs_") + kNames[i], 8, 8, run);
  }
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
void Selected(const Arguments& a) {
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
}

}  // namespace

std::vector<Intrinsic> VectorIntrinsics() {
  std::vector<Intrinsic> all = {
      {"vadd", 10, 12, &BinaryCall<Binary::kAdd>},
      {"vsub", 10, 12, &BinaryCall<Binary::kSub>},
      {"vmul", 10, 12, &BinaryCall<Binary::kMul>},
      {"vdiv", 10, 12, &BinaryCall<Binary::kDiv>},
      {"vmax", 10, 12, &BinaryCall<Binary::kMax>},
      {"vmin", 10, 12, &BinaryCall<Binary::kMin>},
      {"vmla", 10, 12, &BinaryCall<Binary::kMulAddDst>},
      {"vmadd", 10, 12, &BinaryCall<Binary::kFusedMulAdd>},
      {"vexp", 7, 9, &UnaryCall<Unary::kExp>},
      {"vln", 7, 9, &UnaryCall<Unary::kLn>},
      {"vsqrt", 7, 9, &UnaryCall<Unary::kSqrt>},
      {"vrec", 7, 9, &UnaryCall<Unary::kReciprocal>},
      {"vrsqrt", 7, 9, &UnaryCall<Unary::kRsqrt>},
      {"vabs", 7, 9, &UnaryCall<Unary::kAbs>},
      {"vadds", 8, 10, &ScalarCall<Unary::kAdds>},
      {"vmuls", 8, 10, &ScalarCall<Unary::kMuls>},
      {"vmaxs", 8, 10, &ScalarCall<Unary::kMaxs>},
      {"vmins", 8, 10, &ScalarCall<Unary::kMins>},
      {"vaxpy", 8, 10, &ScalarCall<Unary::kAxpy>},
      {"vcgadd", 6, 6, &ReduceBlocksCall<ReduceType::SUM>},
      {"vcgmax", 6, 6, &ReduceBlocksCall<ReduceType::MAX>},
      {"vcgmin", 6, 6, &ReduceBlocksCall<ReduceType::MIN>},
      {"vcadd", 6, 7, &Added},
      {"get_acc_val", 0, kAny,
       [](const Arguments&) { return ThisState().sum; }},
      {"vcmax", 6, 7, &ReduceRepeatsCall<ReduceType::MAX>},
      {"vcmin", 6, 7, &ReduceRepeatsCall<ReduceType::MIN>},
      {"vaddrelu", 10, 12, &BinaryCall<Binary::kAddRelu>},
      {"vsubrelu", 10, 12, &BinaryCall<Binary::kSubRelu>},
      {"vand", 10, 12, &BinaryCall<Binary::kAnd>},
      {"vor", 10, 12, &BinaryCall<Binary::kOr>},
      {"vrelu", 7, 9, &UnaryCall<Unary::kRelu>},
      {"vnot", 7, 9, &UnaryCall<Unary::kNot>},
      {"vlrelu", 8, 10, &ScalarCall<Unary::kLeakyRelu>},
      {"vcpadd", 6, 6, &Pairs},
      {"vtranspose", 2, 2, &Transpose},
      {"vconv_deq", 7, 7, &Dequantised},
      {"vsel", 10, 11, &Selected},
      {"vector_dup", 7, 7, &Duplicated},
      {"vcopy", 7, 7, &Copied},
      {"vbrcb", 5, 5, &Broadcast},
  };
  AddConversions(&all);
  AddComparisons(&all);
  return all;
}

}  // namespace ascend_twin
