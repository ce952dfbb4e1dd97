// The vector unit's intrinsics that choose, sort and merge.

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backend_ascend/twin/instructions/lanes.h"
#include "backend_ascend/twin/instructions/numbers.h"
#include "backend_ascend/twin/intrinsics/core_state.h"
#include "backend_ascend/twin/intrinsics/intrinsic.h"

namespace ascend_twin {
namespace {

void InUb(const Call& call, const char* what, const Operand& operand) {
  call.On(CoreType::kAiv);
  call.In(what, operand, {Memory::kUb});
  call.Aligned(what, operand, kBlock);
}

// Patterns 1 to 7: which of two, which of four, or all.
bool Takes(int64_t pattern, int64_t i) {
  if (pattern <= 2) return i % 2 == pattern - 1;
  return pattern == 7 || i % 4 == pattern - 3;
}

// (dst, src0, src1, repeat, block stride, pattern, repeat stride, of src1).
void Chosen(const Arguments& a) {
  const Operand dst = a.Of(0);
  const Operand src = a.Of(1);
  InUb(a.call, "dst", dst);
  InUb(a.call, "src0", src);
  a.call.Between("repeatTimes", a.At(3), 0, 255);
  // Those of a pattern of the user's depend on data: the twin lacks them.
  a.call.Between("src1Pattern", a.At(5), 1, 7);
  const uint64_t size = src.size();
  const auto repeats = static_cast<uint64_t>(a.At(3));
  const auto blocks = static_cast<uint64_t>(a.At(4));
  const auto pitch = static_cast<uint64_t>(a.At(6)) * kBlock;
  const int64_t pattern = a.At(5);
  const Registers& registers = ThisRegisters();
  const uint64_t each =
      registers.mask_counts ? registers.mask[0] : kRepeat / size;
  Instruction instruction = a.call.Start(Pipe::kV);
  std::vector<uint64_t> from;  // bytes after src0's first
  for (uint64_t repeat = 0; repeat < repeats; ++repeat) {
    for (uint64_t i = 0; i < each; ++i) {
      const uint64_t at = repeat * pitch + i * size / kBlock * blocks * kBlock +
                          i * size % kBlock;
      if (i * size % kBlock == 0) {
        AddSpan(&instruction.reads, src.memory, src.begin + at,
                std::min(kBlock, (each - i) * size));
      }
      if (Takes(pattern, static_cast<int64_t>(i))) from.push_back(at);
    }
  }
  ThisState().kept = from.size();
  AddSpan(&instruction.writes, dst.memory, dst.begin, from.size() * size);
  instruction.work.vector_steps = repeats;
  if (from.empty()) return;
  Copies(
      [=](const char* source, char* to) {
        std::vector<char> taken(from.size() * size);
        for (size_t i = 0; i < from.size(); ++i) {
          std::memcpy(&taken[i * size], source + from[i], size);
        }
        std::memcpy(to, taken.data(), taken.size());
      },
      &instruction);
  instruction.spreads_reads = true;
  Issue(std::move(instruction));
}

// -- Sorting: pairs of eight bytes, a score and at byte 4 an index.

constexpr uint64_t kPair = 8;
constexpr uint64_t kSorted = 32;  // of a repeat
using Pair = std::array<char, kPair>;

// (dst, scores, indices, repeat): the greatest first, of equals the first.
void Sorted(const Arguments& a) {
  const Operand dst = a.Of(0);
  const Operand src = a.Of(1);
  const Operand index = a.Of(2);
  InUb(a.call, "dst", dst);
  InUb(a.call, "src0", src);
  InUb(a.call, "src1", index);
  a.call.OneOf("src0", src.type, {Type::kHalf, Type::kFloat});
  a.call.Between("repeatTime", a.At(3), 0, 255);
  const uint64_t count = static_cast<uint64_t>(a.At(3)) * kSorted;
  if (count == 0) return;
  const uint64_t size = src.size();
  Instruction instruction = a.call.Start(Pipe::kV);
  AddSpan(&instruction.reads, src.memory, src.begin, count * size);
  AddSpan(&instruction.reads, index.memory, index.begin, count * 4);
  AddSpan(&instruction.writes, dst.memory, dst.begin, count * kPair);
  a.call.Apart("dst and src", instruction.writes, instruction.reads);
  instruction.work.vector_steps = count / kSorted;
  instruction.run = [=] {
    const char* const scores = Bytes(src.memory, src.begin);
    const char* const indices = Bytes(index.memory, index.begin);
    std::vector<Pair> pairs(count);
    for (uint64_t i = 0; i < count; ++i) {
      std::memcpy(&pairs[i], scores + i * size, size);
      std::memcpy(&pairs[i][4], indices + i * 4, 4);
    }
    for (uint64_t i = 0; i < count; i += kSorted) {
      std::stable_sort(
          &pairs[i], &pairs[i] + kSorted, [&](const Pair& x, const Pair& y) {
            return FloatAt(x.data(), src.type) > FloatAt(y.data(), src.type);
          });
    }
    std::memcpy(Bytes(dst.memory, dst.begin), pairs.data(), count * kPair);
  };
  Issue(std::move(instruction));
}

// One list to merge.
struct List {
  const char* at;
  uint64_t left;
};

// The greatest head goes first, of equals that of the first list; `suspends`:
// until a list is empty.  Gives what is left of each.
std::vector<List> Merge(std::vector<List> lists, Type type, bool suspends,
                        char* to) {
  while (true) {
    List* best = nullptr;
    for (List& list : lists) {
      if (list.left == 0) continue;
      if (best == nullptr || FloatAt(list.at, type) > FloatAt(best->at, type)) {
        best = &list;
      }
    }
    if (best == nullptr) return lists;
    std::memcpy(to, best->at, kPair);
    to += kPair;
    best->at += kPair;
    if (--best->left == 0 && suspends) return lists;
  }
}

// (dst, four addresses, lengths, repeat + (valid << 8) + (suspends << 12)).
void Merged(const Arguments& a) {
  const Operand dst = a.Of(0);
  InUb(a.call, "dst", dst);
  a.call.OneOf("dst", dst.type, {Type::kHalf, Type::kFloat});
  const uint64_t config = a.Bits(3);
  const bool suspends = (config >> 12 & 1) != 0;
  const uint64_t repeats = config & 255;
  uint64_t begins[4];
  std::memcpy(begins, reinterpret_cast<const char*>(a.Bits(1)), sizeof(begins));
  Instruction instruction = a.call.Start(Pipe::kV);
  std::vector<std::pair<uint64_t, uint64_t>> lists;  // begin, pairs
  std::vector<int> numbers;
  uint64_t all = 0;
  for (int i = 0; i < 4; ++i) {
    if ((config >> (8 + i) & 1) == 0) continue;
    const uint64_t length = a.Bits(2) >> (16 * i) & 0xFFFF;
    a.call.Between("elementLengths", length, 1, 4095);
    a.call.Multiple("src", begins[i], kBlock);
    lists.push_back({begins[i], length});
    numbers.push_back(i);
    all += length;
  }
  if (repeats > 1 && (lists.size() < 4 || all != 4 * lists[0].second)) {
    a.call.Refuse("repeatTimes: expected 1 where lists differ");
  }
  if (repeats == 0 || all == 0) return;
  for (const auto& [begin, length] : lists) {
    AddSpan(&instruction.reads, Memory::kUb, begin, length * kPair, repeats,
            all * kPair);
  }
  AddSpan(&instruction.writes, dst.memory, dst.begin, repeats * all * kPair);
  a.call.Apart("dst and src", instruction.writes, instruction.reads);
  instruction.work.vector_steps = CeilDiv(repeats * all * kPair, kRepeat);
  CoreState* const state = &ThisState();
  instruction.run = [=] {
    state->merged = 0;
    for (uint64_t repeat = 0; repeat < repeats; ++repeat) {
      const uint64_t later = repeat * all * kPair;
      std::vector<List> now;
      for (const auto& [begin, length] : lists) {
        now.push_back({Bytes(Memory::kUb, begin + later), length});
      }
      const std::vector<List> left =
          Merge(std::move(now), dst.type, suspends,
                Bytes(dst.memory, dst.begin + later));
      for (size_t i = 0; repeats == 1 && i < left.size(); ++i) {
        state->merged |= (lists[i].second - left[i].left) << 16 * numbers[i];
      }
    }
  };
  Issue(std::move(instruction));
}

}  // namespace

std::vector<Intrinsic> ChooseIntrinsics() {
  return {
      {"vreducev2", 8, 8, &Chosen},
      {"get_rsvd_cnt", 0, kAny,
       [](const Arguments&) { return ThisState().kept; }},
      {"vbitsort", 4, 4, &Sorted},
      {"vmrgsort4", 4, 4, &Merged},
      {"get_vms4_sr", 0, kAny,
       [](const Arguments&) { return ThisState().merged; }},
  };
}

}  // namespace ascend_twin
