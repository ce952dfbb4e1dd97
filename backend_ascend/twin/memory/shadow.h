// Who wrote and who read each part of a memory last, and whether a further
// access is ordered after them.

#ifndef BACKEND_ASCEND_TWIN_MEMORY_SHADOW_H_
#define BACKEND_ASCEND_TWIN_MEMORY_SHADOW_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "backend_ascend/twin/memory/clocks.h"

namespace ascend_twin {

// The `number`-th of an agent's instructions, as far as memory goes.
struct Access {
  uint32_t agent;
  uint32_t number;
  bool atomic;
  bool in_order;  // after all earlier ones of its agent, without a barrier
  const char* call;
  Site site;
  int64_t tag;
  uint64_t order;  // among all that is issued
};

// Sets of accesses, each once, by numbers: 0 is the empty one.
class Accesses {
 public:
  uint32_t Add(const Access& access);
  // `set` without those that `known` covers, with `added`.
  uint32_t Extend(uint32_t set, uint32_t added, const Clock& known);
  const Access& At(uint32_t single) const { return singles_[single]; }
  // A member that is not ordered before `later`; 0 if there is none.
  uint32_t Unordered(uint32_t set, uint32_t later, const Clock& known,
                     bool atomics_too) const;

 private:
  struct Several {
    uint64_t begin;
    uint32_t count;
  };
  static constexpr uint32_t kSeveral = uint32_t{1} << 31;

  // The members of a set are single accesses: At(them).
  uint32_t Count(uint32_t set) const;
  uint32_t Member(uint32_t set, uint32_t i) const;
  bool Ordered(const Access& earlier, const Access& later,
               const Clock& known) const;

  std::vector<Access> singles_ = std::vector<Access>(1);
  std::vector<Several> several_;
  std::vector<uint32_t> members_;
};

// What is wrong with an access.
struct Conflict {
  enum Kind : uint8_t { kNone, kUndefined, kAfterWrite, kAfterRead };
  Kind kind = kNone;
  uint32_t other = 0;  // a single access
  uint64_t begin = 0;  // bytes
  uint64_t end = 0;
};

class Shadow {
 public:
  // Of `bytes` bytes; `defined`: the host wrote them.
  Shadow(uint64_t bytes, bool defined);

  // Bytes [begin, end) are read or written by `access`.
  Conflict Read(Accesses* all, uint64_t begin, uint64_t end, uint32_t access,
                const Clock& known, bool must_be_defined);
  Conflict Write(Accesses* all, uint64_t begin, uint64_t end, uint32_t access,
                 const Clock& known);
  // Marks of bytes [begin, end): not 0 where nobody wrote.
  std::vector<char> Unwritten(uint64_t begin, uint64_t end) const;
  // From `begin` on, marked bytes are unwritten.
  void Forget(uint64_t begin, const std::vector<char>& marks);

 private:
  struct Free {
    void operator()(uint32_t* p) const { std::free(p); }
  };
  using Units = std::unique_ptr<uint32_t[], Free>;

  const bool defined_;
  Units written_;  // sets, one a byte
  Units read_;     // since it was written
};

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_MEMORY_SHADOW_H_
