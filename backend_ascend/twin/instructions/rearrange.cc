#include "backend_ascend/twin/instructions/rearrange.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backend_ascend/twin/instructions/numbers.h"

namespace ascend_twin {
namespace {

// All bytes of spans of the unified buffer, as of one repeat.
std::vector<RepeatBytes> AllOf(const std::vector<Span>& spans) {
  RepeatBytes all{spans[0].begin, {}};
  for (const Span& span : spans) {
    for (uint64_t row = 0; row < span.rows; ++row) {
      const uint64_t begin = span.begin + row * span.pitch;
      all.at = std::min(all.at, begin);
      all.bytes.push_back({begin, begin + span.bytes});
    }
  }
  return {all};
}

void CheckMoved(const Call& call, const char* what, Type type) {
  call.OneOf(what, type,
             {Type::kInt16, Type::kUint16, Type::kHalf, Type::kBf16,
              Type::kInt32, Type::kUint32, Type::kFloat});
}

void CheckUb(const Call& call, const char* what, const Operand& operand) {
  call.In(what, operand, {Memory::kUb});
  call.Aligned(what, operand, kBlock);
}

}  // namespace

void IssueDuplicate(const Call& call, const Operand& dst, uint64_t value,
                    const Mask& mask, int64_t repeat, uint32_t block_stride,
                    uint32_t repeat_stride) {
  CheckMoved(call, "dst", dst.type);
  const Lanes lanes = LanesOf(call, Family::kLanewise, mask, repeat,
                              {{"dst", dst, block_stride, repeat_stride}});
  const uint64_t size = dst.size();
  IssueLanes(call, lanes, [value, size](int64_t count, char* const to[]) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to[0] + i * size, &value, size);
    }
  });
}

namespace {

PieceFunction Mover(uint64_t size) {
  return [size](int64_t count, char* const pointers[]) {
    std::memmove(pointers[0], pointers[1], count * size);
  };
}

Operand Later(Operand operand, uint64_t blocks) {
  operand.begin += blocks * kBlock;
  return operand;
}

}  // namespace

void IssueCopy(const Call& call, const Operand& dst, const Operand& src,
               const Mask& mask, int64_t repeat,
               const AscendC::CopyRepeatParams& params) {
  CheckMoved(call, "dst", dst.type);
  call.Between("dstRepeatSize", params.dstRepeatSize, 0, 4095);
  call.Between("srcRepeatSize", params.srcRepeatSize, 0, 4095);
  const Mask lanes_of_each = CountedIn(mask);
  if (lanes_of_each.form != Mask::Form::kCount) {
    const Lanes lanes =
        LanesOf(call, Family::kCopy, mask, repeat,
                {{"dst", dst, params.dstStride, params.dstRepeatSize},
                 {"src", src, params.srcStride, params.srcRepeatSize}});
    return IssueLanes(call, lanes, Mover(dst.size()));
  }
  // Copy alone takes SetMaskCount's number for each of its repeats, which then
  // go past eight blocks.
  call.Between("repeatTime", repeat, 0, 255);
  Lanes all;
  for (int64_t i = 0; i < repeat; ++i) {
    const Lanes lanes = LanesOf(call, Family::kCopy, lanes_of_each, 0,
                                {{"dst", Later(dst, i * params.dstRepeatSize),
                                  params.dstStride, 8u * params.dstStride},
                                 {"src", Later(src, i * params.srcRepeatSize),
                                  params.srcStride, 8u * params.srcStride}});
    all = i == 0 ? lanes : Joined(call, Family::kCopy, std::move(all), lanes);
  }
  IssueLanes(call, all, Mover(dst.size()));
}

