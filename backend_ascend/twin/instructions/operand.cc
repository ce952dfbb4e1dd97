#include "backend_ascend/twin/instructions/operand.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace ascend_twin {

const char* NameOf(Type type) {
  static constexpr const char* kNames[] = {
      "int8_t",  "uint8_t",  "int16_t", "uint16_t", "half",    "bfloat16_t",
      "int32_t", "uint32_t", "float",   "int64_t",  "uint64_t"};
  return kNames[static_cast<int>(type)];
}

void Call::Refuse(const std::string& text) const {
  ascend_twin::Refuse(name_, site_, text);
}

void Call::On(CoreType type) const {
  if (ThisCoreType() == type) return;
  Refuse(type == CoreType::kAic ? "expected an AIC, got an AIV"
                                : "expected an AIV, got an AIC");
}

void Call::In(const char* what, const Operand& operand,
              std::initializer_list<Memory> memories) const {
  std::string expected;
  for (const Memory memory : memories) {
    if (memory == operand.memory) return;
    expected += (expected.empty() ? "" : " or ") + std::string(NameOf(memory));
  }
  Refuse(std::string(what) + ": expected in " + expected + ", got " +
         NameOf(operand.memory));
}

void Call::Aligned(const char* what, const Operand& operand,
                   uint64_t bytes) const {
  if (operand.begin % bytes == 0) return;
  Refuse(std::string(what) + ": expected to begin at a multiple of " +
         std::to_string(bytes) + " B, got byte " +
         (operand.memory == Memory::kGm
              ? std::to_string(operand.begin % bytes) + " past one"
              : std::to_string(operand.begin)) +
         " of " + NameOf(operand.memory));
}

void Call::OneOf(const char* what, Type type,
                 std::initializer_list<Type> types) const {
  std::string expected;
  for (const Type other : types) {
    if (other == type) return;
    expected += (expected.empty() ? "" : ", ") + std::string(NameOf(other));
  }
  Refuse(std::string(what) + ": expected elements of " + expected + "; got " +
         NameOf(type));
}

void Call::Same(const char* what, Type type, Type other) const {
  if (type == other) return;
  Refuse(std::string(what) + ": expected elements of " + NameOf(other) +
         ", got " + NameOf(type));
}

void Call::Between(const char* what, int64_t value, int64_t low,
                   int64_t high) const {
  if (low <= value && value <= high) return;
  Refuse(std::string(what) + ": expected " + std::to_string(low) + " to " +
         std::to_string(high) + ", got " + std::to_string(value));
}

void Call::Multiple(const char* what, uint64_t value, uint64_t of) const {
  if (value % of == 0) return;
  Refuse(std::string(what) + ": expected a multiple of " + std::to_string(of) +
         ", got " + std::to_string(value));
}

void Call::Equal(const char* what, int64_t value, int64_t expected) const {
  if (value == expected) return;
  Refuse(std::string(what) + ": expected " + std::to_string(expected) +
         ", got " + std::to_string(value));
}

Instruction Call::Start(Pipe pipe) const {
  Instruction instruction{};
  instruction.name = name_;
  instruction.pipe = pipe;
  instruction.site = site_;
  return instruction;
}

void Loosen(std::vector<Span>* spans) {
  for (Span& span : *spans) span.loose = true;
}

void Copies(std::function<void(const char* from, char* to)> copy,
            Instruction* instruction) {
  const Span from = instruction->reads[0];
  const Span to = instruction->writes[0];
  Loosen(&instruction->reads);
  instruction->run = [=] {
    copy(Bytes(from.memory, from.begin), Bytes(to.memory, to.begin));
  };
  instruction->spread = std::move(copy);
}

void AddSpan(std::vector<Span>* spans, Memory memory, uint64_t begin,
             uint64_t bytes, uint64_t rows, uint64_t pitch) {
  if (bytes == 0 || rows == 0) return;
  if (rows > 1 && pitch == 0) rows = 1;  // the same bytes again
  if (rows > 1 && pitch == bytes) {
    bytes *= rows;
    rows = 1;
  }
  spans->push_back({memory, begin, bytes, rows, rows == 1 ? 0 : pitch});
}

namespace {

// Sorted, and joined where they touch.
std::vector<Interval> Joined(std::vector<Interval> all) {
  std::sort(all.begin(), all.end(), [](const Interval& a, const Interval& b) {
    return a.begin < b.begin;
  });
  std::vector<Interval> joined;
  for (const Interval& one : all) {
    if (!joined.empty() && one.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, one.end);
    } else {
      joined.push_back(one);
    }
  }
  return joined;
}

