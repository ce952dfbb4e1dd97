// Every call on an engine of its own, which runs an instruction when it is
// issued, and says so if it changes a byte outside its writes, leaves one
// inside, or depends on one outside its reads.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backend_ascend/twin/instructions/fake_core_testing.h"
#include "backend_ascend/twin/instructions/fractal_calls_testing.h"
#include "backend_ascend/twin/instructions/product_calls_testing.h"
#include "backend_ascend/twin/instructions/refused_calls_testing.h"

namespace ascend_twin {

void Issue(Instruction instruction) {
  ++core->issued;
  core->work.bytes += instruction.work.bytes;
  core->work.cube_steps += instruction.work.cube_steps;
  core->work.vector_steps += instruction.work.vector_steps;
  core->checks ? Check(instruction) : instruction.run();
}
void Refuse(const char* name, Site, const std::string& text) {
  throw Refusal{std::string(name) + ": " + text};
}
char* Bytes(Memory memory, uint64_t begin) {
  return memory == Memory::kGm ? reinterpret_cast<char*>(begin)
                               : core->base(memory) + begin;
}
const char* NameOf(Memory memory) {
  static constexpr const char* kNames[] = {"GM",  "UB",  "L1",       "L0A",
                                           "L0B", "L0C", "BiasTable"};
  return kNames[static_cast<int>(memory)];
}
CoreType ThisCoreType() { return core->type; }
const Numerics& ThisNumerics() { return core->numerics; }
void SetSaturate(bool saturate) { core->numerics.saturate = saturate; }
void SetAtomicType(Type type) { core->atomic = type; }
Type ThisAtomicType() { return core->atomic; }
Registers& ThisRegisters() { return core->registers; }
void ScalarLoad(Memory memory, uint64_t begin, uint64_t bytes, void* to, Site) {
  std::memcpy(to, Bytes(memory, begin), bytes);
}
void ScalarStore(Memory memory, uint64_t begin, uint64_t bytes,
                 const void* from, Site) {
  std::memcpy(Bytes(memory, begin), from, bytes);
}
void UnitMmad(bool, Site, const std::function<void()>& issue) { issue(); }
void UnitResult(Site, const std::function<void()>& issue) { issue(); }

}  // namespace ascend_twin

