#include "backend_ascend/twin/instructions/lanes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "backend_ascend/twin/instructions/numbers.h"

namespace ascend_twin {
namespace {

constexpr int64_t kMostRepeats = 255;

// Lanes that run of one repeat, and how many in the last of a count.
struct LaneRun {
  int64_t begin;
  int64_t count;
};

uint64_t OffsetOf(const Strided& strided, int64_t repeat, int64_t lane) {
  const uint64_t byte = static_cast<uint64_t>(lane) * strided.operand.size();
  return static_cast<uint64_t>(repeat) * strided.repeat_stride * kBlock +
         byte / kBlock * strided.block_stride * kBlock + byte % kBlock;
}

bool IsContiguous(const Strided& strided, int64_t lanes) {
  return strided.block_stride == 1 &&
         strided.repeat_stride * kBlock ==
             static_cast<uint64_t>(lanes) * strided.operand.size();
}

using Bits = std::array<uint64_t, 2>;

// Bits of the first `count` lanes; more lanes than there are mean all.
Bits FirstLanes(int64_t lanes, int64_t count) {
  Bits bits{};
  for (int64_t lane = 0; lane < std::min(lanes, count); ++lane) {
    bits[lane / 64] |= uint64_t{1} << (lane % 64);
  }
  return bits;
}

std::vector<LaneRun> RunsOf(const Bits& bits, int64_t lanes) {
  std::vector<LaneRun> runs;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    if ((bits[lane / 64] >> (lane % 64) & 1) == 0) continue;
    if (!runs.empty() && runs.back().begin + runs.back().count == lane) {
      ++runs.back().count;
    } else {
      runs.push_back({lane, 1});
    }
  }
  return runs;
}

// `count` lanes of one repeat from `run`, in pieces that no operand's stride
// between blocks breaks.
void AddPieces(Lanes* lanes, int64_t repeat, LaneRun run) {
  int64_t unit = lanes->lanes_a_repeat;
  for (const Strided& strided : lanes->operands) {
    if (strided.block_stride != 1) {
      unit = std::min<int64_t>(unit, kBlock / strided.operand.size());
    }
  }
  for (int64_t lane = run.begin; lane < run.begin + run.count;) {
    const int64_t end =
        std::min(run.begin + run.count, (lane / unit + 1) * unit);
    Piece piece{repeat, end - lane, {}};
    for (size_t i = 0; i < lanes->operands.size(); ++i) {
      piece.offset[i] = OffsetOf(lanes->operands[i], repeat, lane);
    }
    lanes->pieces.push_back(piece);
    lane = end;
  }
}

// `total` lanes, however many repeats they take.
void CountLanes(Lanes* lanes, int64_t total) {
  const int64_t a_repeat = lanes->lanes_a_repeat;
  lanes->repeats = CeilDiv(total, a_repeat);
  lanes->mask[0] = lanes->mask[1] = ~uint64_t{0};
  lanes->last = total - (lanes->repeats - 1) * a_repeat;
  const bool contiguous = std::all_of(
      lanes->operands.begin(), lanes->operands.end(),
      [&](const Strided& strided) { return IsContiguous(strided, a_repeat); });
  if (contiguous) {
    if (total > 0) lanes->pieces.push_back({0, total, {}});
    return;
  }
  for (int64_t repeat = 0; repeat < lanes->repeats; ++repeat) {
    AddPieces(lanes, repeat,
              {0, std::min(a_repeat, total - repeat * a_repeat)});
  }
}

void MaskLanes(const Call& call, const Bits& bits, int64_t repeat,
               Lanes* lanes) {
  const std::vector<LaneRun> runs = RunsOf(bits, lanes->lanes_a_repeat);
  if (lanes->lanes_a_repeat <= 64 && bits[1] != 0) {
    call.Refuse("mask[1]: expected 0 where a repeat has 64 lanes or fewer");
  }
  if (lanes->lanes_a_repeat < 64 && bits[0] >> lanes->lanes_a_repeat != 0) {
    call.Refuse("mask[0]: expected bits of " +
                std::to_string(lanes->lanes_a_repeat) + " lanes, got more");
  }
  call.Between("repeatTime", repeat, 0, kMostRepeats);
  if (runs.empty()) return;
  if (runs[0].count == lanes->lanes_a_repeat) {
    return CountLanes(lanes, repeat * lanes->lanes_a_repeat);
  }
  lanes->repeats = repeat;
  lanes->mask[0] = bits[0];
  lanes->mask[1] = bits[1];
  lanes->last = lanes->lanes_a_repeat;
  for (int64_t i = 0; i < repeat; ++i) {
    for (const LaneRun& run : runs) AddPieces(lanes, i, run);
  }
}

void CheckOperand(const Call& call, const Strided& strided) {
  call.In(strided.what, strided.operand, {Memory::kUb});
  call.Aligned(strided.what, strided.operand, kBlock);
}

std::vector<Interval> IntervalsOf(const Lanes& lanes, size_t index) {
  const Operand& operand = lanes.operands[index].operand;
  std::vector<Interval> intervals;
  for (const Piece& piece : lanes.pieces) {
    const uint64_t begin = operand.begin + piece.offset[index];
    intervals.push_back({begin, begin + piece.lanes * operand.size()});
  }
  return intervals;
}

Interval BoxOf(const Lanes& lanes, size_t index) {
  Interval box{~uint64_t{0}, 0};
  for (const Interval& interval : IntervalsOf(lanes, index)) {
    box.begin = std::min(box.begin, interval.begin);
    box.end = std::max(box.end, interval.end);
  }
  return box;
}

// One lane after the other, the same in both.
bool InPlace(const Lanes& lanes, size_t source) {
  const Strided& a = lanes.operands[0];
  const Strided& b = lanes.operands[source];
  return a.operand.begin == b.operand.begin &&
         a.operand.size() == b.operand.size() &&
         IsContiguous(a, lanes.lanes_a_repeat) &&
         IsContiguous(b, lanes.lanes_a_repeat);
}

// The type and the strides of which sums over repeats may be.
bool Sums(const Lanes& lanes, size_t source) {
  const Strided& dst = lanes.operands[0];
  const Type type = dst.operand.type;
  return source + 1 == lanes.operands.size() &&
         (type == Type::kHalf || type == Type::kFloat ||
          type == Type::kInt32) &&
         (lanes.operands[source].repeat_stride == 0 || dst.repeat_stride == 0);
}

void CheckOverlap(const Call& call, Family family, const Lanes& lanes,
                  size_t source) {
  const Interval to = BoxOf(lanes, 0);
  const Interval from = BoxOf(lanes, source);
  if (to.begin >= from.end || from.begin >= to.end) return;
  const char* const what = lanes.operands[source].what;
  if (InPlace(lanes, source)) {
    return CheckInPlace(call, family, what, lanes.repeats);
  }
  CheckOverlaps(call, family, what, ByRepeat(lanes, 0), ByRepeat(lanes, source),
                Sums(lanes, source));
}

}  // namespace

