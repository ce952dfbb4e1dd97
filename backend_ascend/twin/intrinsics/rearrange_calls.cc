// The vector unit's intrinsics that take elements from where other operands
// say, and that turn blocks.

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
      LanesOf(a.call, Mask::Lanes(false, uint64_t{0}), a.At(4),
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
  a.call.Apart("dst and srcOffset", instruction.writes, instruction.reads);
  Span source{Memory::kUb, base / kBlock * kBlock, kBlock};
  source.loose = true;
  instruction.reads.push_back(source);
  instruction.work.vector_steps = lanes.repeats;
  const Call call = a.call;
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
  for (int i = 0; i < 16; ++i) {
    a.call.Multiple("dst", to[i], kBlock);
    a.call.Multiple("src", from[i], kBlock);
    AddSpan(&instruction.reads, Memory::kUb,
            from[i] + from_half + skipped * from_pitch, bytes, repeats,
            from_pitch);
    AddSpan(&instruction.writes, Memory::kUb,
            to[i] + to_half + skipped * to_pitch, bytes, repeats, to_pitch);
  }
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

std::vector<Intrinsic> RearrangeIntrinsics() {
  return {
      {"vgather", 5, 5, &Gathered},
      {"set_va_reg_sb", 2, 2, &SetAddresses},
      {"scatter_vnchwconv_b8", 7, 7, &Turned<1>},
      {"scatter_vnchwconv_b16", 5, 5, &Turned<2>},
      {"scatter_vnchwconv_b32", 5, 5, &Turned<4>},
  };
}

}  // namespace ascend_twin
