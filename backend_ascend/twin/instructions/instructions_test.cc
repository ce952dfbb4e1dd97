// Every call on an engine of its own, which runs an instruction when it is
// issued, and says so if it changes a byte outside its writes, leaves one
// inside, or depends on one outside its reads.  Prints what does not hold.

#include "backend_ascend/twin/instructions/instructions.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace ascend_twin {
namespace {

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

Core* core;

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
int64_t FirstOther(const char* a, const char* b, const std::vector<char>& cover,
                   char covered) {
  for (size_t i = 0; i < cover.size(); ++i) {
    if (a[i] != b[i] && cover[i] == covered) return static_cast<int64_t>(i);
  }
  return -1;
}

void Check(const Instruction& instruction) {
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

}  // namespace

void Issue(Instruction instruction) {
  ++core->issued;
  core->work.bytes += instruction.work.bytes;
  core->work.cube_steps += instruction.work.cube_steps;
  core->work.vector_steps += instruction.work.vector_steps;
  core->checks ? Check(instruction) : instruction.run();
}
void Refuse(const char* name, Site, const std::string& text) {
  throw Refusal{std::string(name) + ": " + text};
}
char* Bytes(Memory memory, uint64_t begin) {
  return memory == Memory::kGm ? reinterpret_cast<char*>(begin)
                               : core->base(memory) + begin;
}
const char* NameOf(Memory memory) {
  static constexpr const char* kNames[] = {"GM",  "UB",  "L1",       "L0A",
                                           "L0B", "L0C", "BiasTable"};
  return kNames[static_cast<int>(memory)];
}
CoreType ThisCoreType() { return core->type; }
const Numerics& ThisNumerics() { return core->numerics; }
void SetSaturate(bool saturate) { core->numerics.saturate = saturate; }
void SetAtomicType(Type type) { core->atomic = type; }
Type ThisAtomicType() { return core->atomic; }
Registers& ThisRegisters() { return core->registers; }
void ScalarLoad(Memory memory, uint64_t begin, uint64_t bytes, void* to, Site) {
  std::memcpy(to, Bytes(memory, begin), bytes);
}
void ScalarStore(Memory memory, uint64_t begin, uint64_t bytes,
                 const void* from, Site) {
  std::memcpy(Bytes(memory, begin), from, bytes);
}
void UnitMmad(bool, Site, const std::function<void()>& issue) { issue(); }
void UnitResult(Site, const std::function<void()>& issue) { issue(); }

}  // namespace ascend_twin

namespace {

using namespace AscendC;  // NOLINT: a program of its own
using ascend_twin::core;
using ascend_twin::Core;
using ascend_twin::CoreType;
using ascend_twin::Memory;
using ascend_twin::MmadOrder;

int failures = 0;

void Say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  ++failures;
}

constexpr uint64_t Up(uint64_t a, uint64_t b) { return (a + b - 1) / b * b; }