void IssueBroadcast(const Call& call, const Operand& dst, const Operand& src,
                    int64_t repeat, const AscendC::BrcbRepeatParams& params) {
  call.On(CoreType::kAiv);
  CheckMoved(call, "dst", dst.type);
  CheckUb(call, "dst", dst);
  CheckUb(call, "src", src);
  call.Between("repeatTime", repeat, 0, 255);
  call.Between("dstBlkStride", params.dstBlkStride, 1, 65535);
  if (repeat == 0) return;
  constexpr uint64_t kBlocks = 8;
  const uint64_t size = dst.size();
  const uint64_t block_pitch = params.dstBlkStride * kBlock;
  const uint64_t repeat_pitch = params.dstRepStride * kBlock;
  Instruction instruction = call.Start(Pipe::kV);
  AddSpan(&instruction.reads, src.memory, src.begin, repeat * kBlocks * size);
  if (block_pitch == kBlock) {
    AddSpan(&instruction.writes, dst.memory, dst.begin, kBlocks * kBlock,
            repeat, repeat_pitch);
  } else {
    for (uint64_t block = 0; block < kBlocks; ++block) {
      AddSpan(&instruction.writes, dst.memory, dst.begin + block * block_pitch,
              kBlock, repeat, repeat_pitch);
    }
  }
  CheckOverlaps(call, Family::kBroadcast, "src", AllOf(instruction.writes),
                AllOf(instruction.reads));
  instruction.work.vector_steps = repeat;
  Copies(
      [=](const char* from, char* to) {
        for (int64_t i = 0; i < repeat; ++i) {
          for (uint64_t block = 0; block < kBlocks; ++block) {
            for (uint64_t at = 0; at < kBlock; at += size) {
              std::memcpy(to + i * repeat_pitch + block * block_pitch + at,
                          from + (i * kBlocks + block) * size, size);
            }
          }
        }
      },
      &instruction);
  instruction.spreads_reads = true;
  Issue(std::move(instruction));
}

// Which bytes it reads is known only when it runs: all of the source is said
// to be read, and what it truly reads must lie in it.
void IssueGather(const Call& call, const Operand& dst, const Operand& src,
                 uint64_t src_bytes, const Operand& offsets, uint32_t base,
                 int64_t count) {
  call.On(CoreType::kAiv);
  CheckMoved(call, "dst", dst.type);
  CheckUb(call, "dst", dst);
  CheckUb(call, "src", src);
  CheckUb(call, "srcOffset", offsets);
  const uint64_t size = dst.size();
  call.Multiple("srcBaseOffset", base, size);
  if (count == 0) return;
  Instruction instruction = call.Start(Pipe::kV);
  AddSpan(&instruction.reads, src.memory, src.begin, src_bytes);
  AddSpan(&instruction.writes, dst.memory, dst.begin, count * size);
  Loosen(&instruction.reads);
  CheckOverlaps(call, Family::kGather, "src", AllOf(instruction.writes),
                AllOf(instruction.reads));
  AddSpan(&instruction.reads, offsets.memory, offsets.begin,
          count * sizeof(uint32_t));
  CheckOverlaps(call, Family::kGatherOffset, "srcOffset",
                RunOf(dst.begin, kRepeat, count * size),
                RunOf(offsets.begin, kRepeat / size * sizeof(uint32_t),
                      count * sizeof(uint32_t)));
  instruction.work.vector_steps = CeilDiv(count * size, kRepeat);
  instruction.run = [=] {
    char* const to = Bytes(dst.memory, dst.begin);
    const char* const from = Bytes(src.memory, src.begin);
    const char* const at = Bytes(offsets.memory, offsets.begin);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t byte =
          uint64_t{base} + Read<uint32_t>(at + i * sizeof(uint32_t));
      if (byte % size != 0 || byte + size > src_bytes) {
        call.Refuse("srcOffset " + std::to_string(i) +
                    ": expected a multiple of " + std::to_string(size) +
                    " in the source's " + std::to_string(src_bytes) +
                    " B, got " + std::to_string(byte));
      }
      std::memcpy(to + i * size, from + byte, size);
    }
  };
  Issue(std::move(instruction));
}

namespace {

bool Holds(AscendC::CMPMODE mode, float a, float b) {
  switch (mode) {
    case AscendC::CMPMODE::LT:
      return a < b;
    case AscendC::CMPMODE::GT:
      return a > b;
    case AscendC::CMPMODE::EQ:
      return a == b;
    case AscendC::CMPMODE::LE:
      return a <= b;
    case AscendC::CMPMODE::GE:
      return a >= b;
    default:
      return a != b;
  }
}

}  // namespace

