// The vector unit's intrinsics that choose, sort, merge, gather and turn.

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
  std::vector<RepeatBytes> read, written;
  for (uint64_t repeat = 0; repeat < repeats; ++repeat) {
    const uint64_t begin = dst.begin + from.size() * size;
    read.push_back({src.begin + repeat * pitch, {}});
    for (uint64_t i = 0; i < each; ++i) {
      const uint64_t at = repeat * pitch + i * size / kBlock * blocks * kBlock +
                          i * size % kBlock;
      if (i * size % kBlock == 0) {
        const uint64_t bytes = std::min(kBlock, (each - i) * size);
        AddSpan(&instruction.reads, src.memory, src.begin + at, bytes);
        read.back().bytes.push_back({src.begin + at, src.begin + at + bytes});
      }
      if (Takes(pattern, static_cast<int64_t>(i))) from.push_back(at);
    }
    written.push_back({begin, {{begin, dst.begin + from.size() * size}}});
  }
  CheckOverlaps(a.call, Family::kGatherMask, "src0", written, read);
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
  const auto written = RunOf(dst.begin, kSorted * kPair, count * kPair);
  CheckOverlaps(a.call, Family::kSort, "src0", written,
                RunOf(src.begin, kSorted * size, count * size));
  CheckOverlaps(a.call, Family::kSort, "src1", written,
                RunOf(index.begin, kSorted * 4, count * 4));
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
  for (const auto& [begin, length] : lists) {
    // No list of any repeat may be where another is merged.
    RepeatBytes read{begin, {}};
    for (uint64_t i = 0; i < repeats; ++i) {
      const uint64_t at = begin + i * all * kPair;
      read.bytes.push_back({at, at + length * kPair});
    }
    CheckOverlaps(a.call, Family::kMerge, "src",
                  RowsOf(dst.begin, repeats * all * kPair, 1, 0), {read});
  }
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

// -- Elements from where other operands say, and blocks that are turned.

constexpr uint64_t kUbBytes = 192 << 10;
constexpr uint64_t kOffset = sizeof(uint32_t);

// (dst, offsets, address of the source, dstRepStride, repeat).  Which bytes it
// reads is known only when it runs: its order is judged by the first block of
// the source, its bounds by all.
void Gathered(const Arguments& a) {
  const Operand dst = a.Of(0);
  const Operand offsets = a.Of(1);
  const uint64_t base = a.Bits(2);
  const Lanes lanes =
      LanesOf(a.call, Family::kGather, Mask::Lanes(false, uint64_t{0}), a.At(4),
              {{"dst", dst, 1, static_cast<uint32_t>(a.At(3))}});
  if (lanes.empty()) return;
  const uint64_t size = dst.size();
  const auto a_repeat = static_cast<uint64_t>(lanes.lanes_a_repeat);
  Instruction instruction = a.call.Start(Pipe::kV);
  AddSpans(&instruction.writes, lanes, 0);
  const Piece& last = lanes.pieces.back();
  const uint64_t count = lanes.pieces.size() == 1
                             ? static_cast<uint64_t>(last.lanes)
                             : (last.repeat + 1) * a_repeat;
  AddSpan(&instruction.reads, offsets.memory, offsets.begin, count * kOffset);
  CheckOverlaps(a.call, Family::kGatherOffset, "srcOffset", ByRepeat(lanes, 0),
                RunOf(offsets.begin, a_repeat * kOffset, count * kOffset));
  Span source{Memory::kUb, base / kBlock * kBlock, kBlock};
  source.loose = true;
  instruction.reads.push_back(source);
  instruction.work.vector_steps = lanes.repeats;
  const Call call = a.call;
  const std::vector<Span> written = instruction.writes;
  const auto pitch = static_cast<uint64_t>(a.At(3)) * kBlock;
  instruction.run = [=] {
    char* const to = Bytes(dst.memory, dst.begin);
    const char* const at = Bytes(offsets.memory, offsets.begin);
    for (const Piece& piece : lanes.pieces) {
      const uint64_t in_repeat = piece.offset[0] - piece.repeat * pitch;
      const uint64_t first = piece.repeat * a_repeat +
                             (lanes.pieces.size() == 1 ? 0 : in_repeat / size);
      for (int64_t i = 0; i < piece.lanes; ++i) {
        const uint64_t from = base + Read<uint32_t>(at + (first + i) * kOffset);
        if (from % size != 0 || from + size > kUbBytes) {
          call.Refuse("srcOffset " + std::to_string(first + i) +
                      ": expected a multiple of " + std::to_string(size) +
                      " in UB, got byte " + std::to_string(from));
        }
        for (const Span& span : written) {
          if (!Meets(span, from, from + size)) continue;
          CheckInPlace(call, Family::kGather, "src", 1);
        }
        std::memcpy(to + piece.offset[0] + i * size, Bytes(Memory::kUb, from),
                    size);
      }
    }
  };
  Issue(std::move(instruction));
}