float Widen(float x) { return x; }
float Widen(bfloat16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
// To nearest even, by the neighbour with the smaller distance.
uint16_t Nearest(float x) {
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
double Quantum(double x) {
  int exponent;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, std::max(exponent - 1, -14) - 10);
}
float Widen(half x) {
  const int exponent = x.bits >> 10 & 31;
  const int fraction = x.bits & 1023;
  const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                      : exponent == 0
                          ? fraction * 0x1p-24
                          : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(x.bits >> 15 ? -size : size);
}
half NearestHalf(float x) {
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
float PairTree(const std::vector<float>& x) {
  return PairTree(x, [](float sum) { return sum; });
}

float Sum(MmadOrder order, float sum, const std::vector<float>& products) {
  const int64_t k = products.size();
  switch (order) {
    case MmadOrder::kAscending:
      for (int64_t i = 0; i < k; ++i) sum += products[i];
      return sum;
    case MmadOrder::kReversed:
      for (int64_t i = k; i-- > 0;) sum += products[i];
      return sum;
    case MmadOrder::kEvenOdd:
      for (int64_t i = 0; i < k; i += 2) sum += products[i];
      for (int64_t i = 1; i < k; i += 2) sum += products[i];
      return sum;
    case MmadOrder::kBlocksOf16:
      for (int64_t i = 0; i < k; i += 16) {
        std::vector<float> block(16, 0.0f);
        for (int64_t j = i; j < k && j < i + 16; ++j)
          block[j - i] = products[j];
        sum += PairTree(block);
      }
      return sum;
  }
  return sum;
}

enum class Way { kFractals, kImage };

struct Shape {
  uint64_t m, n, k;
};

const LocalTensor<float> kC(TPosition::CO1, 0, 32768);

// Moves rows x columns of a matrix to L1, as NZ with rows padded to 16.
template <typename T>
void ToL1(const LocalTensor<T>& l1, Matrix<T>* from, uint64_t row,
          uint64_t column, uint64_t rows, uint64_t columns) {
  Nd2NzParams params;
  params.ndNum = 1;
  params.nValue = rows;
  params.dValue = columns;
  params.srcDValue = from->columns;
  params.dstNzC0Stride = Up(rows, 16);
  params.dstNzNStride = 1;
  DataCopy(l1, from->tensor[row * from->columns + column], params);
}

// L1's NZ of `rows` x `columns` to L0, transposed or not.
template <typename T>
void Image(const LocalTensor<T>& l0, const LocalTensor<T>& l1, uint64_t rows,
           uint64_t columns, bool transpose) {
  LoadData3DParamsV2<T> params;
  params.l1H = 1;
  params.l1W = Up(rows, 16);
  params.channelSize = Up(columns, 32 / sizeof(T));
  params.kExtension = params.channelSize;
  params.mExtension = params.l1W;
  params.enTranspose = transpose;
  LoadData(l0, l1, params);
}

template <typename T>
void LoadA(const LocalTensor<T>& l0, const LocalTensor<T>& l1, Shape s,
           bool transposed, Way way) {
  constexpr uint64_t c0 = 32 / sizeof(T);
  if (way == Way::kImage || (transposed && sizeof(T) == 4)) {
    transposed ? Image(l0, l1, s.k, s.m, true) : Image(l0, l1, s.m, s.k, false);
    return;
  }
  LoadData2DParams params;
  if (!transposed) {
    params.repeatTimes = Up(s.k, c0) / c0;
    params.srcStride = Up(s.m, 16) / 16;
    for (uint64_t i = 0; i < Up(s.m, 16) / 16; ++i) {
      LoadData(l0[i * params.repeatTimes * 16 * c0], l1[i * 16 * c0], params);
    }
    return;
  }
  params.repeatTimes = Up(s.k, 16) / 16;
  params.srcStride = 1;
  params.ifTranspose = true;
  for (uint64_t i = 0; i < Up(s.m, 16) / 16; ++i) {
    const uint64_t at = i * params.repeatTimes * 256;
    LoadData(l0[at], l1[at], params);
  }
}

template <typename T>
void LoadB(const LocalTensor<T>& l0, const LocalTensor<T>& l1, Shape s,
           bool transposed, Way way) {
  constexpr uint64_t c0 = 32 / sizeof(T);
  LoadData2DParams params;
  if (transposed) {  // stored [n, k]: as it lies
    params.repeatTimes = Up(s.n, 16) / 16 * (Up(s.k, c0) / c0);
    params.srcStride = 1;
    LoadData(l0, l1, params);
  } else if (way == Way::kImage || sizeof(T) == 4) {
    Image(l0, l1, s.k, s.n, false);
  } else {
    params.repeatTimes = Up(s.n, 16) / 16;
    params.srcStride = Up(s.k, 16) / 16;
    params.ifTranspose = true;
    for (uint64_t i = 0; i < Up(s.k, 16) / 16; ++i) {
      LoadData(l0[i * params.repeatTimes * 256], l1[i * 256], params);
    }
  }
}

// The whole way of a product, its depth in parts of at most `part`.
template <typename T>
void Gemm(Shape s, bool trans_a, bool trans_b, Way way, uint64_t part,
          MmadOrder order, const char* name) {
  core->numerics.mmad_order = order;
  Matrix<T> a(0, trans_a ? s.k : s.m, (trans_a ? s.m : s.k) + 3);
  Matrix<T> b(100000, trans_b ? s.n : s.k, (trans_b ? s.k : s.n) + 5);
  Matrix<T> c(200000, s.m, s.n + 1);
  Matrix<float> sums(300000, s.m, s.n + 1);
  Fill(&a, trans_a ? s.k : s.m);
  Fill(&b, trans_b ? s.n : s.k);
  const LocalTensor<T> a1(TPosition::A1, 0, 65536);
  const LocalTensor<T> b1(TPosition::B1, 256 << 10, 65536);
  const LocalTensor<T> a2(TPosition::A2, 512, 16384);
  const LocalTensor<T> b2(TPosition::B2, 1024, 16384);
  std::vector<float> expected(s.m * s.n, 0.0f);
  for (uint64_t begin = 0; begin < s.k; begin += part) {
    const Shape p{s.m, s.n, std::min(part, s.k - begin)};
    trans_a ? ToL1(a1, &a, begin, 0, p.k, p.m)
            : ToL1(a1, &a, 0, begin, p.m, p.k);
    trans_b ? ToL1(b1, &b, 0, begin, p.n, p.k)
            : ToL1(b1, &b, begin, 0, p.k, p.n);
    LoadA(a2, a1, p, trans_a, way);
    LoadB(b2, b1, p, trans_b, way);
    MmadParams params;
    params.m = p.m == 1 ? 16 : p.m;  // one row would be read as a vector
    params.n = p.n;
    params.k = p.k;
    params.cmatrixInitVal = begin == 0;
    params.kDirectionAlign = sizeof(T) == 4 && trans_a;
    Mmad(kC, a2, b2, params);
    for (uint64_t i = 0; i < p.m; ++i) {
      for (uint64_t j = 0; j < p.n; ++j) {
        std::vector<float> products;
        for (uint64_t k = begin; k < begin + p.k; ++k) {
          products.push_back(Widen(trans_a ? a.at(k, i) : a.at(i, k)) *
                             Widen(trans_b ? b.at(j, k) : b.at(k, j)));
        }
        float* const sum = &expected[i * s.n + j];
        *sum = Sum(order, *sum, products);
      }
    }
  }
  FixpipeParamsV220 out(s.n, s.m, Up(s.m, 16), s.n + 1, false);
  Fixpipe(sums.tensor, kC, out);
  if (sizeof(T) == 2) {
    out.quantPre = std::is_same<T, half>::value ? QuantMode_t::F322F16
                                                : QuantMode_t::F322BF16;
    Fixpipe<T, float, CFG_ROW_MAJOR>(c.tensor, kC, out);
  }
  for (uint64_t i = 0; i < s.m; ++i) {
    for (uint64_t j = 0; j < s.n; ++j) {
      const float want = expected[i * s.n + j];
      const bool same = std::memcmp(&sums.at(i, j), &want, 4) == 0;
      if (!same ||
          (sizeof(T) == 2 && Widen(c.at(i, j)) != Widen(Narrow<T>(want)))) {
        Say(std::string("gemm ") + name + " [" + std::to_string(i) + ", " +
            std::to_string(j) + "] of " + std::to_string(s.m) + " " +
            std::to_string(s.n) + " " + std::to_string(s.k) +
            (trans_a ? " At" : "") + (trans_b ? " Bt" : "") +
            (way == Way::kImage ? " image" : "") + ": " +
            std::to_string(sums.at(i, j)) + " not " + std::to_string(want));
        return;
      }
    }
  }
}

template <typename T>
void Gemms(const char* name) {
  const Shape shapes[] = {{16, 16, 16}, {1, 1, 1},    {15, 17, 33},
                          {33, 15, 17}, {17, 33, 15}, {1, 33, 16},
                          {33, 1, 20},  {20, 24, 1},  {40, 50, 70}};
  for (const Shape& shape : shapes) {
    for (int form = 0; form < 8; ++form) {
      Gemm<T>(shape, form & 1, form & 2,
              form & 4 ? Way::kImage : Way::kFractals, shape.k,
              MmadOrder::kAscending, name);
    }
  }
  for (int order = 0; order < 4; ++order) {
    Gemm<T>({17, 33, 70}, false, false, Way::kImage, 32,
            static_cast<MmadOrder>(order), name);
    Gemm<T>({17, 33, 70}, true, true, Way::kImage, 70,
            static_cast<MmadOrder>(order), name);
  }
}

// -- What the products do not go through.

void Expect(const std::string& name, double got, double want) {
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

// A vector times a matrix, with a bias: A lies plain in L0A.
void Vector() {
  constexpr int kN = 20;
  constexpr int kK = 50;
  Matrix<bfloat16_t> a(0, 1, kK);
  Matrix<bfloat16_t> b(4096, kK, kN);
  Matrix<float> bias(65536, 1, 32);
  Matrix<float> c(131072, 1, kN);
  Fill(&a, 1);
  Fill(&b, kK);
  Fill(&bias, 1);
  const LocalTensor<bfloat16_t> a1(TPosition::A1, 0, 256);
  const LocalTensor<bfloat16_t> b1(TPosition::B1, 8192, 4096);
  const LocalTensor<float> bias1(TPosition::C1, 65536, 32);
  const LocalTensor<bfloat16_t> a2(TPosition::A2, 0, 256);
  const LocalTensor<bfloat16_t> b2(TPosition::B2, 0, 4096);
  const LocalTensor<float> table(TPosition::C2, 64, 32);
  DataCopy(a1, a.tensor, 64);
  DataCopy(bias1, bias.tensor, 32);
  DataCopy(table, bias1, DataCopyParams(1, 2, 0, 0));  // blocks of 64 bytes
  ToL1(b1, &b, 0, 0, kK, kN);
  LoadData2DParams one;
  one.repeatTimes = 1;
  LoadData(a2, a1, one);
  LoadB(b2, b1, Shape{1, kN, kK}, false, Way::kImage);
  Mmad(kC, a2, b2, table, MmadParams(1, kN, kK, 0, false, true));
  Fixpipe(c.tensor, kC, FixpipeParamsV220(kN, 1, 16, kN, false));
  for (int j = 0; j < kN; ++j) {
    float sum = bias.at(0, j);
    for (int k = 0; k < kK; ++k) sum += Widen(a.at(0, k)) * Widen(b.at(k, j));
    Expect("vector with bias", c.at(0, j), sum);
  }
}

// L0C to NZ in global memory and in L1, whole and split.
void Stripes() {
  FillMemory<float>(Memory::kL0C, 32 * 48);
  Matrix<float> gm(0, 1, 65536);
  const LocalTensor<bfloat16_t> l1(TPosition::A1, 64, 65536);
  const LocalTensor<float> c(TPosition::CO1, 0, 32768);
  FixpipeParamsV220 params(48, 20, 32, 90, false);
  const auto at = [](int row, int column) {
    return In<float>(
        Memory::kL0C)[column / 16 * 32 * 16 + row * 16 + column % 16];
  };
  // Stripes of `width` columns, 90 blocks of `block` elements apart.
  const auto check = [&](const char* name, int width, int block, auto got) {
    for (int i = 0; i < 20 * 48; ++i) {
      const int row = i / 48, column = i % 48;
      const int to = column / width * 90 * block + row * width + column % width;
      Expect(name, got(to, at(row, column)), 0);
    }
  };
  const auto in_gm = [&](int to, float want) { return gm.data[to] - want; };
  Fixpipe<float, float, CFG_NZ>(gm.tensor, c, params);
  check("NZ", 16, 8, in_gm);
  params.isChannelSplit = true;
  Fixpipe<float, float, CFG_NZ>(gm.tensor, c, params);
  check("NZ split", 8, 8, in_gm);
  params.isChannelSplit = false;
  params.quantPre = QuantMode_t::F322BF16;
  Fixpipe<bfloat16_t, float, CFG_NZ>(l1, c, params);
  check("NZ to L1", 16, 16, [](int to, float want) {
    return Widen(In<bfloat16_t>(Memory::kL1, 64)[to]) -
           Widen(Narrow<bfloat16_t>(want));
  });
}

// Part of a matrix in L1, as each of the forms of fractals in L0.
template <typename T>
void Part(bool to_b, bool transpose, const std::string& name) {
  constexpr int c0 = 32 / sizeof(T);
  constexpr int kImageRows = 48;
  constexpr int kRow = 16, kRows = 32, kColumn = c0, kColumns = 3 * c0;
  FillMemory<T>(Memory::kL1, kImageRows * 64);
  LoadData3DParamsV2<T> params;
  params.l1H = 1;
  params.l1W = kImageRows;
  params.channelSize = 64;
  params.mStartPt = kRow;
  params.mExtension = kRows;
  params.kStartPt = kColumn;
  params.kExtension = kColumns;
  params.enTranspose = transpose;
  const LocalTensor<T> l0(to_b ? TPosition::B2 : TPosition::A2, 1024, 8192);
  LoadData(l0, LocalTensor<T>(TPosition::A1, 0, 8192), params);
  const T* const out = In<T>(to_b ? Memory::kL0B : Memory::kL0A, 1024);
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      const int r = kRow + row;
      const int c = kColumn + column;
      const float want =
          Widen(In<T>(Memory::kL1)[c / c0 * kImageRows * c0 + r * c0 + c % c0]);
      // Across and down a fractal, and how many fractals lie in a row.
      const int across = (kColumns + 15) / 16;
      const int squares = kRows / c0;
      int at;
      if (!to_b && !transpose) {
        at = (row / 16 * (kColumns / c0) + column / c0) * 16 * c0 +
             row % 16 * c0 + column % c0;
      } else if (!to_b) {
        at = (column / 16 * squares + row / c0) * 16 * c0 + column % 16 * c0 +
             row % c0;
      } else {
        at = (row / c0 * across + column / 16) * 16 * c0 + column % 16 * c0 +
             row % c0;
      }
      Expect("part " + name, Widen(out[at]), want);
    }
  }
}

// Squares, each turned.
template <typename T>
void Squares(const std::string& name) {
  constexpr int c0 = 32 / sizeof(T);
  FillMemory<T>(Memory::kL1, 8 * 256);
  LoadData2dTransposeParams params(1, 2, 3, 5, 1);
  LoadDataWithTranspose(LocalTensor<T>(TPosition::A2, 512, 8192),
                        LocalTensor<T>(TPosition::A1, 0, 8192), params);
  const T* const out = In<T>(Memory::kL0A, 512);
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 16; ++column) {
        const int from = (1 + repeat * 3) * 256 + column / c0 * 16 * c0 +
                         row * c0 + column % c0;
        const int to =
            (repeat * 6 + row / c0 * 2) * 16 * c0 + column * c0 + row % c0;
        Expect("square " + name, Widen(out[to]),
               Widen(In<T>(Memory::kL1)[from]));
      }
    }
  }
}