Mask CountedIn(const Mask& mask) {
  const Registers& registers = ThisRegisters();
  if (!registers.mask_counts || mask.form == Mask::Form::kCount) return mask;
  const uint64_t count = mask.form == Mask::Form::kBits ? mask.bits[0]
                         : mask.form == Mask::Form::kRegister
                             ? registers.mask[0]
                             : static_cast<uint64_t>(mask.count);
  return Mask::Count(static_cast<int64_t>(count));
}

namespace {

Bits BitsOf(const Mask& mask, int64_t lanes) {
  if (mask.form == Mask::Form::kBits) return {mask.bits[0], mask.bits[1]};
  constexpr uint64_t kAll = ~uint64_t{0};
  const Bits bits{ThisRegisters().mask[0], ThisRegisters().mask[1]};
  // A register that is set for all lanes serves elements of any size.
  const bool all = bits[0] == kAll && bits[1] == kAll;
  return all ? FirstLanes(lanes, lanes) : bits;
}

}  // namespace

Lanes LanesWithoutOverlap(const Call& call, const Mask& mask, int64_t repeat,
                          std::vector<Strided> operands) {
  call.On(CoreType::kAiv);
  Lanes lanes;
  uint64_t widest = 1;
  for (const Strided& strided : operands) {
    CheckOperand(call, strided);
    widest = std::max(widest, strided.operand.size());
  }
  lanes.operands = std::move(operands);
  lanes.lanes_a_repeat = kRepeat / widest;
  const Mask used = CountedIn(mask);
  switch (used.form) {
    case Mask::Form::kCount:
      call.Between("count", used.count, 0, 1 << 20);
      CountLanes(&lanes, used.count);
      break;
    case Mask::Form::kContiguous:
      if (used.count < 0) {
        call.Refuse("mask: expected 0 or more, got " +
                    std::to_string(used.count));
      }
      MaskLanes(call, FirstLanes(lanes.lanes_a_repeat, used.count), repeat,
                &lanes);
      break;
    default:
      MaskLanes(call, BitsOf(used, lanes.lanes_a_repeat), repeat, &lanes);
  }
  return lanes;
}

