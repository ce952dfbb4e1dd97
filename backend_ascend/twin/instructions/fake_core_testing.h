// A core on which an instruction runs when it is issued, and what tests of
// calls read from and write to it.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_FAKE_CORE_TESTING_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_FAKE_CORE_TESTING_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "backend_ascend/twin/instructions/instructions.h"

namespace ascend_twin {

constexpr uint64_t kBytes[kNumMemories] = {
    1 << 20, 192 << 10, 512 << 10, 64 << 10, 64 << 10, 128 << 10, 1 << 10};

struct Refusal {
  std::string text;
};

// The core and its memories.
struct Core {
  std::vector<char> memory[kNumMemories];
  CoreType type = CoreType::kAic;
  Numerics numerics;
  Type atomic = Type::kNone;
  Registers registers;
  bool checks = true;
  uint64_t issued = 0;
  Work work;
  std::vector<std::string> faults;
  std::mt19937 random{1};

  Core() {
    for (int i = 0; i < kNumMemories; ++i) memory[i].resize(kBytes[i] + 64);
    Scramble();
  }
  char* base(Memory m) {  // at 64 bytes
    char* const data = memory[static_cast<int>(m)].data();
    return data + (64 - reinterpret_cast<uintptr_t>(data) % 64) % 64;
  }
  void Scramble() {
    for (auto& bytes : memory) {
      for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
        const uint32_t bits = random();
        std::memcpy(&bytes[i], &bits, 4);
      }
    }
  }
};

inline Core* core;

// Which bytes of each memory spans cover.
struct Covered {
  std::vector<char> memory[kNumMemories];

  void Cover(const char* name, const std::vector<Span>& spans) {
    for (int m = 0; m < kNumMemories; ++m) memory[m].assign(kBytes[m], 0);
    for (const Span& span : spans) {
      const int m = static_cast<int>(span.memory);
      for (uint64_t row = 0; row < span.rows; ++row) {
        const uint64_t at =
            span.begin + row * span.pitch -
            (span.memory == Memory::kGm
                 ? reinterpret_cast<uint64_t>(core->base(Memory::kGm))
                 : 0);
        if (at + span.bytes > kBytes[m]) {
          throw Refusal{std::string(name) + ": out of bounds"};
        }
        std::memset(&memory[m][at], 1, span.bytes);
      }
    }
  }
};

// The first byte of a memory that is covered, or is not, and differs.
inline int64_t FirstOther(const char* a, const char* b,
                          const std::vector<char>& cover, char covered) {
  for (size_t i = 0; i < cover.size(); ++i) {
    if (a[i] != b[i] && cover[i] == covered) return static_cast<int64_t>(i);
  }
  return -1;
}

inline void Check(const Instruction& instruction) {
  // Kept from one call to the next: it would take most of the time to map them.
  static Covered reads;
  static Covered writes;
  static std::vector<char> before[kNumMemories];
  static std::vector<char> after[kNumMemories];
  reads.Cover(instruction.name, instruction.reads);
  writes.Cover(instruction.name, instruction.writes);
  const auto copy = [](std::vector<char> to[]) {
    for (int m = 0; m < kNumMemories; ++m) {
      const char* const base = core->base(static_cast<Memory>(m));
      to[m].assign(base, base + kBytes[m]);
    }
  };
  const auto fault = [&](const char* what, int m, int64_t at) {
    if (at < 0) return;
    core->faults.push_back(std::string(instruction.name) + " line " +
                           std::to_string(instruction.site.line) + " " + what +
                           " byte " + std::to_string(at) + " of " +
                           NameOf(static_cast<Memory>(m)));
  };
  copy(before);
  instruction.run();
  copy(after);
  for (int m = 0; m < kNumMemories; ++m) {
    fault("changes", m,
          FirstOther(before[m].data(), after[m].data(), writes.memory[m], 0));
  }
  // Again, on other bytes wherever it does not say that it reads.
  for (int m = 0; m < kNumMemories; ++m) {
    char* const base = core->base(static_cast<Memory>(m));
    for (uint64_t i = 0; i < kBytes[m]; ++i) {
      const bool read =
          reads.memory[m][i] || (instruction.atomic && writes.memory[m][i]);
      base[i] = read ? before[m][i] : before[m][i] ^ 0x25;
    }
  }
  instruction.run();
  for (int m = 0; m < kNumMemories; ++m) {
    char* const base = core->base(static_cast<Memory>(m));
    fault("does not write, or reads more for,", m,
          FirstOther(base, after[m].data(), writes.memory[m], 1));
    std::memcpy(base, after[m].data(), kBytes[m]);
  }
}

}  // namespace ascend_twin