namespace {

void LooseFromFirst(Instruction* instruction) {
  Loosen(&instruction->reads);
  std::sort(instruction->reads.begin(), instruction->reads.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  instruction->spreads_reads = true;
}

// Eight results are a byte, which is unwritten where none of them is of what
// somebody wrote.
void SpreadCompared(const Operand& src0, const Operand* src1, int64_t count,
                    Instruction* instruction) {
  LooseFromFirst(instruction);
  const uint64_t read = instruction->reads[0].begin;
  const uint64_t size = src0.size();
  std::vector<uint64_t> begins = {src0.begin - read};
  if (src1 != nullptr) begins.push_back(src1->begin - read);
  instruction->spread = [=](const char* from, char* to) {
    for (int64_t i = 0; i < count / 8; ++i) {
      bool all = true;
      for (int64_t lane = 8 * i; lane < 8 * i + 8; ++lane) {
        bool one = false;
        for (const uint64_t begin : begins) {
          char mark = 0;
          SpreadTo(&mark, 1, from + begin + lane * size, size);
          one = one || mark != 0;
        }
        all = all && one;
      }
      to[i] = static_cast<char>(all);
    }
  };
}

// A choice is unwritten where what is chosen is, or its bit of `mask`, of which
// element i has bit i % `bits`.
void SpreadChosen(const Operand& mask, int64_t bits, const Operand& src0,
                  const Operand* src1, uint64_t size, int64_t count,
                  std::function<bool(int64_t)> first,
                  Instruction* instruction) {
  LooseFromFirst(instruction);
  const uint64_t read = instruction->reads[0].begin;
  const uint64_t choice = mask.begin - read;
  const uint64_t a = src0.begin - read;
  const bool tensor = src1 != nullptr;
  const uint64_t b = tensor ? src1->begin - read : 0;
  instruction->spread = [=](const char* from, char* to) {
    for (int64_t i = 0; i < count; ++i) {
      const bool of_a = first(i);
      if (from[choice + i % bits / 8] != 0) {
        std::memset(to + i * size, 1, size);
      } else if (!of_a && !tensor) {
        std::memset(to + i * size, 0, size);
      } else {
        SpreadTo(to + i * size, size, from + (of_a ? a : b) + i * size, size);
      }
    }
  };
}

}  // namespace

void IssueCompare(const Call& call, const Operand& dst, const Operand& src0,
                  const Operand* src1, uint64_t scalar, AscendC::CMPMODE mode,
                  int64_t count) {
  call.On(CoreType::kAiv);
  call.OneOf("dst", dst.type, {Type::kInt8, Type::kUint8});
  call.OneOf("src0", src0.type, {Type::kHalf, Type::kFloat, Type::kInt32});
  if (src0.type == Type::kInt32 && mode != AscendC::CMPMODE::EQ) {
    call.Refuse("cmpMode of int32_t: expected EQ");
  }
  CheckUb(call, "dst", dst);
  CheckUb(call, "src0", src0);
  if (src1 != nullptr) CheckUb(call, "src1", *src1);
  const uint64_t size = src0.size();
  call.Multiple("bytes of count", count * size, kRepeat);
  if (count == 0) return;
  Instruction instruction = call.Start(Pipe::kV);
  AddSpan(&instruction.reads, src0.memory, src0.begin, count * size);
  const bool tensor = src1 != nullptr;
  const Operand other = tensor ? *src1 : src0;
  if (tensor) {
    AddSpan(&instruction.reads, other.memory, other.begin, count * size);
  }
  AddSpan(&instruction.writes, dst.memory, dst.begin, count / 8);
  const auto written = RunOf(dst.begin, kRepeat / size / 8, count / 8);
  CheckOverlaps(call, Family::kCompare, "src0", written,
                RunOf(src0.begin, kRepeat, count * size));
  if (tensor) {
    CheckOverlaps(call, Family::kCompare, "src1", written,
                  RunOf(other.begin, kRepeat, count * size));
  }
  instruction.work.vector_steps = count * size / kRepeat;
  SpreadCompared(src0, tensor ? &other : nullptr, count, &instruction);
  instruction.run = [=] {
    char* const to = Bytes(dst.memory, dst.begin);
    const char* const a = Bytes(src0.memory, src0.begin);
    const char* const b = tensor ? Bytes(other.memory, other.begin)
                                 : reinterpret_cast<const char*>(&scalar);
    for (int64_t i = 0; i < count; i += 8) {
      unsigned bits = 0;
      for (int64_t j = 0; j < 8; ++j) {
        const uint64_t at = (i + j) * size;
        const char* const with = tensor ? b + at : b;
        const bool holds = src0.type == Type::kInt32
                               ? std::memcmp(a + at, with, size) == 0
                               : Holds(mode, FloatAt(a + at, src0.type),
                                       FloatAt(with, src0.type));
        bits |= static_cast<unsigned>(holds) << j;
      }
      to[i / 8] = static_cast<char>(bits);
    }
  };
  Issue(std::move(instruction));
}

void IssueSelect(const Call& call, const Operand& dst, const Operand& mask,
                 const Operand& src0, const Operand* src1, uint64_t scalar,
                 AscendC::SELMODE mode, int64_t count) {
  call.OneOf("dst", dst.type, {Type::kHalf, Type::kFloat});
  call.OneOf("selMask", mask.type,
             {Type::kUint8, Type::kUint16, Type::kUint32, Type::kUint64});
  const bool tensor = mode != AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE;
  if (tensor != (src1 != nullptr)) {
    call.Refuse(tensor ? "src1: expected a tensor in modes 0 and 2"
                       : "src1: expected a scalar in mode 1");
  }
  std::vector<Strided> operands = {{"dst", dst}, {"src0", src0}};
  if (tensor) operands.push_back({"src1", *src1});
  const Lanes lanes =
      LanesOf(call, Family::kSelect, Mask::Count(count), 0, operands);
  CheckUb(call, "selMask", mask);
  if (lanes.empty()) return;
  const uint64_t size = dst.size();
  const int64_t a_repeat = kRepeat / size;
  // Mode 0 uses the bits of one repeat for all.
  const int64_t bits =
      mode == AscendC::SELMODE::VSEL_CMPMASK_SPR ? a_repeat : count;
  const uint64_t mask_bytes = CeilDiv(std::min(bits, count), 8);
  Instruction instruction = call.Start(Pipe::kV);
  AddSpan(&instruction.reads, mask.memory, mask.begin, mask_bytes);
  AddSpans(&instruction.writes, lanes, 0);
  std::vector<RepeatBytes> bytes_of_mask =
      RunOf(mask.begin, CeilDiv(a_repeat, 8), mask_bytes);
  // Of mode 0 each repeat reads the same.
  bytes_of_mask.resize(lanes.repeats, bytes_of_mask[0]);
  CheckOverlaps(call, Family::kSelectMask, "selMask", ByRepeat(lanes, 0),
                bytes_of_mask);
  for (size_t i = 1; i < lanes.operands.size(); ++i) {
    AddSpans(&instruction.reads, lanes, i);
  }
  instruction.work.vector_steps = lanes.repeats;
  const Operand other = tensor ? *src1 : src0;
  const auto first = [=](int64_t i) {
    const char* const choose = Bytes(mask.memory, mask.begin);
    const int64_t bit = i % bits;
    return (choose[bit / 8] >> (bit % 8) & 1) != 0;
  };
  SpreadChosen(mask, bits, src0, tensor ? &other : nullptr, size, count, first,
               &instruction);
  instruction.run = [=] {
    char* const to = Bytes(dst.memory, dst.begin);
    const char* const a = Bytes(src0.memory, src0.begin);
    const char* const b = Bytes(other.memory, other.begin);
    for (int64_t i = 0; i < count; ++i) {
      const char* const from = first(i) ? a + i * size
                               : tensor
                                   ? b + i * size
                                   : reinterpret_cast<const char*>(&scalar);
      std::memmove(to + i * size, from, size);
    }
  };
  Issue(std::move(instruction));
}

void IssueTranspose(const Call& call, const Operand& dst, const Operand& src) {
  call.On(CoreType::kAiv);
  call.Equal("bytes of an element", dst.size(), 2);
  CheckUb(call, "dst", dst);
  CheckUb(call, "src", src);
  Instruction instruction = call.Start(Pipe::kV);
  AddSpan(&instruction.reads, src.memory, src.begin, kFractal);
  AddSpan(&instruction.writes, dst.memory, dst.begin, kFractal);
  CheckOverlaps(call, Family::kTranspose, "src", AllOf(instruction.writes),
                AllOf(instruction.reads));
  instruction.work.vector_steps = kFractal / kRepeat;
  Copies(
      [=](const char* source, char* to) {
        char from[kFractal];
        std::memcpy(from, source, kFractal);
        for (uint64_t row = 0; row < kSide; ++row) {
          for (uint64_t column = 0; column < kSide; ++column) {
            std::memcpy(to + (column * kSide + row) * 2,
                        from + (row * kSide + column) * 2, 2);
          }
        }
      },
      &instruction);
  instruction.spreads_reads = true;
  Issue(std::move(instruction));
}

}  // namespace ascend_twin