// Two matrices to L1, rows a block apart.
void Several() {
  Matrix<float> gm(0, 64, 40);
  Fill(&gm, 64);
  const Nd2NzParams params(2, 5, 11, 400, 40, 21, 2, 512);
  DataCopy(LocalTensor<float>(TPosition::A1, 0, 4096), gm.tensor, params);
  for (int matrix = 0; matrix < 2; ++matrix) {
    for (int row = 0; row < 5; ++row) {
      for (int column = 0; column < 16; ++column) {
        const float got =
            In<float>(Memory::kL1)[matrix * 512 + column / 8 * 21 * 8 +
                                   row * 2 * 8 + column % 8];
        Expect("Nd2Nz", got,
               column < 11 ? gm.data[matrix * 400 + row * 40 + column] : 0.0f);
      }
    }
  }
}

// What the modes of the units do to what leaves them.
void Modes() {
  const LocalTensor<float> a(TPosition::A2, 0, 256);
  const LocalTensor<float> b(TPosition::B2, 0, 256);
  Matrix<float> out(0, 1, 16);
  Matrix<bfloat16_t> out16(1024, 1, 16);
  const auto product = [&](float x, float y) {
    std::memset(In<char>(Memory::kL0A), 0, 1024);
    std::memset(In<char>(Memory::kL0B), 0, 1024);
    In<float>(Memory::kL0A)[0] = x;
    In<float>(Memory::kL0B)[0] = y;
    Mmad(kC, a, b, MmadParams(16, 16, 8, 0, false, true));
    FixpipeParamsV220 params(16, 1, 16, 16, false);
    Fixpipe(out.tensor, kC, params);
    params.quantPre = QuantMode_t::F322BF16;
    Fixpipe<bfloat16_t, float, CFG_ROW_MAJOR>(out16.tensor, kC, params);
  };
  product(3e38f, 2.0f);
  Expect("infinity", out.data[0], INFINITY);
  product(INFINITY, 0.0f);
  Expect("nan", out.data[0], NAN);
  product(0x1p-100f, 0x1p-40f);
  Expect("subnormal", out.data[0], 0x1p-140f);
  core->numerics.flush_subnormals = true;
  product(0x1p-100f, 0x1p-40f);
  Expect("flushed product", out.data[0], 0);
  core->numerics.flush_subnormals = false;
  core->numerics.saturate = true;
  product(-3e38f, 2.0f);
  Expect("saturated", out.data[0], -std::numeric_limits<float>::max());
  Expect("saturated bf16", Widen(out16.data[0]), -0x1.FEp127);
  product(INFINITY, 0.0f);
  Expect("saturated nan", out.data[0], 0);
  core->numerics.saturate = false;
}