Interval BoxOf(const std::vector<RepeatBytes>& repeats) {
  Interval box{~uint64_t{0}, 0};
  for (const RepeatBytes& repeat : repeats) {
    for (const Interval& interval : repeat.bytes) {
      box.begin = std::min(box.begin, interval.begin);
      box.end = std::max(box.end, interval.end);
    }
  }
  return box;
}

// Of sorted intervals.
bool Meet(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].begin < b[j].end && b[j].begin < a[i].end) return true;
    a[i].end <= b[j].begin ? ++i : ++j;
  }
  return false;
}

bool Same(const RepeatBytes& a, const RepeatBytes& b, bool resizes) {
  if (resizes) return a.at == b.at;
  return std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(),
                    b.bytes.end(), [](const Interval& x, const Interval& y) {
                      return x.begin == y.begin && x.end == y.end;
                    });
}

void Judge(const Call& call, const OverlapRule& rule, Overlap overlap,
           const std::string& what, const std::string& expected) {
  const std::string page = std::string(" (") + rule.page + ")";
  if (overlap == Overlap::kRefused) call.Refuse(expected + page);
  if (overlap != Overlap::kUnpublished || !ThisNumerics().strict) return;
  call.Refuse("dst and " + what +
              ": expected none in common, got some; not published what they "
              "give" +
              page + ": strict=false goes on");
}

void JudgeRepeat(const Call& call, const OverlapRule& rule, Overlap overlap,
                 const std::string& what) {
  const std::string both = "dst and " + what + ": expected ";
  Judge(call, rule, overlap, what,
        rule.one_same == Overlap::kLegal
            ? both +
                  "the same bytes or none in common in a repeat, got part "
                  "of them"
            : both + "none in common, got some");
}

}  // namespace

void CheckInPlace(const Call& call, Family family, const char* what,
                  int64_t repeats) {
  const OverlapRule& rule = RuleOf(family);
  JudgeRepeat(call, rule, repeats > 1 ? rule.several_same : rule.one_same,
              what);
}

void CheckOverlaps(const Call& call, Family family, const char* what,
                   const std::vector<RepeatBytes>& dst,
                   const std::vector<RepeatBytes>& src, bool sums) {
  const OverlapRule& rule = RuleOf(family);
  const Interval written = BoxOf(dst), read = BoxOf(src);
  if (written.begin >= read.end || read.begin >= written.end) return;
  std::vector<RepeatBytes> to = dst, from = src;
  for (auto* all : {&to, &from}) {
    for (RepeatBytes& one : *all) one.bytes = Joined(std::move(one.bytes));
  }
  const bool feeds = rule.several_later == Overlap::kLegal ||
                     (rule.several_later == Overlap::kSums && sums);
  const Overlap later = rule.several_later == Overlap::kSums
                            ? Overlap::kRefused
                            : rule.several_later;
  for (size_t i = 0; i < to.size(); ++i) {
    if (Meet(to[i].bytes, from[i].bytes)) {
      if (Same(to[i], from[i], rule.resizes)) {
        CheckInPlace(call, family, what, static_cast<int64_t>(to.size()));
      } else {
        JudgeRepeat(call, rule, rule.one_part, what);
      }
    }
    for (size_t j = i + 1; !feeds && j < from.size(); ++j) {
      if (!Meet(to[i].bytes, from[j].bytes)) continue;
      Judge(call, rule, later, what,
            "dst: expected no source of a later repeat, got " +
                std::string(what) + " of repeat " + std::to_string(j));
    }
  }
}

std::vector<RepeatBytes> RowsOf(uint64_t begin, uint64_t bytes, int64_t repeats,
                                uint64_t pitch) {
  std::vector<RepeatBytes> rows;
  for (int64_t i = 0; i < repeats; ++i) {
    const uint64_t at = begin + i * pitch;
    rows.push_back({at, {{at, at + bytes}}});
  }
  return rows;
}

std::vector<RepeatBytes> RunOf(uint64_t begin, uint64_t bytes, uint64_t all) {
  std::vector<RepeatBytes> rows;
  for (uint64_t at = 0; at < all; at += bytes) {
    rows.push_back(
        {begin + at, {{begin + at, begin + std::min(all, at + bytes)}}});
  }
  return rows;
}

}  // namespace ascend_twin
