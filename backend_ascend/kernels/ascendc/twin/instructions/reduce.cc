#include "backend_ascend/kernels/ascendc/twin/instructions/reduce.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backend_ascend/kernels/ascendc/twin/instructions/numbers.h"

namespace ascend_twin {
namespace {

using AscendC::ReduceType;

constexpr int64_t kBlocks = 8;  // of a repeat

// One lane, or what became of several; lanes that are masked do not take part.
struct Value {
  bool active = false;
  float x = 0.0f;
};

void Store(float x, Type type, char* at) {
  if (type == Type::kHalf) {
    Write(at, HalfOfFloat(x));
  } else {
    Write(at, Canonical(x));
  }
}

// Rounds to the element's type at each step.
Value Combine(const Value& a, const Value& b, ReduceType op, Type type,
              bool saturate) {
  if (!a.active) return b;
  if (!b.active) return a;
  float x;
  if (op == ReduceType::SUM) {
    x = a.x + b.x;
  } else if (a.x != a.x || b.x != b.x) {
    x = FloatOfBits(kNan);  // [inferred]
  } else {
    x = op == ReduceType::MAX ? std::max(a.x, b.x) : std::min(a.x, b.x);
  }
  if (type == Type::kHalf) {
    x = FloatOfHalf(HalfOfFloat(saturate ? Saturate(x, kLargestHalf) : x));
  }
  return {true, x};
}

// Adjacent pairs, then pairs of those: `count` is a power of two.
Value Tree(Value* values, int64_t count, ReduceType op, Type type,
           bool saturate) {
  for (int64_t width = 1; width < count; width *= 2) {
    for (int64_t i = 0; i < count; i += 2 * width) {
      values[i] = Combine(values[i], values[i + width], op, type, saturate);
    }
  }
  return values[0];
}

// Repeats of a source, and which of its lanes take part.
struct Source {
  Operand operand;
  ReduceStrides strides;
  Lanes lanes;  // without the pieces

  int64_t repeats() const { return lanes.repeats; }
  bool IsActive(int64_t repeat, int64_t lane) const {
    if (repeat + 1 == lanes.repeats && lane >= lanes.last) return false;
    return (lanes.mask[lane / 64] >> (lane % 64) & 1) != 0;
  }

