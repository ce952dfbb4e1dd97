#include "backend_ascend/twin/instructions/reduce.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backend_ascend/twin/instructions/numbers.h"

namespace ascend_twin {
namespace {

using AscendC::ReduceOrder;
using AscendC::ReduceType;

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

// Of a destination of which a repeat writes `bytes`, at `pitch`.
void CheckReduced(const Call& call, const Operand& dst, uint64_t bytes,
                  uint64_t pitch, const Source& source) {
  CheckOverlaps(call, Family::kReduction, "src",
                RowsOf(dst.begin, bytes, source.repeats(), pitch),
                ByRepeat(source.lanes, 0));
}

// What is reduced of padding is no error before it is used.
// `results`: bytes from the first write on, of a repeat and its group of lanes.
void SpreadReduced(const Source& source, int64_t width,
                   std::function<Span(int64_t, int64_t)> results,
                   Instruction* instruction) {
  Loosen(&instruction->reads);
  const uint64_t read = instruction->reads[0].begin;
  instruction->spreads_reads = true;
  instruction->spread = [=](const char* from, char* to) {
    const uint64_t size = source.operand.size();
    const auto a_block = static_cast<int64_t>(kBlock / size);
    const int64_t groups = source.lanes.lanes_a_repeat / width;
    for (int64_t i = 0; i < source.repeats(); ++i) {
      for (int64_t group = 0; group < groups; ++group) {
        bool any = false;
        bool marked = false;
        for (int64_t lane = group * width; lane < (group + 1) * width; ++lane) {
          if (!source.IsActive(i, lane)) continue;
          any = true;
          const uint64_t at = source.operand.begin - read +
                              (i * source.strides.src_repeat +
                               lane / a_block * source.strides.src_block) *
                                  kBlock +
                              lane % a_block * size;
          char mark = 0;
          SpreadTo(&mark, 1, from + at, size);
          marked = marked || mark != 0;
        }
        const Span result = results(i, group);
        if (any) std::memset(to + result.begin, marked, result.bytes);
      }
    }
  };
}

Instruction StartReduction(const Call& call, Source* source) {
  Instruction instruction = call.Start(Pipe::kV);
  AddSpans(&instruction.reads, source->lanes, 0);
  source->lanes.pieces.clear();
  instruction.work.vector_steps = source->repeats();
  return instruction;
}

}  // namespace

void ReduceNeighbours(const Call& call, ReduceType op, const Operand& dst,
                      const Operand& src, const Mask& mask, int64_t repeat,
                      const ReduceStrides& strides, int64_t width) {
  const uint64_t size = src.size();
  const int64_t groups = static_cast<int64_t>(kRepeat / size) / width;
  CheckDestination(call, dst, src, std::min(groups * size, kBlock));
  Source source = SourceOf(call, src, mask, repeat, strides);
  if (source.lanes.empty()) return;
  const uint64_t pitch = strides.dst_repeat * groups * size;
  CheckReduced(call, dst, groups * size, pitch, source);
  const bool saturate = ThisNumerics().saturate;
  const bool flush = ThisNumerics().flush_subnormals;

  Instruction instruction = StartReduction(call, &source);
  for (int64_t i = 0; i < source.repeats(); ++i) {
    for (int64_t group = 0; group < groups; ++group) {
      bool any = false;
      for (int64_t lane = 0; lane < width; ++lane) {
        any = any || source.IsActive(i, group * width + lane);
      }
      if (!any) continue;
      AddSpan(&instruction.writes, dst.memory,
              dst.begin + i * pitch + group * size, size);
    }
  }
  SpreadReduced(
      source, width,
      [=, first = instruction.writes[0].begin](int64_t i, int64_t group) {
        return Span{dst.memory, dst.begin + i * pitch + group * size - first,
                    size};
      },
      &instruction);
  instruction.run = [=] {
    const FloatScope scope(flush);
    char* const to = Bytes(dst.memory, dst.begin);
    for (int64_t i = 0; i < source.repeats(); ++i) {
      Value values[kRepeat];
      source.Take(i, values);
      for (int64_t group = 0; group < groups; ++group) {
        const Value result =
            Tree(values + group * width, width, op, src.type, saturate);
        if (result.active) {
          Store(result.x, dst.type, to + i * pitch + group * size);
        }
      }
    }
  };
  Issue(std::move(instruction));
}

void ReduceBlocks(const Call& call, ReduceType op, const Operand& dst,
                  const Operand& src, const Mask& mask, int64_t repeat,
                  const ReduceStrides& strides) {
  ReduceNeighbours(call, op, dst, src, mask, repeat, strides,
                   static_cast<int64_t>(kBlock / src.size()));
}

namespace {

// What a repeat gives: bytes of it all, of the index alone, and where the two
// begin; -1 where there is none.
struct Reduced {
  uint64_t bytes;
  uint64_t index_bytes;
  int64_t value;
  int64_t index;
};

Reduced ResultOf(ReduceType op, ReduceOrder order, uint64_t size) {
  if (op == ReduceType::SUM || order == ReduceOrder::ORDER_ONLY_VALUE) {
    return {size, 0, 0, -1};
  }
  if (order == ReduceOrder::ORDER_ONLY_INDEX) return {4, 4, -1, 0};
  const int64_t second = static_cast<int64_t>(size);
  return order == ReduceOrder::ORDER_VALUE_INDEX
             ? Reduced{2 * size, size, 0, second}
             : Reduced{2 * size, size, second, 0};
}

// The first lane of the largest or smallest; NaN is either.  [inferred]
uint32_t FirstOf(const Value* values, int64_t count, ReduceType op) {
  int64_t first = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (!values[i].active) continue;
    const float x = values[i].x;
    const float best = first < 0 ? 0.0f : values[first].x;
    const bool better = x != x || (op == ReduceType::MAX ? x > best : x < best);
    if (first < 0 || (best == best && better)) first = i;
  }
  return static_cast<uint32_t>(first);
}

}  // namespace