namespace {

using namespace twin_instructions;  // NOLINT: a program of its own

// Fills three operands with numbers in (0.5, 3).
void FillFloats(int count) {
  std::uniform_real_distribution<float> uniform(0.5f, 3);
  for (const uint32_t begin : {kDst, kSrc0, kSrc1}) {
    for (int i = 0; i < count; ++i) Set(begin, i, uniform(core->random));
  }
}

// Elements of two bytes, and integers.
void Narrows() {
  for (int i = 0; i < 128; ++i) {
    Set(kSrc1, i, Narrow<half>(static_cast<float>(i % 37) / 3));
  }
  WholeReduceSum(Ub<half>(kDst), Ub<half>(kSrc1), 128, 1, 1, 1, 8);
  std::vector<float> sums;
  for (int i = 0; i < 128; ++i) sums.push_back(Widen(Get<half>(kSrc1, i)));
  const auto half_of = [](float sum) { return Widen(Narrow<half>(sum)); };
  Expect("sum of halves", Widen(Get<half>(kDst, 0)), PairTree(sums, half_of));
  for (int i = 0; i < 64; ++i) {
    Set(kSrc0, i, int32_t{2147483584} + i);
    Set(kSrc1, i, int32_t{3} * i);
  }
  Add(Ub<int32_t>(kDst), Ub<int32_t>(kSrc0), Ub<int32_t>(kSrc1), 64);
  Expect("int32 wraps", Get<int32_t>(kDst, 60),
         2147483584.0 + 240 - 4294967296.0);
  Cast(Ub<float>(kDst), Ub<int32_t>(kSrc0), RoundMode::CAST_CEIL, 64);
  Expect("int to float", Get<float>(kDst, 0), 2147483648.0);
  Cast(Ub<half>(kDst + 4096), Ub<float>(kDst), RoundMode::CAST_TRUNC, 64);
  Expect("half trunc", Widen(Get<half>(kDst + 4096, 0)), 65504);
  // Ties go to even, among subnormals too, and past the largest to infinity.
  const std::pair<float, double> nearest[] = {
      {1 + 0x1p-11f, 1},   {1 + 0x3p-11f, 1 + 0x1p-9}, {0x1p-25f, 0},
      {0x3p-25f, 0x1p-23}, {-0x5p-25f, -0x1p-23},      {65519, 65504},
      {65520, INFINITY},   {-65520, -INFINITY}};
  for (const auto& [value, want] : nearest) {
    Set(kSrc0, 0, value);
    Cast(Ub<half>(kDst), Ub<float>(kSrc0), RoundMode::CAST_RINT, 1);
    Expect("nearest half", Widen(Get<half>(kDst, 0)), want);
  }
}

// What each call reads and writes, of masked and strided lanes: `calls_test`
// looks at the values.
void Footprints() {
  const auto d = Ub<float>(kDst), x = Ub<float>(kSrc0), y = Ub<float>(kSrc1);
  const uint64_t mask[2] = {0xF0F0F0F0FFFF0103ull, 0};
  const BinaryRepeatParams binary(2, 1, 0, 18, 9, 1);
  const UnaryRepeatParams unary(2, 1, 18, 9);
  FillFloats(512);
  Add(d, x, y, mask, 2, binary);
  Add(d, x, d, 64, 3, BinaryRepeatParams(1, 1, 1, 0, 8, 0));
  Max(d, x, y, 100);
  MulAddDst(d, x, y, mask, 2, binary);
  MulAddDst(d, Ub<half>(kSrc0), Ub<half>(kSrc1), 100);
  const uint64_t wide[2] = {0xFF00FF00FF00FF00ull, 0xF0F0F0F0F0F0F0F0ull};
  Mul(Ub<half>(kDst), Ub<half>(kSrc0), Ub<half>(kSrc1), wide, 2, binary);
  FusedMulAdd(d, x, y, mask, 2, binary);
  Exp(d, x, mask, 2, unary);
  Muls(x, x, 2.0f, 64);
  Axpy(d, x, 1.7f, mask, 2, unary);
  SetMaskCount();
  SetVectorMask<float, MaskMode::COUNTER>(70);
  Adds<float, false>(d, x, 1.0f, MASK_PLACEHOLDER, 1, UnaryRepeatParams());
  SetMaskNorm();
  ResetMask();
  Duplicate(d, 5.0f, 70);
  // Mixed sizes count lanes by the larger: a repeat of bf16 takes 4 blocks.
  Cast(d, Ub<bfloat16_t>(kSrc0), RoundMode::CAST_NONE, 100);
  Cast(d, Ub<bfloat16_t>(kSrc0), RoundMode::CAST_NONE, 64, 2,
       UnaryRepeatParams(1, 1, 8, 4));
  Cast(Ub<bfloat16_t>(kSrc1), x, RoundMode::CAST_RINT, 128);
  Cast(Ub<int32_t>(kSrc1), x, RoundMode::CAST_FLOOR, 128);
  FillFloats(512);
  Brcb(d, x, 2, BrcbRepeatParams(2, 17));
  Copy(d, x, 20, 2, CopyRepeatParams(1, 1, 8, 4));
  for (int i = 0; i < 40; ++i) {
    Set(kSrc1, i, static_cast<uint32_t>(4 * (39 - i)));
  }
  const LocalTensor<float> from(TPosition::VECCALC, kSrc0, 64);
  Gather(d, from, Ub<uint32_t>(kSrc1), 8u, 40u);
  FillFloats(256);
  const auto bits = Ub<uint8_t>(kDst);
  Compare(bits, x, y, CMPMODE::LT, 128);
  Select(Ub<float>(4096), bits, x, y, SELMODE::VSEL_TENSOR_TENSOR_MODE, 100);
  Select(Ub<float>(8192), bits, x, 9.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 100);
}

// Numbers that are rounded, in the order and the mode of the call; those of one
// operand `calls_test` has.
void Vectors() {
  FillFloats(64);
  const float a = Get<float>(kSrc0, 9), b = Get<float>(kSrc1, 9);
  Set(kDst, 9, 1.7f);
  MulAddDst(Ub<float>(kDst), Ub<float>(kSrc0), Ub<float>(kSrc1), 64);
  Expect("MulAddDst", Get<float>(kDst, 9), std::fma(a, b, 1.7f));
  Set(kDst, 9, 1.7f);
  FusedMulAdd(Ub<float>(kDst), Ub<float>(kSrc0), Ub<float>(kSrc1), 64);
  Expect("FusedMulAdd", Get<float>(kDst, 9), std::fma(a, 1.7f, b));
  Set(kDst, 9, b);
  Axpy(Ub<float>(kDst), Ub<float>(kSrc0), 1.7f, 64);
  Expect("Axpy", Get<float>(kDst, 9), std::fma(1.7f, a, b));
  Div(Ub<float>(kDst), Ub<float>(kSrc0), Ub<float>(kSrc1), 64);
  Expect("Div", Get<float>(kDst, 9), a / b);

  // Sums.
  FillFloats(256);
  for (const int lanes : {64, 20}) {
    BlockReduceSum(Ub<float>(kDst), Ub<float>(kSrc0), 2, lanes, 1, 1, 8);
    WholeReduceSum(Ub<float>(kSrc1), Ub<float>(kSrc0), lanes, 2, 3, 1, 8);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<float> blocks;
      for (int block = 0; block < 8; ++block) {
        std::vector<float> values;
        for (int i = 0; i < 8; ++i) {
          const int lane = block * 8 + i;
          values.push_back(lane < lanes ? Get<float>(kSrc0, repeat * 64 + lane)
                                        : 0.0f);
        }
        blocks.push_back(PairTree(values));
        if (block * 8 < lanes) {
          Expect("BlockReduceSum", Get<float>(kDst, repeat * 8 + block),
                 blocks.back());
        }
      }
      Expect("WholeReduceSum", Get<float>(kSrc1, repeat * 3), PairTree(blocks));
    }
  }
  ReduceSum(Ub<float>(kDst), Ub<float>(kSrc0), Ub<float>(kSrc1), 130);
  float total = 0;
  for (int i = 0; i < 130; i += 64) {
    std::vector<float> values;
    for (int j = i; j < i + 64; ++j) {
      values.push_back(j < 130 ? Get<float>(kSrc0, j) : 0.0f);
    }
    total += PairTree(values);
  }
  Expect("ReduceSum", Get<float>(kDst, 0), total);

