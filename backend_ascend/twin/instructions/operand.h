// Operands without their types, as the calls check and describe them.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_OPERAND_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_OPERAND_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "backend_ascend/twin/api/tensor.h"
#include "backend_ascend/twin/engine/instruction.h"
#include "backend_ascend/twin/instructions/overlaps.h"

namespace ascend_twin {

// Of what a pointer points to.
constexpr Type TypeOf(const int8_t*) { return Type::kInt8; }
constexpr Type TypeOf(const uint8_t*) { return Type::kUint8; }
constexpr Type TypeOf(const int16_t*) { return Type::kInt16; }
constexpr Type TypeOf(const uint16_t*) { return Type::kUint16; }
constexpr Type TypeOf(const half*) { return Type::kHalf; }
constexpr Type TypeOf(const bfloat16_t*) { return Type::kBf16; }
constexpr Type TypeOf(const int32_t*) { return Type::kInt32; }
constexpr Type TypeOf(const uint32_t*) { return Type::kUint32; }
constexpr Type TypeOf(const float*) { return Type::kFloat; }
constexpr Type TypeOf(const int64_t*) { return Type::kInt64; }
constexpr Type TypeOf(const uint64_t*) { return Type::kUint64; }

constexpr uint64_t SizeOf(Type type) {
  switch (type) {
    case Type::kInt8:
    case Type::kUint8:
      return 1;
    case Type::kInt16:
    case Type::kUint16:
    case Type::kHalf:
    case Type::kBf16:
      return 2;
    case Type::kInt64:
    case Type::kUint64:
      return 8;
    default:
      return 4;
  }
}
const char* NameOf(Type type);

// Where an operand of a call begins, and of what type its elements are.
struct Operand {
  Operand() = default;
  template <typename T>
  Operand(const AscendC::LocalTensor<T>& tensor)  // any tensor is an operand
      : memory(tensor.memory()),
        begin(tensor.begin()),
        type(TypeOf(static_cast<T*>(nullptr))) {}
  template <typename T>
  Operand(const AscendC::GlobalTensor<T>& tensor)
      : memory(Memory::kGm),
        begin(tensor.begin()),
        type(TypeOf(static_cast<T*>(nullptr))) {}

  uint64_t size() const { return SizeOf(type); }

  Memory memory{};
  uint64_t begin = 0;
  Type type{};
};

constexpr uint64_t kBlock = 32;     // bytes of a block
constexpr uint64_t kFractal = 512;  // bytes of a fractal
constexpr uint64_t kSide = 16;      // its rows; its columns of two bytes
constexpr uint64_t kRepeat = 256;   // bytes of a repeat of the vector unit

constexpr uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
constexpr uint64_t RoundUp(uint64_t a, uint64_t b) { return CeilDiv(a, b) * b; }

// Of an element, from the low end.
template <typename T>
uint64_t BitsOf(const T& value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

// A call under check: each check ends the launch if it does not hold, with what
// was expected and what came.
class Call {
 public:
  Call(const char* name, Site site) : name_(name), site_(site) {}

  const char* name() const { return name_; }
  Site site() const { return site_; }

  [[noreturn]] void Refuse(const std::string& text) const;
  void On(CoreType type) const;
  void In(const char* what, const Operand& operand,
          std::initializer_list<Memory> memories) const;
  void Aligned(const char* what, const Operand& operand, uint64_t bytes) const;
  void OneOf(const char* what, Type type,
             std::initializer_list<Type> types) const;
  void Same(const char* what, Type type, Type other) const;
  // `value` in [low, high].
  void Between(const char* what, int64_t value, int64_t low,
               int64_t high) const;
  void Multiple(const char* what, uint64_t value, uint64_t of) const;
  void Equal(const char* what, int64_t value, int64_t expected) const;

  Instruction Start(Pipe pipe) const;

 private:
  const char* name_;
  Site site_;
};

// All of them may hold what nobody wrote.
void Loosen(std::vector<Span>* spans);
// It does no more than `copy`, from its first read to its first write: what
// nobody wrote, as an L1 tail that is moved with its fractal, stays unwritten.
void Copies(std::function<void(const char* from, char* to)> copy,
            Instruction* instruction);

// Marks bytes that come of others: all of them, if one of those is marked.
inline void SpreadTo(char* to, uint64_t bytes, const char* from,
                     uint64_t from_bytes) {
  const bool marked =
      std::any_of(from, from + from_bytes, [](char c) { return c != 0; });
  std::fill(to, to + bytes, static_cast<char>(marked));
}

// Adds a span, and drops what is empty; rows that touch become one.
void AddSpan(std::vector<Span>* spans, Memory memory, uint64_t begin,
             uint64_t bytes, uint64_t rows = 1, uint64_t pitch = 0);

struct Interval {
  uint64_t begin;
  uint64_t end;
};

// Bytes of one repeat of an operand in the unified buffer.
struct RepeatBytes {
  uint64_t at;  // where the operand begins
  std::vector<Interval> bytes;
};

// Refuses what the family's rule does not allow of a destination and `what`, by
// repeat.  `sums`: what kSums asks for holds.
void CheckOverlaps(const Call& call, Family family, const char* what,
                   const std::vector<RepeatBytes>& dst,
                   const std::vector<RepeatBytes>& src, bool sums = false);

// The same, of operands that take the same bytes in each of `repeats` repeats.
void CheckInPlace(const Call& call, Family family, const char* what,
                  int64_t repeats);

// `bytes` of each repeat, at `pitch`.
std::vector<RepeatBytes> RowsOf(uint64_t begin, uint64_t bytes, int64_t repeats,
                                uint64_t pitch);
// `bytes` of each repeat, one after the other; the last has the rest of `all`.
std::vector<RepeatBytes> RunOf(uint64_t begin, uint64_t bytes, uint64_t all);

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_OPERAND_H_