void ReduceRepeats(const Call& call, ReduceType op, const Operand& dst,
                   const Operand& src, const Mask& mask, int64_t repeat,
                   const ReduceStrides& strides, ReduceOrder order) {
  const Reduced result = ResultOf(op, order, src.size());
  CheckDestination(call, dst, src, result.bytes);
  Source source = SourceOf(call, src, mask, repeat, strides);
  if (source.lanes.empty()) return;
  const uint64_t pitch = strides.dst_repeat * result.bytes;
  CheckReduced(call, dst, result.bytes, pitch, source);
  const bool saturate = ThisNumerics().saturate;
  const bool flush = ThisNumerics().flush_subnormals;

  Instruction instruction = StartReduction(call, &source);
  AddSpan(&instruction.writes, dst.memory, dst.begin, result.bytes,
          source.repeats(), pitch);
  SpreadReduced(
      source, source.lanes.lanes_a_repeat,
      [=](int64_t i, int64_t) {
        return Span{dst.memory, i * pitch, result.bytes};
      },
      &instruction);
  instruction.run = [=] {
    const FloatScope scope(flush);
    char* to = Bytes(dst.memory, dst.begin);
    const int64_t lanes = source.lanes.lanes_a_repeat;
    for (int64_t i = 0; i < source.repeats(); ++i, to += pitch) {
      Value values[kRepeat];
      source.Take(i, values);
      if (result.index >= 0) {
        const uint32_t index = FirstOf(values, lanes, op);
        std::memcpy(to + result.index, &index, result.index_bytes);
      }
      if (result.value >= 0) {
        Store(Tree(values, lanes, op, src.type, saturate).x, dst.type,
              to + result.value);
      }
    }
  };
  Issue(std::move(instruction));
}

void ReduceAll(const Call& call, const Operand& dst, const Operand& src,
               const Mask& mask, int64_t repeat, const ReduceStrides& strides,
               uint64_t* sum_bits) {
  const uint64_t size = src.size();
  CheckDestination(call, dst, src, size);
  Source source = SourceOf(call, src, mask, repeat, strides);
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
    char* const to = Bytes(dst.memory, dst.begin);
    Store(sum.x, dst.type, to);
    if (sum_bits != nullptr) std::memcpy(sum_bits, to, size);
  };
  Issue(std::move(instruction));
}

// The device sums in a register, which the scalar unit then stores between
// flags of TPipe's: here it is one instruction of the vector unit.  [inferred]
void ReduceAll(const Call& call, const Operand& dst, const Operand& src,
               const Operand& scratch, int64_t count) {
  call.In("sharedTmpBuffer", scratch, {Memory::kUb});
  call.Aligned("sharedTmpBuffer", scratch, kBlock);
  ReduceAll(call, dst, src, Mask::Count(count), 0, {1, 1, 8}, nullptr);
}

}  // namespace ascend_twin