void Fractals() {
  Vector();
  Stripes();
  for (int form = 0; form < 3; ++form) {
    Part<bfloat16_t>(form == 2, form == 1, "bf16 " + std::to_string(form));
    Part<float>(form == 2, form == 1, "float " + std::to_string(form));
  }
  Squares<half>("half");
  Squares<float>("float");
  Several();
  Modes();
}

// -- The vector unit.

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

// Fills three operands with numbers in (0.5, 3).
void FillFloats(int count) {
  std::uniform_real_distribution<float> uniform(0.5f, 3);
  for (const uint32_t begin : {kDst, kSrc0, kSrc1}) {
    for (int i = 0; i < count; ++i) Set(begin, i, uniform(core->random));
  }
}

// Elements of two bytes, and integers.
void Narrows() {
  for (int i = 0; i < 128; ++i) {
    Set(kSrc1, i, Narrow<half>(static_cast<float>(i % 37) / 3));
  }
  WholeReduceSum(Ub<half>(kDst), Ub<half>(kSrc1), 128, 1, 1, 1, 8);
  std::vector<float> sums;
  for (int i = 0; i < 128; ++i) sums.push_back(Widen(Get<half>(kSrc1, i)));
  const auto half_of = [](float sum) { return Widen(Narrow<half>(sum)); };
  Expect("sum of halves", Widen(Get<half>(kDst, 0)), PairTree(sums, half_of));
  for (int i = 0; i < 64; ++i) {
    Set(kSrc0, i, int32_t{2147483584} + i);
    Set(kSrc1, i, int32_t{3} * i);
  }
  Add(Ub<int32_t>(kDst), Ub<int32_t>(kSrc0), Ub<int32_t>(kSrc1), 64);
  Expect("int32 wraps", Get<int32_t>(kDst, 60),
         2147483584.0 + 240 - 4294967296.0);
  Cast(Ub<float>(kDst), Ub<int32_t>(kSrc0), RoundMode::CAST_CEIL, 64);
  Expect("int to float", Get<float>(kDst, 0), 2147483648.0);
  Cast(Ub<half>(kDst + 4096), Ub<float>(kDst), RoundMode::CAST_TRUNC, 64);
  Expect("half trunc", Widen(Get<half>(kDst + 4096, 0)), 65504);
  // Ties go to even, among subnormals too, and past the largest to infinity.
  const std::pair<float, double> nearest[] = {
      {1 + 0x1p-11f, 1},   {1 + 0x3p-11f, 1 + 0x1p-9}, {0x1p-25f, 0},
      {0x3p-25f, 0x1p-23}, {-0x5p-25f, -0x1p-23},      {65519, 65504},
      {65520, INFINITY},   {-65520, -INFINITY}};
  for (const auto& [value, want] : nearest) {
    Set(kSrc0, 0, value);
    Cast(Ub<half>(kDst), Ub<float>(kSrc0), RoundMode::CAST_RINT, 1);
    Expect("nearest half", Widen(Get<half>(kDst, 0)), want);
  }
}