// (register, eight addresses).
void SetAddresses(const Arguments& a) {
  a.call.Between("register", a.At(0), 0, 7);
  std::memcpy(&ThisState().addresses[a.At(0)],
              reinterpret_cast<const char*>(a.Bits(1)),
              sizeof(ThisState().addresses[0]));
}

using Addresses = std::array<uint64_t, 16>;

Addresses Listed(int64_t first) {
  Addresses all;
  std::memcpy(all.data(), &ThisState().addresses[first], sizeof(all));
  return all;
}

// (registers of the targets, of the sources, repeat, dstRep, srcRep[, high half
// of targets, of sources]): 16 blocks, or halves of them, are rows that become
// columns.
template <uint64_t size>
void Turned(const Arguments& a) {
  a.call.On(CoreType::kAiv);
  const Addresses to = Listed(a.At(0));
  const Addresses from = Listed(a.At(1));
  a.call.Between("repeatTimes", a.At(2), 0, 255);
  const auto repeats = static_cast<uint64_t>(a.At(2));
  // A single repeat begins a stride after the addresses.
  const uint64_t skipped = repeats == 1 ? 1 : 0;
  const uint64_t to_pitch = a.Bits(3) * kBlock;
  const uint64_t from_pitch = a.Bits(4) * kBlock;
  const uint64_t half = kBlock / 2;
  const uint64_t to_half = a.count() > 5 && a.At(5) != 0 ? half : 0;
  const uint64_t from_half = a.count() > 6 && a.At(6) != 0 ? half : 0;
  const uint64_t bytes = size == 1 ? half : kBlock;
  if (repeats == 0) return;
  Instruction instruction = a.call.Start(Pipe::kV);
  std::vector<RepeatBytes> read(repeats), written(repeats);
  for (int i = 0; i < 16; ++i) {
    a.call.Multiple("dst", to[i], kBlock);
    a.call.Multiple("src", from[i], kBlock);
    AddSpan(&instruction.reads, Memory::kUb,
            from[i] + from_half + skipped * from_pitch, bytes, repeats,
            from_pitch);
    AddSpan(&instruction.writes, Memory::kUb,
            to[i] + to_half + skipped * to_pitch, bytes, repeats, to_pitch);
    for (uint64_t repeat = 0; repeat < repeats; ++repeat) {
      const uint64_t x = from[i] + from_half + (repeat + skipped) * from_pitch;
      const uint64_t y = to[i] + to_half + (repeat + skipped) * to_pitch;
      read[repeat].bytes.push_back({x, x + bytes});
      written[repeat].bytes.push_back({y, y + bytes});
    }
  }
  CheckOverlaps(a.call, Family::kTransData, "src", written, read);
  instruction.work.vector_steps = 2 * repeats;
  instruction.run = [=] {
    constexpr uint64_t kRows = 16;
    const uint64_t columns = bytes / size;
    for (uint64_t repeat = skipped; repeat < repeats + skipped; ++repeat) {
      char rows[kRows * kBlock];
      for (uint64_t row = 0; row < kRows; ++row) {
        std::memcpy(
            rows + row * bytes,
            Bytes(Memory::kUb, from[row] + from_half + repeat * from_pitch),
            bytes);
      }
      for (uint64_t i = 0; i < kRows * columns; ++i) {
        // The i-th element of the turned matrix.
        const uint64_t byte = i * size;
        char* const at =
            Bytes(Memory::kUb, to[byte / bytes] + to_half + repeat * to_pitch);
        std::memcpy(at + byte % bytes,
                    rows + i % kRows * bytes + i / kRows * size, size);
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
      {"vgather", 5, 5, &Gathered},
      {"set_va_reg_sb", 2, 2, &SetAddresses},
      {"scatter_vnchwconv_b8", 7, 7, &Turned<1>},
      {"scatter_vnchwconv_b16", 5, 5, &Turned<2>},
      {"scatter_vnchwconv_b32", 5, 5, &Turned<4>},
  };
}

}  // namespace ascend_twin
