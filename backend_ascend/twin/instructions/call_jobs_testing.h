// A call on the engine: what it is asked for, how it is issued, and what plain
// C++ makes of it.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_CALL_JOBS_TESTING_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_CALL_JOBS_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend_ascend/twin/engine/kernel_launch.h"
#include "kernel_operator.h"

namespace twin_calls {

using namespace AscendC;  // NOLINT: programs of calls
using ascend_twin::Type;

constexpr int kRegion = 24 << 10;  // bytes of an operand, and
constexpr int kImage = 3 * kRegion;
constexpr int kBlock = 32;
constexpr int kRegionBlocks = kRegion / kBlock;

inline std::mt19937 random_bits{22};

inline int Pick(int low, int high) {
  return low + static_cast<int>(random_bits() % (high - low + 1));
}
// Parameters of calls are this narrow.
inline uint8_t U8(int x) { return static_cast<uint8_t>(x); }
inline uint16_t U16(int x) { return static_cast<uint16_t>(x); }
template <typename T>
T PickOf(std::initializer_list<T> choices) {
  return choices.begin()[random_bits() % choices.size()];
}

// -- Numbers.

template <typename T>
constexpr Type kType = ascend_twin::TypeOf(static_cast<T*>(nullptr));

inline int BytesOf(Type type) {
  return static_cast<int>(ascend_twin::SizeOf(type));
}

inline bool IsReal(Type type) {
  return type == Type::kFloat || type == Type::kHalf || type == Type::kBf16;
}

// Nearest even; what is encoded here is far from overflow.
inline uint16_t HalfOf(double x) {
  int exponent;
  std::frexp(x == 0 ? 0x1p-24 : x, &exponent);
  const double quantum = std::ldexp(1.0, std::max(exponent - 1, -14) - 10);
  const auto size = static_cast<int>(std::nearbyint(std::fabs(x) / quantum));
  const int sign = std::signbit(x) ? 0x8000 : 0;
  return static_cast<uint16_t>(sign + ((std::ilogb(quantum) + 24) << 10) +
                               size);
}
inline double OfHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double size = exponent == 0
                          ? fraction * 0x1p-24
                          : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -size : size;
}

template <typename T>
void Put(char* at, T x) {
  std::memcpy(at, &x, sizeof(T));
}
template <typename T>
T Got(const char* at) {
  T x;
  std::memcpy(&x, at, sizeof(T));
  return x;
}

inline void Encode(char* at, Type type, double x) {
  const auto whole = static_cast<int64_t>(x);
  const auto real = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &real, sizeof(bits));
  switch (type) {
    case Type::kFloat:
      return Put(at, real);
    case Type::kHalf:
      return Put(at, HalfOf(real));
    case Type::kBf16:
      return Put(at, static_cast<uint16_t>(bits >> 16));  // exact here
    default:
      std::memcpy(at, &whole, BytesOf(type));
  }
}

inline double Decode(const char* at, Type type) {
  switch (type) {
    case Type::kFloat:
      return Got<float>(at);
    case Type::kHalf:
      return OfHalf(Got<uint16_t>(at));
    case Type::kBf16: {
      const uint32_t bits = static_cast<uint32_t>(Got<uint16_t>(at)) << 16;
      float x;
      std::memcpy(&x, &bits, sizeof(x));
      return x;
    }
    default: {
      // Bytes from the low end, of a signed type with its sign.
      uint64_t whole = 0;
      std::memcpy(&whole, at, BytesOf(type));
      const int unused = 64 - 8 * BytesOf(type);
      const bool has_sign = ascend_twin::NameOf(type)[0] != 'u';
      if (!has_sign) return static_cast<double>(whole);
      return static_cast<double>(static_cast<int64_t>(whole << unused) >>
                                 unused);
    }
  }
}

// -- What a call is asked for.

enum class Form { kCount, kContiguous, kBits, kRegister, kCounter };
constexpr Form kForms[] = {Form::kCount, Form::kContiguous, Form::kBits,
                           Form::kRegister, Form::kCounter};

// An operand: type, byte where it begins, strides in blocks.
struct Place {
  Type type;
  int begin;
  int block = 1;
  int repeat = 8;
};

struct Setting {
  Form form = Form::kCount;
  int64_t count = 0;  // of elements, or of lanes
  uint64_t bits[2] = {};
  int64_t repeat = 1;
  int lanes = 0;  // of a repeat
  std::vector<Place> at;