  // Casts.
  const auto cast = [](float value, RoundMode mode) {
    Set(kSrc0, 0, value);
    Cast(Ub<bfloat16_t>(kDst), Ub<float>(kSrc0), mode, 1);
    return static_cast<double>(Widen(Get<bfloat16_t>(kDst, 0)));
  };
  const double ulp = 0x1p-7;
  for (const double sign : {1.0, -1.0}) {
    const float third = static_cast<float>(sign * (1 + ulp / 4));
    const float tie = static_cast<float>(sign * (1 + ulp / 2));
    const float odd = static_cast<float>(sign * (1 + ulp * 1.5));
    Expect("rint", cast(third, RoundMode::CAST_RINT), sign);
    Expect("rint tie", cast(tie, RoundMode::CAST_RINT), sign);
    Expect("rint odd", cast(odd, RoundMode::CAST_RINT), sign * (1 + 2 * ulp));
    Expect("round tie", cast(tie, RoundMode::CAST_ROUND), sign * (1 + ulp));
    Expect("trunc", cast(odd, RoundMode::CAST_TRUNC), sign * (1 + ulp));
    Expect("floor", cast(third, RoundMode::CAST_FLOOR),
           sign > 0 ? 1.0 : -1 - ulp);
    Expect("ceil", cast(third, RoundMode::CAST_CEIL),
           sign > 0 ? 1 + ulp : -1.0);
  }
  Expect("infinity", cast(INFINITY, RoundMode::CAST_RINT), INFINITY);
  Expect("nan", cast(NAN, RoundMode::CAST_RINT), NAN);
  Expect("overflow", cast(3.4e38f, RoundMode::CAST_RINT), INFINITY);
  core->numerics.saturate = true;
  Expect("saturated", cast(-INFINITY, RoundMode::CAST_RINT), -0x1.FEp127);
  Expect("saturated nan", cast(NAN, RoundMode::CAST_RINT), 0);
  core->numerics.saturate = false;
  for (int bits = 0; bits < 0x10000; ++bits) {
    Set(kSrc0, bits % 16384, static_cast<uint16_t>(bits));
    if (bits % 16384 != 16383) continue;
    core->checks = bits < 16384;
    Cast(Ub<float>(kDst), Ub<half>(kSrc0), RoundMode::CAST_NONE, 16384);
    // In place: shorter elements may take the place of longer ones.
    Cast(Ub<half>(kDst), Ub<float>(kDst), RoundMode::CAST_RINT, 16384);
    for (int i = 0; i < 16384; ++i) {
      const uint16_t was = Get<uint16_t>(kSrc0, i);
      if ((was & 0x7FFF) > 0x7C00) continue;
      Expect("half and back", Get<uint16_t>(kDst, i), was);
    }
  }
  core->checks = true;

