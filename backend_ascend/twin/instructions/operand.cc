#include "backend_ascend/twin/instructions/operand.h"

#include <algorithm>
#include <utility>

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

void Call::Apart(const char* what, const std::vector<Span>& a,
                 const std::vector<Span>& b) const {
  for (const Span& one : a) {
    for (const Span& other : b) {
      if (one.memory != other.memory) continue;
      for (uint64_t row = 0; row < one.rows; ++row) {
        const uint64_t begin = one.begin + row * one.pitch;
        if (!Meets(other, begin, begin + one.bytes)) continue;
        Refuse(std::string(what) + ": expected none in common, got some");
      }
    }
  }
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

}  // namespace ascend_twin