// What each call reads and writes, of masked and strided lanes: `calls_test`
// looks at the values.
void Footprints() {
  const auto d = Ub<float>(kDst), x = Ub<float>(kSrc0), y = Ub<float>(kSrc1);
  const uint64_t mask[2] = {0xF0F0F0F0FFFF0103ull, 0};
  const BinaryRepeatParams binary(2, 1, 0, 18, 9, 1);
  const UnaryRepeatParams unary(2, 1, 18, 9);
  FillFloats(512);
  Add(d, x, y, mask, 2, binary);
  Add(d, x, d, 64, 3, BinaryRepeatParams(1, 1, 1, 0, 8, 0));
  Max(d, x, y, 100);
  MulAddDst(d, x, y, mask, 2, binary);
  MulAddDst(d, Ub<half>(kSrc0), Ub<half>(kSrc1), 100);
  const uint64_t wide[2] = {0xFF00FF00FF00FF00ull, 0xF0F0F0F0F0F0F0F0ull};
  Mul(Ub<half>(kDst), Ub<half>(kSrc0), Ub<half>(kSrc1), wide, 2, binary);
  FusedMulAdd(d, x, y, mask, 2, binary);
  Exp(d, x, mask, 2, unary);
  Muls(x, x, 2.0f, 64);
  Axpy(d, x, 1.7f, mask, 2, unary);
  SetMaskCount();
  SetVectorMask<float, MaskMode::COUNTER>(70);
  Adds<float, false>(d, x, 1.0f, MASK_PLACEHOLDER, 1, UnaryRepeatParams());
  SetMaskNorm();
  ResetMask();
  Duplicate(d, 5.0f, 70);
  // Mixed sizes count lanes by the larger: a repeat of bf16 takes 4 blocks.
  Cast(d, Ub<bfloat16_t>(kSrc0), RoundMode::CAST_NONE, 100);
  Cast(d, Ub<bfloat16_t>(kSrc0), RoundMode::CAST_NONE, 64, 2,
       UnaryRepeatParams(1, 1, 8, 4));
  Cast(Ub<bfloat16_t>(kSrc1), x, RoundMode::CAST_RINT, 128);
  Cast(Ub<int32_t>(kSrc1), x, RoundMode::CAST_FLOOR, 128);
  FillFloats(512);
  Brcb(d, x, 2, BrcbRepeatParams(2, 17));
  Copy(d, x, 20, 2, CopyRepeatParams(1, 1, 8, 4));
  for (int i = 0; i < 40; ++i) {
    Set(kSrc1, i, static_cast<uint32_t>(4 * (39 - i)));
  }
  const LocalTensor<float> from(TPosition::VECCALC, kSrc0, 64);
  Gather(d, from, Ub<uint32_t>(kSrc1), 8u, 40u);
  FillFloats(256);
  const auto bits = Ub<uint8_t>(kDst);
  Compare(bits, x, y, CMPMODE::LT, 128);
  Select(Ub<float>(4096), bits, x, y, SELMODE::VSEL_TENSOR_TENSOR_MODE, 100);
  Select(Ub<float>(8192), bits, x, 9.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, 100);
}

// Numbers that are rounded, in the order and the mode of the call; those of one
// operand `calls_test` has.
void Vectors() {
  FillFloats(64);
  const float a = Get<float>(kSrc0, 9), b = Get<float>(kSrc1, 9);
  Set(kDst, 9, 1.7f);
  MulAddDst(Ub<float>(kDst), Ub<float>(kSrc0), Ub<float>(kSrc1), 64);
  Expect("MulAddDst", Get<float>(kDst, 9), std::fma(a, b, 1.7f));
  Set(kDst, 9, 1.7f);
  FusedMulAdd(Ub<float>(kDst), Ub<float>(kSrc0), Ub<float>(kSrc1), 64);
  Expect("FusedMulAdd", Get<float>(kDst, 9), std::fma(a, 1.7f, b));
  Set(kDst, 9, b);
  Axpy(Ub<float>(kDst), Ub<float>(kSrc0), 1.7f, 64);
  Expect("Axpy", Get<float>(kDst, 9), std::fma(1.7f, a, b));
  Div(Ub<float>(kDst), Ub<float>(kSrc0), Ub<float>(kSrc1), 64);
  Expect("Div", Get<float>(kDst, 9), a / b);

  // Sums.
  FillFloats(256);
  for (const int lanes : {64, 20}) {
    BlockReduceSum(Ub<float>(kDst), Ub<float>(kSrc0), 2, lanes, 1, 1, 8);
    WholeReduceSum(Ub<float>(kSrc1), Ub<float>(kSrc0), lanes, 2, 3, 1, 8);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<float> blocks;
      for (int block = 0; block < 8; ++block) {
        std::vector<float> values;
        for (int i = 0; i < 8; ++i) {
          const int lane = block * 8 + i;
          values.push_back(lane < lanes ? Get<float>(kSrc0, repeat * 64 + lane)
                                        : 0.0f);
        }
        blocks.push_back(PairTree(values));
        if (block * 8 < lanes) {
          Expect("BlockReduceSum", Get<float>(kDst, repeat * 8 + block),
                 blocks.back());
        }
      }
      Expect("WholeReduceSum", Get<float>(kSrc1, repeat * 3), PairTree(blocks));
    }
  }
  ReduceSum(Ub<float>(kDst), Ub<float>(kSrc0), Ub<float>(kSrc1), 130);
  float total = 0;
  for (int i = 0; i < 130; i += 64) {
    std::vector<float> values;
    for (int j = i; j < i + 64; ++j) {
      values.push_back(j < 130 ? Get<float>(kSrc0, j) : 0.0f);
    }
    total += PairTree(values);
  }
  Expect("ReduceSum", Get<float>(kDst, 0), total);

  // Casts.
  const auto cast = [](float value, RoundMode mode) {
    Set(kSrc0, 0, value);
    Cast(Ub<bfloat16_t>(kDst), Ub<float>(kSrc0), mode, 1);
    return static_cast<double>(Widen(Get<bfloat16_t>(kDst, 0)));
  };
  const double ulp = 0x1p-7;
  for (const double sign : {1.0, -1.0}) {
    const float third = static_cast<float>(sign * (1 + ulp / 4));
    const float tie = static_cast<float>(sign * (1 + ulp / 2));
    const float odd = static_cast<float>(sign * (1 + ulp * 1.5));
    Expect("rint", cast(third, RoundMode::CAST_RINT), sign);
    Expect("rint tie", cast(tie, RoundMode::CAST_RINT), sign);
    Expect("rint odd", cast(odd, RoundMode::CAST_RINT), sign * (1 + 2 * ulp));
    Expect("round tie", cast(tie, RoundMode::CAST_ROUND), sign * (1 + ulp));
    Expect("trunc", cast(odd, RoundMode::CAST_TRUNC), sign * (1 + ulp));
    Expect("floor", cast(third, RoundMode::CAST_FLOOR),
           sign > 0 ? 1.0 : -1 - ulp);
    Expect("ceil", cast(third, RoundMode::CAST_CEIL),
           sign > 0 ? 1 + ulp : -1.0);
  }
  Expect("infinity", cast(INFINITY, RoundMode::CAST_RINT), INFINITY);
  Expect("nan", cast(NAN, RoundMode::CAST_RINT), NAN);
  Expect("overflow", cast(3.4e38f, RoundMode::CAST_RINT), INFINITY);
  core->numerics.saturate = true;
  Expect("saturated", cast(-INFINITY, RoundMode::CAST_RINT), -0x1.FEp127);
  Expect("saturated nan", cast(NAN, RoundMode::CAST_RINT), 0);
  core->numerics.saturate = false;
  for (int bits = 0; bits < 0x10000; ++bits) {
    Set(kSrc0, bits % 16384, static_cast<uint16_t>(bits));
    if (bits % 16384 != 16383) continue;
    core->checks = bits < 16384;
    Cast(Ub<float>(kDst), Ub<half>(kSrc0), RoundMode::CAST_NONE, 16384);
    // In place: shorter elements may take the place of longer ones.
    Cast(Ub<half>(kDst), Ub<float>(kDst), RoundMode::CAST_RINT, 16384);
    for (int i = 0; i < 16384; ++i) {
      const uint16_t was = Get<uint16_t>(kSrc0, i);
      if ((was & 0x7FFF) > 0x7C00) continue;
      Expect("half and back", Get<uint16_t>(kDst, i), was);
    }
  }
  core->checks = true;

  // Exp's modes, subnormals.
  FillFloats(64);
  Set(kSrc0, 0, -INFINITY);
  Set(kSrc0, 1, -100.0f);
  core->numerics.exp = ascend_twin::ExpMode::kUp;
  Exp(Ub<float>(kDst), Ub<float>(kSrc0), 64);
  Expect("exp of -inf", Get<float>(kDst, 0), 0);
  const float exact =
      static_cast<float>(std::exp(double{Get<float>(kSrc0, 5)}));
  Expect("exp up", Get<float>(kDst, 5), std::nextafter(exact, INFINITY));
  core->numerics.exp = ascend_twin::ExpMode::kNearest;
  core->numerics.flush_subnormals = true;
  Exp(Ub<float>(kDst), Ub<float>(kSrc0), 2);
  Expect("flushed", Get<float>(kDst, 1), 0);
  core->numerics.flush_subnormals = false;
  Exp(Ub<float>(kDst), Ub<float>(kSrc0), 2);
  Expect("kept", Get<float>(kDst, 1), static_cast<float>(std::exp(-100.0)));
}