  template <typename T>
  LocalTensor<T> Tensor(int i) const {
    return LocalTensor<T>(TPosition::VECCALC,
                          static_cast<uint32_t>(at[i].begin),
                          kRegion / static_cast<uint32_t>(sizeof(T)));
  }
  BinaryRepeatParams Binary() const {
    return {U8(at[0].block),  U8(at[1].block),  U8(at[2].block),
            U8(at[0].repeat), U8(at[1].repeat), U8(at[2].repeat)};
  }
  UnaryRepeatParams Unary() const {
    return {U16(at[0].block), U16(at[1].block), U8(at[0].repeat),
            U8(at[1].repeat)};
  }
};

// `masked` is given whether the call sets the mask, and the mask.
template <typename ByCount, typename Masked>
void Give(const Setting& s, ByCount by_count, Masked masked) {
  switch (s.form) {
    case Form::kCount:
      return by_count();
    case Form::kContiguous:
      return masked(std::true_type(), static_cast<uint64_t>(s.count));
    case Form::kBits:
      return masked(std::true_type(), &s.bits[0]);
    case Form::kRegister:
      SetVectorMask<float>(s.bits[1], s.bits[0]);
      break;
    case Form::kCounter:
      SetMaskCount();
      SetVectorMask<float, MaskMode::COUNTER>(0,
                                              static_cast<uint64_t>(s.count));
  }
  masked(std::false_type(), MASK_PLACEHOLDER);
  SetMaskNorm();
  ResetMask();
}

// Repeats and lanes that take part, in order.
inline std::vector<std::pair<int, int>> Active(const Setting& s) {
  std::vector<std::pair<int, int>> active;
  if (s.form == Form::kCount || s.form == Form::kCounter) {
    for (int i = 0; i < s.count; ++i) {
      active.push_back({i / s.lanes, i % s.lanes});
    }
    return active;
  }
  for (int repeat = 0; repeat < s.repeat; ++repeat) {
    for (int lane = 0; lane < s.lanes; ++lane) {
      const bool on = s.form == Form::kContiguous
                          ? lane < s.count
                          : (s.bits[lane / 64] >> (lane % 64) & 1) != 0;
      if (on) active.push_back({repeat, lane});
    }
  }
  return active;
}

inline int ByteOf(const Place& place, std::pair<int, int> at) {
  const int byte = at.second * BytesOf(place.type);
  return place.begin +
         (at.first * place.repeat + byte / kBlock * place.block) * kBlock +
         byte % kBlock;
}

using Image = std::vector<char>;

// Small numbers, exact in every type; a power of two each, for inexact
// operations; or none below 1.
enum class Data { kSmall, kPowers, kPositive };

// What a call is: how it is issued, and what it does to memory.
struct Job {
  std::string name;
  Setting setting;
  std::function<void()> issue;
  std::function<void(Image*)> plain;  // none: it is refused, and
  std::vector<std::string> words;     // what is said has these
  Data data = Data::kSmall;
  bool cube = false;  // on an AIC, in L1
};
inline std::vector<Job> jobs;

template <typename T>
T Scalar() {
  char bytes[8];
  Encode(bytes, kType<T>, 3);
  return Got<T>(bytes);
}

// -- A call as a job.

template <typename T>
LocalTensor<T> Local(int begin, int count = 1024) {
  return {TPosition::VECCALC, static_cast<uint32_t>(begin),
          static_cast<uint32_t>(count)};
}

inline void AddJob(const std::string& name, Type type,
                   std::function<void()> issue,
                   std::function<void(Image*)> plain,
                   std::vector<std::string> refused = {}) {
  Job job{name, {}, std::move(issue), std::move(plain), std::move(refused)};
  for (int i = 0; i < 3; ++i) job.setting.at.push_back({type, i * kRegion});
  jobs.push_back(job);
}

// What is issued, and words of why it is refused.
using Refused = std::pair<std::function<void()>, std::vector<std::string>>;

inline void AddRefused(const std::string& name, Type type,
                       const std::vector<Refused>& all) {
  for (const auto& [issue, words] : all) {
    AddJob(name, type, issue, nullptr, words);
  }
}

// -- Moves: an image of global memory lies behind that of the chip.

inline char* other;  // its begin

template <typename T>
GlobalTensor<T> Global(int begin) {
  GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<T*>(other + begin));
  return tensor;
}

template <typename T>
LocalTensor<T> OnChip(bool cube, int begin) {
  return {cube ? TPosition::A1 : TPosition::VECIN, static_cast<uint32_t>(begin),
          4096};
}

}  // namespace twin_calls

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_CALL_JOBS_TESTING_H_