  void Take(int64_t repeat, Value* values) const {
    const uint64_t size = operand.size();
    const int64_t a_block = kBlock / size;
    const char* const from =
        Bytes(operand.memory, operand.begin) +
        repeat * strides.src_repeat * static_cast<int64_t>(kBlock);
    for (int64_t lane = 0; lane < lanes.lanes_a_repeat; ++lane) {
      values[lane].active = IsActive(repeat, lane);
      if (!values[lane].active) continue;
      values[lane].x =
          FloatAt(from + lane / a_block * strides.src_block * kBlock +
                      lane % a_block * size,
                  operand.type);
    }
  }
};

Source SourceOf(const Call& call, const Operand& src, const Mask& mask,
                int64_t repeat, const ReduceStrides& strides) {
  call.OneOf("src", src.type, {Type::kHalf, Type::kFloat});
  for (const auto& [what, value] :
       {std::pair<const char*, int64_t>{"dstRepStride", strides.dst_repeat},
        {"srcBlkStride", strides.src_block},
        {"srcRepStride", strides.src_repeat}}) {
    call.Between(what, value, 0, 65535);
  }
  return {src, strides,
          LanesWithoutOverlap(
              call, mask, repeat,
              {{"src", src, static_cast<uint32_t>(strides.src_block),
                static_cast<uint32_t>(strides.src_repeat)}})};
}

void CheckDestination(const Call& call, const Operand& dst, const Operand& src,
                      uint64_t alignment) {
  call.In("dst", dst, {Memory::kUb});
  call.Same("dst", dst.type, src.type);
  call.Aligned("dst", dst, alignment);
}

// What a repeat writes, `bytes` at `pitch`, is no source of it or of a later
// one.
void CheckNoOverlap(const Call& call, const Operand& dst, uint64_t bytes,
                    uint64_t pitch, const Source& source) {
  const uint64_t extent =
      (kBlocks - 1) * source.strides.src_block * kBlock + kBlock;
  for (int64_t i = 0; i < source.repeats(); ++i) {
    const uint64_t to = dst.begin + i * pitch;
    for (int64_t later = i; later < source.repeats(); ++later) {
      const uint64_t from =
          source.operand.begin + later * source.strides.src_repeat * kBlock;
      if (to < from + extent && from < to + bytes) {
        call.Refuse(
            "dst: expected no source of this or a later repeat, got "
            "src of repeat " +
            std::to_string(later));
      }
    }
  }
}

Instruction StartReduction(const Call& call, Source* source) {
  Instruction instruction = call.Start(Pipe::kV);
  AddSpans(&instruction.reads, source->lanes, 0);
  source->lanes.pieces.clear();
  instruction.work.vector_steps = source->repeats();
  return instruction;
}

}  // namespace

void ReduceBlocks(const Call& call, ReduceType op, const Operand& dst,
                  const Operand& src, const Mask& mask, int64_t repeat,
                  const ReduceStrides& strides) {
  const uint64_t size = src.size();
  CheckDestination(call, dst, src, kBlocks * size);
  Source source = SourceOf(call, src, mask, repeat, strides);
  if (source.lanes.empty()) return;
  const int64_t a_block = kBlock / size;
  const uint64_t pitch = strides.dst_repeat * kBlocks * size;
  CheckNoOverlap(call, dst, kBlocks * size, pitch, source);
  const bool saturate = ThisNumerics().saturate;
  const bool flush = ThisNumerics().flush_subnormals;

  Instruction instruction = StartReduction(call, &source);
  for (int64_t i = 0; i < source.repeats(); ++i) {
    for (int64_t block = 0; block < kBlocks; ++block) {
      bool any = false;
      for (int64_t lane = 0; lane < a_block; ++lane) {
        any = any || source.IsActive(i, block * a_block + lane);
      }
      if (!any) continue;
      AddSpan(&instruction.writes, dst.memory,
              dst.begin + i * pitch + block * size, size);
    }
  }
  instruction.run = [=] {
    const FloatScope scope(flush);
    char* const to = Bytes(dst.memory, dst.begin);
    for (int64_t i = 0; i < source.repeats(); ++i) {
      Value values[kRepeat];
      source.Take(i, values);
      for (int64_t block = 0; block < kBlocks; ++block) {
        const Value result =
            Tree(values + block * a_block, a_block, op, src.type, saturate);
        if (result.active) {
          Store(result.x, dst.type, to + i * pitch + block * size);
        }
      }
    }
  };
  Issue(std::move(instruction));
}

void ReduceRepeats(const Call& call, ReduceType op, const Operand& dst,
                   const Operand& src, const Mask& mask, int64_t repeat,
                   const ReduceStrides& strides) {
  // MAX and MIN give an index beside the value.
  call.Equal("reduceType", static_cast<int64_t>(op),
             static_cast<int64_t>(ReduceType::SUM));
  const uint64_t size = src.size();
  CheckDestination(call, dst, src, size);
  Source source = SourceOf(call, src, mask, repeat, strides);
  if (source.lanes.empty()) return;
  const uint64_t pitch = strides.dst_repeat * size;
  CheckNoOverlap(call, dst, size, pitch, source);
  const bool saturate = ThisNumerics().saturate;
  const bool flush = ThisNumerics().flush_subnormals;

  Instruction instruction = StartReduction(call, &source);
  AddSpan(&instruction.writes, dst.memory, dst.begin, size, source.repeats(),
          pitch);
  instruction.run = [=] {
    const FloatScope scope(flush);
    char* const to = Bytes(dst.memory, dst.begin);
    for (int64_t i = 0; i < source.repeats(); ++i) {
      Value values[kRepeat];
      source.Take(i, values);
      Store(Tree(values, source.lanes.lanes_a_repeat, op, src.type, saturate).x,
            dst.type, to + i * pitch);
    }
  };
  Issue(std::move(instruction));
}

// The device sums in a register, which the scalar unit then stores between
// flags of TPipe's: here it is one instruction of the vector unit.  [inferred]
void ReduceAll(const Call& call, const Operand& dst, const Operand& src,
               const Operand& scratch, int64_t count) {
  const uint64_t size = src.size();
  CheckDestination(call, dst, src, size);
  call.In("sharedTmpBuffer", scratch, {Memory::kUb});
  Source source = SourceOf(call, src, Mask::Count(count), 0, {1, 1, 8});
  if (source.lanes.empty()) return;
  const bool saturate = ThisNumerics().saturate;
  const bool flush = ThisNumerics().flush_subnormals;

  Instruction instruction = StartReduction(call, &source);
  AddSpan(&instruction.writes, dst.memory, dst.begin, size);
  instruction.run = [=] {
    const FloatScope scope(flush);
    Value sum;
    for (int64_t i = 0; i < source.repeats(); ++i) {
      Value values[kRepeat];
      source.Take(i, values);
      sum = Combine(sum,
                    Tree(values, source.lanes.lanes_a_repeat, ReduceType::SUM,
                         src.type, saturate),
                    ReduceType::SUM, src.type, saturate);
    }
    Store(sum.x, dst.type, Bytes(dst.memory, dst.begin));
  };
  Issue(std::move(instruction));
}

}  // namespace ascend_twin