// Footprints alone, too.
void Moves() {
  Matrix<float> gm(0, 64, 64);
  Matrix<float> out(65536, 64, 64);
  Fill(&gm, 64);
  Fill(&out, 64);
  DataCopy(Ub<float>(kDst), gm.tensor, 19);  // rounds down to 16
  DataCopy(Ub<float>(kDst), gm.tensor, DataCopyParams(3, 2, 1, 4));
  DataCopyPad(Ub<float>(kDst), gm.tensor[1], DataCopyExtParams(3, 20, 8, 1, 0),
              DataCopyPadExtParams<float>(true, 2, 3, 7.5f));
  DataCopyPad(Ub<float>(kDst), gm.tensor, DataCopyExtParams(2, 12, 0, 0, 0),
              DataCopyPadExtParams<float>());
  DataCopyPad(out.tensor[3], Ub<float>(kDst),
              DataCopyExtParams(2, 12, 0, 4, 0));
  SetAtomicAdd<float>();
  DataCopyPad(out.tensor[4], Ub<float>(kDst), DataCopyExtParams(1, 8, 0, 0, 0));
  DisableDmaAtomic();
  DataCopy(Ub<float>(kSrc0), Ub<float>(kDst), 16);
}

// -- What is refused.

template <typename T>
LocalTensor<T> At(TPosition position, uint32_t begin = 0) {
  return LocalTensor<T>(position, begin, 1024);
}

template <typename T>
GlobalTensor<T> Gm(uint64_t begin = 0) {
  GlobalTensor<T> gm;
  gm.SetGlobalBuffer(reinterpret_cast<T*>(core->base(Memory::kGm) + begin));
  return gm;
}

struct Attempt {
  CoreType core;
  std::function<void()> call;
};

constexpr CoreType kAic = CoreType::kAic, kAiv = CoreType::kAiv;

// Parameters, one of them changed.
template <typename Params, typename Field, typename Value>
Params With(Params params, Field Params::* field, Value value) {
  params.*field = static_cast<Field>(value);
  return params;
}

const LoadData2DParams kOne(0, 1, 0, 0, 0, false, 0);
const Nd2NzParams kNz(1, 16, 16, 0, 16, 16, 1, 0);
const MmadParams kProduct(16, 16, 16, 0, false, true);
const FixpipeParamsV220 kResult(16, 16, 16, 16, false);

std::vector<Attempt> MoveAttempts() {
  const auto gm = Gm<float>();
  const auto gm16 = Gm<bfloat16_t>();
  const auto ub = Ub<float>(0);
  const auto l1 = At<float>(TPosition::A1);
  const DataCopyPadExtParams<float> none;
  using P = Nd2NzParams;
  const auto nz = [=](uint16_t P::* field, int value) -> Attempt {
    return {kAic, [=] {
              DataCopy(At<bfloat16_t>(TPosition::A1), gm16,
                       With(kNz, field, value));
            }};
  };
  return {
      {kAic, [=] { DataCopy(ub, gm, 8); }},
      {kAiv, [=] { DataCopy(l1, gm, 8); }},
      {kAiv, [=] { DataCopy(l1, ub, 8); }},
      {kAic, [=] { DataCopy(ub, At<float>(TPosition::CO1), 8); }},
      {kAiv, [=] { DataCopy(ub, Gm<float>(2), 8); }},
      {kAiv, [=] { DataCopyPad(ub, gm, {1, 4, 0, 65536, 0}, none); }},
      {kAiv, [=] { DataCopyPad(ub, gm, {1, 4, 0, 0, 0}, {true, 0, 9, 0.0f}); }},
      {kAic, [=] { DataCopyPad(l1, gm, {1, 4, 0, 0, 0}, none); }},
      {kAiv,
       [=] {
         SetAtomicAdd<int32_t>();
         DataCopyPad(gm, ub, {1, 4, 0, 0, 0});
       }},
      {kAiv, [] { SetAtomicAdd<uint16_t>(); }},
      {kAiv, [=] { DataCopy(Ub<bfloat16_t>(0), gm16, Nd2NzParams()); }},
      nz(&P::ndNum, 4096),
      nz(&P::nValue, 16385),
      nz(&P::srcDValue, 0),
      nz(&P::dstNzC0Stride, 0),
      nz(&P::dstNzNStride, 16385),
  };
}

