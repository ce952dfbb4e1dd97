#include "backend_ascend/twin/memory/shadow.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace ascend_twin {
namespace {

// Where the units after `begin` that equal it end.
uint64_t EndOfEqual(const uint32_t* units, uint64_t begin, uint64_t end) {
  const uint32_t first = units[begin];
  // Most spans are of one set: the fast comparison of a library tells.
  if (std::memcmp(units + begin, units + begin + 1,
                  (end - begin - 1) * sizeof(uint32_t)) == 0) {
    return end;
  }
  uint64_t at = begin + 1;
  while (at < end && units[at] == first) ++at;
  return at;
}

// The scalar unit keeps its own accesses in order.
bool IsScalar(uint32_t agent) {
  const uint32_t kind = agent % kNumAgents;
  return kind == static_cast<uint32_t>(Pipe::kS) || kind >= kNumPipes;
}

uint32_t* Zeroed(uint64_t count) {
  // Pages that nobody touches cost nothing.
  void* const units = std::calloc(count, sizeof(uint32_t));
  if (units == nullptr) throw std::bad_alloc();
  return static_cast<uint32_t*>(units);
}

}  // namespace

uint32_t Accesses::Add(const Access& access) {
  singles_.push_back(access);
  return static_cast<uint32_t>(singles_.size() - 1);
}

uint32_t Accesses::Count(uint32_t set) const {
  if ((set & kSeveral) == 0) return set == 0 ? 0 : 1;
  return several_[set & ~kSeveral].count;
}

uint32_t Accesses::Member(uint32_t set, uint32_t i) const {
  if ((set & kSeveral) == 0) return set;
  return members_[several_[set & ~kSeveral].begin + i];
}

bool Accesses::Ordered(const Access& earlier, const Access& later,
                       const Clock& known) const {
  if (earlier.number <= known[earlier.agent]) return true;
  if (earlier.agent == later.agent) {
    return later.in_order || earlier.number == later.number ||
           IsScalar(later.agent);
  }
  return earlier.agent / kNumAgents == later.agent / kNumAgents &&
         IsScalar(earlier.agent) && IsScalar(later.agent);
}

uint32_t Accesses::Extend(uint32_t set, uint32_t added, const Clock& known) {
  if (set == 0 || set == added) return added;
  const uint64_t begin = members_.size();
  for (uint32_t i = 0; i < Count(set); ++i) {
    const uint32_t member = Member(set, i);
    if (member == added) return set;
    if (!Ordered(singles_[member], singles_[added], known)) {
      members_.push_back(member);
    }
  }
  if (members_.size() == begin) return added;
  members_.push_back(added);
  several_.push_back({begin, static_cast<uint32_t>(members_.size() - begin)});
  return kSeveral | static_cast<uint32_t>(several_.size() - 1);
}

uint32_t Accesses::Unordered(uint32_t set, uint32_t later, const Clock& known,
                             bool atomics_too) const {
  for (uint32_t i = 0; i < Count(set); ++i) {
    const uint32_t member = Member(set, i);
    const Access& earlier = singles_[member];
    if (earlier.atomic && !atomics_too) continue;
    if (!Ordered(earlier, singles_[later], known)) return member;
  }
  return 0;
}

Shadow::Shadow(uint64_t bytes, bool defined)
    : defined_(defined),
      written_(Zeroed(bytes + 1)),
      read_(Zeroed(bytes + 1)) {}

Conflict Shadow::Read(Accesses* all, uint64_t begin, uint64_t end,
                      uint32_t access, const Clock& known,
                      bool must_be_defined) {
  for (uint64_t i = begin, next; i < end; i = next) {
    next = EndOfEqual(written_.get(), i, end);
    const uint32_t set = written_[i];
    if (set == 0 && must_be_defined && !defined_) {
      return {Conflict::kUndefined, 0, i, next};
    }
    const uint32_t other = all->Unordered(set, access, known, true);
    if (other != 0) return {Conflict::kAfterWrite, other, i, next};
  }
  for (uint64_t i = begin, next; i < end; i = next) {
    next = EndOfEqual(read_.get(), i, end);
    std::fill(&read_[i], &read_[next], all->Extend(read_[i], access, known));
  }
  return {};
}

Conflict Shadow::Write(Accesses* all, uint64_t begin, uint64_t end,
                       uint32_t access, const Clock& known) {
  const bool atomic = all->At(access).atomic;
  for (uint64_t i = begin, next; i < end; i = next) {
    next = EndOfEqual(read_.get(), i, end);
    const uint32_t other = all->Unordered(read_[i], access, known, true);
    if (other != 0) return {Conflict::kAfterRead, other, i, next};
  }
  for (uint64_t i = begin, next; i < end; i = next) {
    next = EndOfEqual(written_.get(), i, end);
    const uint32_t set = written_[i];
    if (set == 0 && atomic && !defined_) {
      return {Conflict::kUndefined, 0, i, next};
    }
    const uint32_t other = all->Unordered(set, access, known, !atomic);
    if (other != 0) return {Conflict::kAfterWrite, other, i, next};
    std::fill(&written_[i], &written_[next],
              atomic ? all->Extend(set, access, known) : access);
  }
  std::fill(&read_[begin], &read_[end], 0u);
  return {};
}

std::vector<char> Shadow::Unwritten(uint64_t begin, uint64_t end) const {
  std::vector<char> marks(end - begin);
  for (uint64_t i = 0; i < marks.size(); ++i) {
    marks[i] = written_[begin + i] == 0;
  }
  return marks;
}

void Shadow::Forget(uint64_t begin, const std::vector<char>& marks) {
  for (uint64_t i = 0; i < marks.size(); ++i) {
    if (marks[i]) written_[begin + i] = 0;
  }
}

}  // namespace ascend_twin