// Pieces of a count may span several repeats.
std::vector<RepeatBytes> ByRepeat(const Lanes& lanes, size_t operand) {
  const Strided& strided = lanes.operands[operand];
  const uint64_t size = strided.operand.size();
  std::vector<RepeatBytes> repeats;
  if (lanes.pieces.size() == 1) {
    int64_t left = lanes.pieces[0].lanes;
    uint64_t at = strided.operand.begin + lanes.pieces[0].offset[operand];
    for (int64_t i = 0; i < lanes.repeats; ++i) {
      const uint64_t bytes = std::min(left, lanes.lanes_a_repeat) * size;
      repeats.push_back({at, {{at, at + bytes}}});
      left -= lanes.lanes_a_repeat;
      at += bytes;
    }
    return repeats;
  }
  for (int64_t i = 0; i < lanes.repeats; ++i) {
    repeats.push_back(
        {strided.operand.begin + i * strided.repeat_stride * kBlock, {}});
  }
  for (const Piece& piece : lanes.pieces) {
    const uint64_t at = strided.operand.begin + piece.offset[operand];
    repeats[piece.repeat].bytes.push_back({at, at + piece.lanes * size});
  }
  return repeats;
}

Lanes LanesOf(const Call& call, Family family, const Mask& mask, int64_t repeat,
              std::vector<Strided> operands) {
  Lanes lanes = LanesWithoutOverlap(call, mask, repeat, std::move(operands));
  if (lanes.empty()) return lanes;
  if (lanes.operands[0].block_stride == 0) {
    call.Refuse("dstBlkStride: expected 1 or more, got 0");
  }
  for (size_t i = 1; i < lanes.operands.size(); ++i) {
    CheckOverlap(call, family, lanes, i);
  }
  return lanes;
}

Lanes Joined(const Call& call, Family family, Lanes one, const Lanes& next) {
  const auto whole = [](const Lanes& lanes, size_t operand) {
    return RepeatBytes{lanes.operands[operand].operand.begin,
                       IntervalsOf(lanes, operand)};
  };
  for (size_t i = 1; i < one.operands.size(); ++i) {
    CheckOverlaps(call, family, one.operands[i].what, {whole(one, 0), {}},
                  {{}, whole(next, i)});
  }
  for (Piece piece : next.pieces) {
    piece.repeat += one.repeats;
    for (size_t i = 0; i < one.operands.size(); ++i) {
      piece.offset[i] +=
          next.operands[i].operand.begin - one.operands[i].operand.begin;
    }
    one.pieces.push_back(piece);
  }
  one.repeats += next.repeats;
  return one;
}