std::vector<Attempt> LoadAttempts() {
  using P = LoadData3DParamsV2<bfloat16_t>;
  const auto l1 = At<bfloat16_t>(TPosition::A1);
  const auto a = At<bfloat16_t>(TPosition::A2);
  const auto f1 = At<float>(TPosition::A1);
  const auto load = [](auto to, auto from, LoadData2DParams params) -> Attempt {
    return {kAic, [=] { LoadData(to, from, params); }};
  };
  const auto image = [=](auto set, int value) -> Attempt {
    P params;
    params.l1H = 1;
    params.l1W = params.mExtension = 32;
    params.channelSize = params.kExtension = 32;
    set(&params) = value;
    return {kAic, [=] { LoadData(a, l1, params); }};
  };
  const auto k_extension = [](P* p) -> uint16_t& { return p->kExtension; };
  const auto m_extension = [](P* p) -> uint16_t& { return p->mExtension; };
  return {
      {kAiv, [=] { LoadData(a, l1, kOne); }},
      load(At<float>(TPosition::CO1), f1, kOne),
      load(a, At<bfloat16_t>(TPosition::B2), kOne),
      load(a[16], l1, kOne),
      load(a, l1[8], kOne),
      load(At<float>(TPosition::A2), f1, LoadData2DParams(0, 1, 0, 0, 0, 1, 0)),
      load(a, l1, LoadData2DParams(0, 1, 0, 0, 0, 0, 1)),
      image([](P* p) -> uint8_t& { return p->filterW; }, 3),
      image([](P* p) -> uint8_t& { return p->strideH; }, 2),
      image([](P* p) -> uint8_t& { return p->padList[1]; }, 1),
      image([](P* p) -> uint16_t& { return p->channelSize; }, 38),
      image([](P* p) -> uint16_t& { return p->kStartPt; }, 8),
      image(k_extension, 24),
      image(k_extension, 48),
      image(m_extension, 17),
      image(m_extension, 48),
  };
}

std::vector<Attempt> ProductAttempts() {
  const auto a = At<bfloat16_t>(TPosition::A2);
  const auto b = At<bfloat16_t>(TPosition::B2);
  const auto c = At<float>(TPosition::CO1);
  const auto of = [](auto to, auto left, auto right,
                     MmadParams params = kProduct) -> Attempt {
    return {kAic, [=] { Mmad(to, left, right, params); }};
  };
  using P = MmadParams;
  return {
      {kAiv, [=] { Mmad(c, a, b, kProduct); }},
      of(c, b, b),
      of(c, a, a),
      of(c, a, At<half>(TPosition::B2)),
      of(At<int32_t>(TPosition::CO1), a, b),
      of(c[128], a, b),
      of(c, a[16], b),
      {kAic, [=] { Mmad(c, a, b, At<float>(TPosition::C2, 32), kProduct); }},
      of(c, a, b, With(kProduct, &P::m, 4096)),
      of(c, a, b, With(kProduct, &P::n, 4096)),
      of(c, a, b, With(kProduct, &P::k, 4096)),
      of(c, a, b, With(kProduct, &P::unitFlag, 1)),
      of(c, a, b, With(kProduct, &P::isBias, true)),
      of(c, a, b, With(kProduct, &P::kDirectionAlign, true)),
      of(c, a, b, MmadParams(16, 16, 16, 0, true, false)),
      {kAic, [] { SetHF32Mode(HF32Mode::ENABLE); }},
  };
}

std::vector<Attempt> ResultAttempts() {
  const auto gm = Gm<float>();
  const auto c = At<float>(TPosition::CO1);
  const auto of = [](auto to, auto from,
                     FixpipeParamsV220 params = kResult) -> Attempt {
    return {kAic, [=] { Fixpipe(to, from, params); }};
  };
  using P = FixpipeParamsV220;
  const auto of20 = With(kResult, &P::nSize, 20);
  return {
      {kAiv, [=] { Fixpipe(gm, c, kResult); }},
      of(Gm<bfloat16_t>(), c),
      of(At<bfloat16_t>(TPosition::A1), c),
      of(gm, At<float>(TPosition::A2)),
      {kAic, [=] { Fixpipe<float, float, CFG_NZ>(gm, c, of20); }},
      of(gm, c, With(kResult, &P::nSize, 4096)),
      of(gm, c, With(kResult, &P::mSize, 8193)),
      of(gm, c, With(kResult, &P::dstStride, 0)),
      of(gm, c, With(kResult, &P::srcStride, 8)),
      of(gm, c, With(kResult, &P::srcStride, 17)),
      of(gm, c, With(kResult, &P::unitFlag, 2)),
      of(gm, c, With(kResult, &P::ndNum, 2)),
      of(gm, c, With(kResult, &P::quantPre, QuantMode_t::F322BF16)),
  };
}

// What only some sources refuse.
std::vector<Attempt> DisputedAttempts() {
  const FixpipeParamsV220 of20(20, 16, 16, 16, false);
  const auto b1 = At<float>(TPosition::B1), b2 = At<float>(TPosition::B2);
  return {
      {kAic, [=] { Fixpipe(Gm<float>(), At<float>(TPosition::CO1), of20); }},
      {kAic, [=] { Image(b2, b1, 16, 16, false); }},
  };
}

std::vector<Attempt> VectorAttempts() {
  const auto x = Ub<float>(0);
  const auto y = Ub<float>(4096);
  const auto z = Ub<float>(8192);
  const auto h = Ub<bfloat16_t>(16384);
  const auto n = Ub<int32_t>(20480);
  return {
      {kAic, [=] { Add(x, y, z, 64); }},
      {kAiv, [=] { Add(h, h, h, 64); }},
      {kAiv, [=] { Muls(h, h, bfloat16_t{0}, 64); }},
      {kAiv, [=] { Exp(n, n, 64); }},
      {kAiv, [=] { Div(n, n, n, 64); }},
      {kAiv, [=] { Add(x, At<float>(TPosition::A1), z, 64); }},
      {kAiv, [=] { Add(x, y, z, -1); }},
      {kAiv, [=] { Add(y, z, y, 64, 2, {1, 1, 1, 4, 8, 4}); }},
      {kAiv, [=] { Cast(h, x, RoundMode::CAST_NONE, 64); }},
      {kAiv, [=] { Cast(x, h, RoundMode::CAST_RINT, 64); }},
      {kAiv, [=] { Cast(Ub<half>(0), h, RoundMode::CAST_NONE, 64); }},
      {kAiv,
       [=] { Cast(Ub<float>(0), Ub<half>(0), RoundMode::CAST_NONE, 64); }},
      {kAiv, [=] { Compare(Ub<uint8_t>(0), n, n, CMPMODE::LT, 64); }},
      {kAiv,
       [=] {
         Set(20480, 0, 4096u);
         Gather(x, LocalTensor<float>(TPosition::VECCALC, 4096, 64),
                Ub<uint32_t>(20480), 0u, 1u);
       }},
  };
}

