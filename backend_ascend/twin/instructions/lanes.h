// Which elements a vector instruction takes: repeats of eight blocks, strides
// between them, and a mask over the lanes of a repeat.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_LANES_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_LANES_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "backend_ascend/twin/instructions/operand.h"
#include "backend_ascend/twin/instructions/params.h"

namespace ascend_twin {

// The mask of one call.
struct Mask {
  enum class Form {
    kCount,       // the first `count` elements, however many repeats they take
    kContiguous,  // the first `count` lanes of each repeat
    kBits,        // a bit a lane
    kRegister     // what SetVectorMask left
  };
  Form form;
  int64_t count = 0;
  uint64_t bits[2] = {};

  static Mask Count(int64_t count) { return {Form::kCount, count, {}}; }
  static Mask Lanes(bool set, uint64_t count) {
    if (!set) return {Form::kRegister, 0, {}};
    return {Form::kContiguous, static_cast<int64_t>(count), {}};
  }
  static Mask Lanes(bool set, const uint64_t bits[]) {
    if (!set) return {Form::kRegister, 0, {}};
    return {Form::kBits, 0, {bits[0], bits[1]}};
  }
};

// An operand in the unified buffer, with its strides in blocks.
struct Strided {
  const char* what;
  Operand operand;
  uint32_t block_stride = 1;
  uint32_t repeat_stride = 8;
};

// A run of lanes whose elements lie one after the other in every operand.
// `offset[i]` is operand i's, in bytes from its begin.
struct Piece {
  int64_t repeat;  // in which it begins
  int64_t lanes;
  uint64_t offset[4];
};

// Work over lanes: the destination first, then the sources.
struct Lanes {
  std::vector<Strided> operands;
  int64_t lanes_a_repeat = 0;
  int64_t repeats = 0;
  uint64_t mask[2] = {};  // of a repeat, a bit a lane
  int64_t last = 0;       // lanes of the last repeat that may be set
  std::vector<Piece> pieces;

  bool empty() const { return pieces.empty(); }
};

// Where SetMaskCount is on, the count that `mask` is; else `mask`.
Mask CountedIn(const Mask& mask);

// Checks the operands: on an AIV, in UB, at 32 B, strides, and overlaps by the
// family's rule.  Takes `repeat` repeats, which the forms of mask that count
// elements do not need.
Lanes LanesOf(const Call& call, Family family, const Mask& mask, int64_t repeat,
              std::vector<Strided> operands);

// The same, but how operands overlap is the caller's to check.
Lanes LanesWithoutOverlap(const Call& call, const Mask& mask, int64_t repeat,
                          std::vector<Strided> operands);

// `one` and then `next`, of the same operands elsewhere, as one call's repeats.
Lanes Joined(const Call& call, Family family, Lanes one, const Lanes& next);

std::vector<RepeatBytes> ByRepeat(const Lanes& lanes, size_t operand);

// Spans of one operand over all lanes.
void AddSpans(std::vector<Span>* spans, const Lanes& lanes, size_t operand);

// Queues the work: `run` is called for each piece with a pointer for each
// operand.  The destination is also read if `reads_dst`.
using PieceFunction =
    std::function<void(int64_t lanes, char* const pointers[])>;
void IssueLanes(const Call& call, const Lanes& lanes, PieceFunction run,
                bool reads_dst = false);

void SetMask(bool count_mode);
void SetMaskBits(uint64_t high, uint64_t low);

}  // namespace ascend_twin

namespace AscendC {

inline void SetMaskCount() { ascend_twin::SetMask(true); }
inline void SetMaskNorm() { ascend_twin::SetMask(false); }
template <typename T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(uint64_t high, uint64_t low) {
  ascend_twin::SetMaskBits(high, low);
}
template <typename T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(int32_t count) {
  if (mode == MaskMode::COUNTER) {
    ascend_twin::SetMaskBits(0, static_cast<uint64_t>(count));
    return;
  }
  const uint64_t all = ~uint64_t{0};
  const uint64_t high = count <= 64    ? 0
                        : count >= 128 ? all
                                       : ~(all << (count - 64));
  const uint64_t low = count >= 64 ? all : ~(all << count);
  ascend_twin::SetMaskBits(high, low);
}
inline void ResetMask() {
  ascend_twin::SetMaskBits(~uint64_t{0}, ~uint64_t{0});
}

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_LANES_H_