// Bytes in order, joined where they touch, as rows where they repeat.
void AddSpans(std::vector<Span>* spans, const Lanes& lanes, size_t operand) {
  const Operand& base = lanes.operands[operand].operand;
  std::vector<Interval> intervals = IntervalsOf(lanes, operand);
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) {
              return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
            });
  std::vector<Interval> joined;
  for (const Interval& interval : intervals) {
    if (!joined.empty() && interval.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, interval.end);
    } else {
      joined.push_back(interval);
    }
  }
  for (size_t i = 0; i < joined.size();) {
    const uint64_t bytes = joined[i].end - joined[i].begin;
    const uint64_t pitch =
        i + 1 < joined.size() ? joined[i + 1].begin - joined[i].begin : 0;
    size_t end = i + 1;
    while (end < joined.size() &&
           joined[end].end - joined[end].begin == bytes &&
           joined[end].begin - joined[end - 1].begin == pitch) {
      ++end;
    }
    AddSpan(spans, base.memory, joined[i].begin, bytes, end - i, pitch);
    i = end;
  }
}

namespace {

// Has a lane of the destination be unwritten where one of a source is: what is
// computed of padding is no error before it is used.
void SpreadLanes(const std::shared_ptr<const Lanes>& lanes, bool reads_dst,
                 Instruction* instruction) {
  if (instruction->reads.empty()) return;
  Loosen(&instruction->reads);
  std::sort(instruction->reads.begin(), instruction->reads.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  const uint64_t read = instruction->reads[0].begin;
  const uint64_t written = instruction->writes[0].begin;
  instruction->spreads_reads = true;
  instruction->spread = [=](const char* from, char* to) {
    for (const Piece& piece : lanes->pieces) {
      for (int64_t i = 0; i < piece.lanes; ++i) {
        bool unwritten = false;
        for (size_t k = reads_dst ? 0 : 1; k < lanes->operands.size(); ++k) {
          const Operand& operand = lanes->operands[k].operand;
          const char* const at = from + operand.begin + piece.offset[k] +
                                 i * operand.size() - read;
          unwritten = unwritten || std::any_of(at, at + operand.size(),
                                               [](char c) { return c != 0; });
        }
        const Operand& dst = lanes->operands[0].operand;
        std::memset(to + dst.begin + piece.offset[0] + i * dst.size() - written,
                    unwritten, dst.size());
      }
    }
  };
}

}  // namespace

void IssueLanes(const Call& call, const Lanes& lanes, PieceFunction run,
                bool reads_dst) {
  if (lanes.empty()) return;
  Instruction instruction = call.Start(Pipe::kV);
  AddSpans(&instruction.writes, lanes, 0);
  if (reads_dst) AddSpans(&instruction.reads, lanes, 0);
  for (size_t i = 1; i < lanes.operands.size(); ++i) {
    AddSpans(&instruction.reads, lanes, i);
  }
  const auto all = std::make_shared<const Lanes>(lanes);
  SpreadLanes(all, reads_dst, &instruction);
  instruction.work.vector_steps = lanes.repeats;
  const bool flush = ThisNumerics().flush_subnormals;
  instruction.run = [all, run = std::move(run), flush] {
    const Lanes& lanes = *all;
    const FloatScope scope(flush);
    char* bases[4] = {};
    for (size_t i = 0; i < lanes.operands.size(); ++i) {
      const Operand& operand = lanes.operands[i].operand;
      bases[i] = Bytes(operand.memory, operand.begin);
    }
    for (const Piece& piece : lanes.pieces) {
      char* pointers[4] = {};
      for (size_t i = 0; i < lanes.operands.size(); ++i) {
        pointers[i] = bases[i] + piece.offset[i];
      }
      run(piece.lanes, pointers);
    }
  };
  Issue(std::move(instruction));
}

void SetMask(bool count_mode) { ThisRegisters().mask_counts = count_mode; }

void SetMaskBits(uint64_t high, uint64_t low) {
  ThisRegisters().mask[0] = low;
  ThisRegisters().mask[1] = high;
}

}  // namespace ascend_twin