  // Exp's modes, subnormals.
  FillFloats(64);
  Set(kSrc0, 0, -INFINITY);
  Set(kSrc0, 1, -100.0f);
  core->numerics.exp = ascend_twin::ExpMode::kUp;
  Exp(Ub<float>(kDst), Ub<float>(kSrc0), 64);
  Expect("exp of -inf", Get<float>(kDst, 0), 0);
  const float exact =
      static_cast<float>(std::exp(double{Get<float>(kSrc0, 5)}));
  Expect("exp up", Get<float>(kDst, 5), std::nextafter(exact, INFINITY));
  core->numerics.exp = ascend_twin::ExpMode::kNearest;
  core->numerics.flush_subnormals = true;
  Exp(Ub<float>(kDst), Ub<float>(kSrc0), 2);
  Expect("flushed", Get<float>(kDst, 1), 0);
  core->numerics.flush_subnormals = false;
  Exp(Ub<float>(kDst), Ub<float>(kSrc0), 2);
  Expect("kept", Get<float>(kDst, 1), static_cast<float>(std::exp(-100.0)));
}

// Footprints alone, too.
void Moves() {
  Matrix<float> gm(0, 64, 64);
  Matrix<float> out(65536, 64, 64);
  Fill(&gm, 64);
  Fill(&out, 64);
  DataCopy(Ub<float>(kDst), gm.tensor, 19);  // rounds down to 16
  DataCopy(Ub<float>(kDst), gm.tensor, DataCopyParams(3, 2, 1, 4));
  DataCopyPad(Ub<float>(kDst), gm.tensor[1], DataCopyExtParams(3, 20, 8, 1, 0),
              DataCopyPadExtParams<float>(true, 2, 3, 7.5f));
  DataCopyPad(Ub<float>(kDst), gm.tensor, DataCopyExtParams(2, 12, 0, 0, 0),
              DataCopyPadExtParams<float>());
  DataCopyPad(out.tensor[3], Ub<float>(kDst),
              DataCopyExtParams(2, 12, 0, 4, 0));
  SetAtomicAdd<float>();
  DataCopyPad(out.tensor[4], Ub<float>(kDst), DataCopyExtParams(1, 8, 0, 0, 0));
  DisableDmaAtomic();
  DataCopy(Ub<float>(kSrc0), Ub<float>(kDst), 16);
}

class Instructions : public testing::Test {
 protected:
  Instructions() { core = &core_; }
  ~Instructions() override {
    for (const std::string& fault : core_.faults) ADD_FAILURE() << fault;
  }
  void BeOfVectors() { core_.type = CoreType::kAiv; }

 private:
  Core core_;
};

TEST_F(Instructions, ProductsOfBfloat16) { Gemms<bfloat16_t>("bf16"); }
TEST_F(Instructions, ProductsOfFloat) { Gemms<float>("float"); }
TEST_F(Instructions, ProductsOfHalf) {
  Gemm<half>({17, 33, 20}, false, true, Way::kFractals, 20,
             MmadOrder::kAscending, "half");
}
TEST_F(Instructions, LayoutsOfFractals) {
  core->numerics.mmad_order = MmadOrder::kAscending;
  Fractals();
}
TEST_F(Instructions, FootprintsOfMaskedLanes) {
  BeOfVectors();
  Footprints();
}
TEST_F(Instructions, RoundingsOfVectors) {
  BeOfVectors();
  Vectors();
}
TEST_F(Instructions, NarrowElements) {
  BeOfVectors();
  Narrows();
}
TEST_F(Instructions, FootprintsOfMoves) {
  BeOfVectors();
  Moves();
}
TEST_F(Instructions, RefusalsNameTheOperandAndTheRule) { Refusals(); }

}  // namespace