namespace twin_instructions {

using namespace AscendC;  // NOLINT: a program of its own
using ascend_twin::core;
using ascend_twin::Core;
using ascend_twin::CoreType;
using ascend_twin::Memory;
using ascend_twin::MmadOrder;

inline void Say(const std::string& text) { ADD_FAILURE() << text; }

constexpr uint64_t Up(uint64_t a, uint64_t b) { return (a + b - 1) / b * b; }

inline float Widen(float x) { return x; }
inline float Widen(bfloat16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
// To nearest even, by the neighbour with the smaller distance.
inline uint16_t Nearest(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint16_t down = bits >> 16;
  const uint16_t up = down + 1;
  const double low = Widen(bfloat16_t{down});
  const double high = Widen(bfloat16_t{up});
  const double to_low = std::fabs(x - low);
  const double to_high = std::fabs(high - x);
  if (to_low != to_high) return to_low < to_high ? down : up;
  return down % 2 == 0 ? down : up;
}
// A half's last place at a number's size.
inline double Quantum(double x) {
  int exponent;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, std::max(exponent - 1, -14) - 10);
}
inline float Widen(half x) {
  const int exponent = x.bits >> 10 & 31;
  const int fraction = x.bits & 1023;
  const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                      : exponent == 0
                          ? fraction * 0x1p-24
                          : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(x.bits >> 15 ? -size : size);
}
inline half NearestHalf(float x) {
  const double quantum = Quantum(x);
  const double size = std::nearbyint(std::fabs(x) / quantum);  // in quanta
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  // The leading one of a normal half counts one exponent.
  const int exponent = std::ilogb(quantum) + 24;
  return {static_cast<uint16_t>(sign |
                                ((exponent << 10) + static_cast<int>(size)))};
}
template <typename T>
T Narrow(float x) {
  if constexpr (std::is_same<T, float>::value) return x;
  if constexpr (std::is_same<T, bfloat16_t>::value) return {Nearest(x)};
  if constexpr (std::is_same<T, half>::value) return NearestHalf(x);
}

// A matrix in global memory, row by row.
template <typename T>
struct Matrix {
  GlobalTensor<T> tensor;
  uint64_t columns;
  T* data;

  Matrix(uint64_t offset, uint64_t rows, uint64_t columns_)
      : columns(columns_),
        data(reinterpret_cast<T*>(core->base(Memory::kGm) + offset)) {
    tensor.SetGlobalBuffer(data, rows * columns);
  }
  T& at(uint64_t row, uint64_t column) { return data[row * columns + column]; }
};

template <typename T>
void Fill(Matrix<T>* matrix, uint64_t rows) {
  std::uniform_real_distribution<float> uniform(-2, 2);
  for (uint64_t i = 0; i < rows * matrix->columns; ++i) {
    matrix->data[i] = Narrow<T>(uniform(core->random));
  }
}

// Adjacent pairs, then pairs of those, each sum as `rounded` has it.
template <typename F>
float PairTree(std::vector<float> x, F rounded) {
  while (x.size() > 1) {
    std::vector<float> y;
    for (size_t i = 0; i < x.size(); i += 2) {
      y.push_back(rounded(x[i] + x[i + 1]));
    }
    x = y;
  }
  return x[0];
}
inline float PairTree(const std::vector<float>& x) {
  return PairTree(x, [](float sum) { return sum; });
}

inline void Expect(const std::string& name, double got, double want) {
  if (got != want && !(got != got && want != want)) {
    Say(name + ": " + std::to_string(got) + " not " + std::to_string(want));
  }
}

template <typename T>
T* In(Memory memory, uint64_t begin = 0) {
  return reinterpret_cast<T*>(core->base(memory) + begin);
}

template <typename T>
void FillMemory(Memory memory, int count) {
  for (int i = 0; i < count; ++i) {
    In<T>(memory)[i] = Narrow<T>(static_cast<float>(i % 2039) / 64);
  }
}

template <typename T>
LocalTensor<T> Ub(uint32_t begin) {
  return LocalTensor<T>(
      TPosition::VECCALC, begin,
      static_cast<uint32_t>(((192 << 10) - begin) / sizeof(T)));
}
template <typename T>
T Get(uint64_t begin, uint64_t index) {
  T x;
  std::memcpy(&x, core->base(Memory::kUb) + begin + index * sizeof(T),
              sizeof(T));
  return x;
}
template <typename T>
void Set(uint64_t begin, uint64_t index, T x) {
  std::memcpy(core->base(Memory::kUb) + begin + index * sizeof(T), &x,
              sizeof(T));
}

constexpr uint32_t kDst = 0, kSrc0 = 65536, kSrc1 = 131072;

}  // namespace twin_instructions

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_FAKE_CORE_TESTING_H_