// In the order of the attempts.
constexpr char kRefused[] = R"(
DataCopy: expected an AIV, got an AIC
DataCopy: expected an AIC, got an AIV
DataCopy: dst: expected in GM or UB, got L1
DataCopy: dst: expected in GM, got UB
DataCopy: src: expected to begin at a multiple of 4 B, got byte 2 past one of GM
DataCopyPad: dstStride: expected 0 to 65535, got 65536
DataCopyPad: bytes of rightPadding: expected 0 to 32, got 36
DataCopyPad: dst: expected in UB, got L1
DataCopyPad: dst: expected the element type of SetAtomicAdd, which is still on, got float
SetAtomicAdd: T: expected elements of int8_t, int16_t, int32_t, half, bfloat16_t, float; got uint16_t
DataCopy: dst: expected in L1, got UB
DataCopy: ndNum: expected 0 to 4095, got 4096
DataCopy: nValue: expected 0 to 16384, got 16385
DataCopy: srcDValue: expected 1 to 65535, got 0
DataCopy: dstNzC0Stride: expected 1 to 16384, got 0
DataCopy: dstNzNStride: expected 1 to 16384, got 16385
LoadData: expected an AIC, got an AIV
LoadData: dst: expected in L0A or L0B, got L0C
LoadData: src: expected in L1, got L0B
LoadData: dst: expected to begin at a multiple of 512 B, got byte 32 of L0A
LoadData: src: expected to begin at a multiple of 32 B, got byte 16 of L1
LoadData: src of ifTranspose: expected elements of half, bfloat16_t, int16_t, uint16_t; got float
LoadData: addrMode: expected 0, got 1
LoadData: filterW: expected 1, got 3
LoadData: strideH: expected 1, got 2
LoadData: padList: expected 0, got 1
LoadData: channelSize: expected a multiple of 16, or 4 or 8 more, got 38
LoadData: kStartPt: expected a multiple of 16, got 8
LoadData: kExtension short of channelSize: expected a multiple of 16, got 24
LoadData: kStartPt + kExtension: expected 1 to 32, got 48
LoadData: mExtension short of l1H * l1W: expected a multiple of 16, got 17
LoadData: mStartPt + mExtension: expected 1 to 32, got 48
Mmad: expected an AIC, got an AIV
Mmad: A: expected in L0A, got L0B
Mmad: B: expected in L0B, got L0A
Mmad: B: expected elements of bfloat16_t, got half
Mmad: dst: expected elements of float; got int32_t
Mmad: dst: expected to begin at a multiple of 1024 B, got byte 512 of L0C
Mmad: A: expected to begin at a multiple of 512 B, got byte 32 of L0A
Mmad: bias: expected to begin at a multiple of 64 B, got byte 32 of BiasTable
Mmad: m: expected 0 to 4095, got 4096
Mmad: n: expected 0 to 4095, got 4096
Mmad: k: expected 0 to 4095, got 4096
Mmad: unitFlag: expected 0, got 1
Mmad: isBias: deprecated; use cmatrixInitVal
Mmad: A of kDirectionAlign: expected elements of float; got bfloat16_t
Mmad: cmatrixSource: expected the form of Mmad that takes the bias
SetHF32Mode: mode: expected DISABLE: the twin rounds no operand to HF32
Fixpipe: expected an AIC, got an AIV
Fixpipe: dst of NoQuant: expected elements of float; got bfloat16_t
Fixpipe: dst: expected in GM, got L1
Fixpipe: src: expected in L0C, got L0A
Fixpipe: nSize: expected a multiple of 16, got 20
Fixpipe: nSize: expected 0 to 4095, got 4096
Fixpipe: mSize: expected 0 to 8192, got 8193
Fixpipe: dstStride: expected 1 to 4294967295, got 0
Fixpipe: srcStride: expected 16 to 65535, got 8
Fixpipe: srcStride: expected a multiple of 16, got 17
Fixpipe: unitFlag: expected 3, got 2
Fixpipe: ndNum: expected 1, got 2
Fixpipe: dst of F322BF16: expected elements of bfloat16_t; got float
Add: expected an AIV, got an AIC
Add: dst: expected elements of half, float, int16_t, int32_t; got bfloat16_t
Muls: dst: expected elements of half, float, int16_t, int32_t; got bfloat16_t
Exp: dst: expected elements of half, float; got int32_t
Div: dst: expected elements of half, float; got int32_t
Add: src0: expected in UB, got L1
Add: count: expected 0 to 1048576, got -1
Add: dst: expected no source of a later repeat, got src1 of repeat 1 (Add.md)
Cast: roundMode of float to bfloat16_t: expected CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC; got CAST_NONE
Cast: roundMode of bfloat16_t to float: expected CAST_NONE; got CAST_RINT
Cast: expected a conversion that A2 and A3 have, got bfloat16_t to half
Cast: dst and src: expected none in common, got some (Cast.md)
Compare: cmpMode of int32_t: expected EQ
Gather: srcOffset 0: expected a multiple of 4 in the source's 256 B, got 4096
not refused
not refused
Fixpipe: nSize by fixpipe_n_of_16: expected a multiple of 16, got 20
LoadData: dst by no_float_to_l0b: expected L0A for elements of 4 B, got L0B
)";

void Try(const std::vector<Attempt>& attempts, std::string* said) {
  for (const Attempt& attempt : attempts) {
    core->type = attempt.core;
    try {
      attempt.call();
      *said += "not refused\n";
    } catch (const ascend_twin::Refusal& refusal) {
      *said += refusal.text + "\n";
    }
    DisableDmaAtomic();
  }
}

void Refusals() {
  std::string said = "\n";
  for (const auto attempts : {MoveAttempts, LoadAttempts, ProductAttempts,
                              ResultAttempts, VectorAttempts}) {
    Try(attempts(), &said);
  }
  for (const bool strict : {false, true}) {
    core->numerics.fixpipe_n_of_16 = core->numerics.no_float_to_l0b = strict;
    Try(DisputedAttempts(), &said);
  }
  if (said != kRefused) Say("refused:" + said);
}

}  // namespace

int main() {
  Core one;
  core = &one;
  Gemms<bfloat16_t>("bf16");
  Gemms<float>("float");
  Gemm<half>({17, 33, 20}, false, true, Way::kFractals, 20,
             MmadOrder::kAscending, "half");
  core->numerics.mmad_order = MmadOrder::kAscending;
  Fractals();
  core->type = CoreType::kAiv;
  Footprints();
  Vectors();
  Narrows();
  Moves();
  for (const std::string& fault : core->faults) Say(fault);
  Refusals();
  std::printf("failures: %d\n", failures);
  return 0;
}
