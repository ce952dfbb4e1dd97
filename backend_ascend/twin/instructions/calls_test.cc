// Calls on the engine, by the thousand: each takes its operands from UB (L1 on
// an AIC), at offsets, strides, repeats and masks that its page allows, and
// what is in memory afterwards is what plain C++ makes of it, byte for byte; or
// one rule is broken, and what is said names the operand and the rule. Prints
// how many were tried, and what does not hold.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend_ascend/twin/engine/launch.h"
#include "kernel_operator.h"

namespace {

using namespace AscendC;  // NOLINT: a program of its own
using ascend_twin::Type;

constexpr int kRegion = 24 << 10;  // bytes of an operand, and
constexpr int kImage = 3 * kRegion;
constexpr int kBlock = 32;
constexpr int kRegionBlocks = kRegion / kBlock;

std::mt19937 random_bits{22};

int Pick(int low, int high) {
  return low + static_cast<int>(random_bits() % (high - low + 1));
}
// Parameters of calls are this narrow.
uint8_t U8(int x) { return static_cast<uint8_t>(x); }
uint16_t U16(int x) { return static_cast<uint16_t>(x); }
template <typename T>
T PickOf(std::initializer_list<T> choices) {
  return choices.begin()[random_bits() % choices.size()];
}

// -- Numbers.

template <typename T>
constexpr Type kType = ascend_twin::TypeOf(static_cast<T*>(nullptr));

int BytesOf(Type type) { return static_cast<int>(ascend_twin::SizeOf(type)); }

bool IsReal(Type type) {
  return type == Type::kFloat || type == Type::kHalf || type == Type::kBf16;
}

// Nearest even; what is encoded here is far from overflow.
uint16_t HalfOf(double x) {
  int exponent;
  std::frexp(x == 0 ? 0x1p-24 : x, &exponent);
  const double quantum = std::ldexp(1.0, std::max(exponent - 1, -14) - 10);
  const auto size = static_cast<int>(std::nearbyint(std::fabs(x) / quantum));
  const int sign = std::signbit(x) ? 0x8000 : 0;
  return static_cast<uint16_t>(sign + ((std::ilogb(quantum) + 24) << 10) +
                               size);
}
double OfHalf(uint16_t bits) {
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

void Encode(char* at, Type type, double x) {
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

double Decode(const char* at, Type type) {
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
std::vector<std::pair<int, int>> Active(const Setting& s) {
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

int ByteOf(const Place& place, std::pair<int, int> at) {
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
std::vector<Job> jobs;

// -- Lane by lane.

struct Lanewise {
  std::string name;
  std::vector<Type> types;  // dst, then sources
  std::function<void(const Setting&)> issue;
  std::function<double(double, double, double)> plain;  // of src0, src1, dst
  bool by_count = true;
  bool accumulates = false;
  Data data = Data::kSmall;
};
std::vector<Lanewise> lanewise;

int WidestOf(const std::vector<Type>& types) {
  int widest = 1;
  for (const Type type : types) widest = std::max(widest, BytesOf(type));
  return widest;
}

void DrawMask(Setting* s) {
  const int lanes = s->lanes;
  const bool wide = lanes > 64;
  const uint64_t low = lanes < 64 ? (uint64_t{1} << lanes) - 1 : ~uint64_t{0};
  if (s->form == Form::kCount || s->form == Form::kCounter) {
    s->count = PickOf(
        {1, 3, lanes - 1, lanes, lanes + 1, 2 * lanes + 5, Pick(1, 4 * lanes)});
  } else {
    s->count = PickOf({1, 5, lanes - 1, lanes, lanes + 7, Pick(1, lanes)});
  }
  const int first = Pick(1, lanes - 1);
  const uint64_t random = uint64_t{random_bits()} << 32 | random_bits();
  const uint64_t one[2] = {first < 64 ? uint64_t{1} << first : 0,
                           first < 64 ? 0 : uint64_t{1} << (first - 64)};
  switch (Pick(0, 4)) {
    case 0:  // one lane, never the first
      s->bits[0] = one[0], s->bits[1] = one[1];
      break;
    case 1:  // odd lanes
      s->bits[0] = s->bits[1] = 0xAAAAAAAAAAAAAAAAull;
      break;
    case 2:  // from the middle of a block
      s->bits[0] = ~uint64_t{0} << 5, s->bits[1] = 0x00FF00FFull;
      break;
    case 3:
      s->bits[0] = random, s->bits[1] = ~random;
      break;
    default:  // the upper half alone
      s->bits[0] = wide ? 0 : ~uint64_t{0} << (lanes / 2);
      s->bits[1] = ~uint64_t{0};
  }
  s->bits[0] &= low;
  if (!wide) s->bits[1] = 0;
  if (s->bits[0] == 0 && s->bits[1] == 0) s->bits[0] = 2;
}

// Blocks of an operand from its begin to its end.
int ExtentOf(const Setting& s, const Place& place, int blocks) {
  const int repeats = s.form == Form::kCount || s.form == Form::kCounter
                          ? static_cast<int>((s.count + s.lanes - 1) / s.lanes)
                          : static_cast<int>(s.repeat);
  return (repeats - 1) * place.repeat + (blocks - 1) * place.block + 1;
}

// Legal by construction: apart, or dst in place of src0.
Setting Draw(const std::vector<Type>& types, Form form) {
  Setting s;
  s.form = form;
  const int widest = WidestOf(types);
  s.lanes = 256 / widest;
  s.repeat = PickOf({1, 2, 3, 7, 16, 60, 255});
  for (size_t i = 0; i < types.size(); ++i) {
    const int blocks = 8 * BytesOf(types[i]) / widest;
    Place place{types[i], static_cast<int>(i) * kRegion + Pick(0, 5) * kBlock};
    place.block = i > 0 ? PickOf({0, 1, 1, 1, 2, 3}) : PickOf({1, 1, 1, 2, 3});
    place.repeat =
        (place.block == 0 ? 1 : place.block) * blocks + PickOf({0, 0, 0, 1, 3});
    if (i > 0 && Pick(0, 6) == 0) place.repeat = 0;
    if (form == Form::kCount) place.block = 1, place.repeat = blocks;
    s.at.push_back(place);
  }
  DrawMask(&s);
  const bool same = types.size() > 1 && BytesOf(types[0]) == BytesOf(types[1]);
  if (same && Pick(0, 5) == 0) {
    const Type type = s.at[1].type;
    s.at[1] = s.at[0];
    s.at[1].type = type;
  }
  for (const Place& place : s.at) {
    const int blocks = 8 * BytesOf(place.type) / widest;
    while (ExtentOf(s, place, blocks) > kRegionBlocks - 6) {
      s.repeat = (s.repeat + 1) / 2;
      s.count = (s.count + 1) / 2;
    }
  }
  return s;
}

void Apply(const Lanewise& call, const Setting& s, Image* image) {
  char* const bytes = image->data();
  for (const auto& at : Active(s)) {
    char* const to = bytes + ByteOf(s.at[0], at);
    double values[2] = {};
    for (size_t i = 1; i < s.at.size(); ++i) {
      values[i - 1] = Decode(bytes + ByteOf(s.at[i], at), s.at[i].type);
    }
    const double was = Decode(to, s.at[0].type);
    Encode(to, s.at[0].type, call.plain(values[0], values[1], was));
  }
}

void AddCall(const Lanewise& call, const Setting& s,
             std::vector<std::string> refused = {}) {
  Job job{call.name, s, [call, s] { call.issue(s); }, nullptr, refused};
  job.data = call.data;
  if (refused.empty()) {
    job.plain = [call, s](Image* image) { Apply(call, s, image); };
  }
  jobs.push_back(job);
}

// One rule of a legal call broken.
void AddBroken(const Lanewise& call) {
  const auto bent = [&](Form form, auto bend, std::vector<std::string> words) {
    Setting s = Draw(call.types, form);
    bend(&s);
    AddCall(call, s, words);
  };
  const char* const names[2][3] = {{"dst", "src", ""}, {"dst", "src0", "src1"}};
  for (size_t i = 0; i < call.types.size(); ++i) {
    const std::string name = names[call.types.size() > 2][i];
    for (const int off : {2, 8, 16, 30}) {
      bent(call.by_count ? kForms[off % 3] : Form::kBits,
           [&](Setting* s) { s->at[i].begin += off; },
           {name + ":", "a multiple of 32 B"});
    }
  }
  bent(Form::kBits, [](Setting* s) { s->repeat = 256; },
       {"repeatTime:", "0 to 255"});
  bent(Form::kContiguous, [](Setting* s) { s->count = -1; },
       {"mask:", "0 or more"});
  bent(Form::kBits, [](Setting* s) { s->at[0].block = 0, s->bits[0] = 0xFFFF; },
       {"dstBlkStride:", "expected 1 or more"});
  if (WidestOf(call.types) >= 4) {
    bent(Form::kBits, [](Setting* s) { s->bits[1] = 4; },
         {"mask[1]:", "expected 0"});
  }
  if (call.types.size() < 2 ||
      BytesOf(call.types[0]) != BytesOf(call.types[1])) {
    return;
  }
  const auto overlapping = [&](int dst, int src, std::string what,
                               const char* rule) {
    bent(Form::kContiguous,
         [=](Setting* s) {
           s->at[0].block = s->at[1].block = 1;
           s->at[0].repeat = s->at[1].repeat = 8;
           s->at[0].begin = s->at[0].begin / kRegion * kRegion + dst;
           s->at[1].begin = s->at[0].begin - dst + src;
           s->count = s->lanes, s->repeat = 2;
         },
         {what, rule});
  };
  overlapping(0, kBlock, "dst and src", "the same bytes or none in common");
  overlapping(256, 0, "dst:", "no source of a later repeat");
}

void AddLegal(const Lanewise& call, int each) {
  for (const Form form : kForms) {
    if (form == Form::kCount && !call.by_count) continue;
    if (form == Form::kCounter && call.name == "Copy") continue;
    for (int i = 0; i < each; ++i) AddCall(call, Draw(call.types, form));
  }
  if (!call.accumulates) return;
  // Sums over repeats: dst stays, or src1 does.
  for (const int stays : {0, 2}) {
    Setting s = Draw(call.types, Form::kContiguous);
    s.repeat = 3;
    s.count = s.lanes;
    s.at[1].begin = kRegion, s.at[1].block = 1, s.at[1].repeat = 8;
    s.at[0].block = 1, s.at[0].repeat = 8;
    s.at[2] = s.at[0];
    s.at[stays].repeat = 0;
    if (stays == 0) s.at[2].repeat = 0;
    AddCall(call, s);
  }
}

// TEMPLATE: arguments that come before isSetMask.  EXPR: of a, b and c, the
// element of dst as it was.
#define BINARY(NAME, T, U, EXPR, ...)                                       \
  lanewise.push_back(                                                       \
      {#NAME,                                                               \
       {kType<T>, kType<U>, kType<U>},                                      \
       [](const Setting& s) {                                               \
         const auto d = s.Tensor<T>(0);                                     \
         const auto x = s.Tensor<U>(1);                                     \
         const auto y = s.Tensor<U>(2);                                     \
         const auto counted = [&] { NAME(d, x, y, int32_t(s.count)); };     \
         const auto masked = [&](auto set, auto mask) {                     \
           NAME<__VA_ARGS__, decltype(set)::value>(d, x, y, mask, s.repeat, \
                                                   s.Binary());             \
         };                                                                 \
         Give(s, counted, masked);                                          \
       },                                                                   \
       []([[maybe_unused]] double a, [[maybe_unused]] double b,             \
          [[maybe_unused]] double c) -> double { return EXPR; }})
#define UNARY(NAME, T, U, SCALAR, EXPR, ...)                                \
  lanewise.push_back(                                                       \
      {#NAME,                                                               \
       {kType<T>, kType<U>},                                                \
       [](const Setting& s) {                                               \
         const auto d = s.Tensor<T>(0);                                     \
         const auto x = s.Tensor<U>(1);                                     \
         const auto counted = [&] { NAME(d, x SCALAR, int32_t(s.count)); }; \
         const auto masked = [&](auto set, auto mask) {                     \
           NAME<__VA_ARGS__, decltype(set)::value>(d, x SCALAR, mask,       \
                                                   s.repeat, s.Unary());    \
         };                                                                 \
         Give(s, counted, masked);                                          \
       },                                                                   \
       []([[maybe_unused]] double a, double,                                \
          [[maybe_unused]] double c) -> double { return EXPR; }})
#define NONE
#define SCALED(U) , Scalar<U>()

template <typename T>
T Scalar() {
  char bytes[8];
  Encode(bytes, kType<T>, 3);
  return Got<T>(bytes);
}

template <typename T>
void AddArithmetic() {
  BINARY(Add, T, T, a + b, T);
  BINARY(Sub, T, T, a - b, T);
  BINARY(Mul, T, T, a * b, T);
  BINARY(Max, T, T, a > b ? a : b, T);
  BINARY(Min, T, T, a < b ? a : b, T);
  if (kType<T> != Type::kInt16) {
    for (size_t i = lanewise.size() - 5; i < lanewise.size(); ++i) {
      lanewise[i].accumulates = true;
    }
  }
  UNARY(Adds, T, T, SCALED(T), a + 3, T);
  UNARY(Muls, T, T, SCALED(T), a * 3, T);
  UNARY(Maxs, T, T, SCALED(T), a > 3 ? a : 3, T);
  UNARY(Mins, T, T, SCALED(T), a < 3 ? a : 3, T);
}

template <typename T>
void AddReal() {
  BINARY(Div, T, T, a / b, T);
  lanewise.back().data = Data::kPowers;
  BINARY(FusedMulAdd, T, T, a * c + b, T);
  BINARY(MulAddDst, T, T, a * b + c, T, T);
  UNARY(Axpy, T, T, SCALED(T), 3 * a + c, T, T);
  UNARY(Abs, T, T, NONE, std::fabs(a), T);
  UNARY(Exp, T, T, NONE, std::exp(a), T);
  UNARY(Reciprocal, T, T, NONE, 1 / a, T);
  lanewise.back().data = Data::kPowers;
  const size_t first = lanewise.size();
  UNARY(Ln, T, T, NONE, std::log(a), T);
  UNARY(Sqrt, T, T, NONE, std::sqrt(a), T);
  UNARY(Rsqrt, T, T, NONE, 1 / std::sqrt(a), T);
  for (size_t i = first; i < lanewise.size(); ++i) {
    lanewise[i].data = Data::kPositive;
  }
}

template <typename T>
void AddMoved() {
  Lanewise fill{"Duplicate",
                {kType<T>},
                [](const Setting& s) {
                  const auto d = s.Tensor<T>(0);
                  const auto counted = [&] {
                    Duplicate(d, Scalar<T>(), int32_t(s.count));
                  };
                  const auto masked = [&](auto set, auto mask) {
                    Duplicate<T, decltype(set)::value>(
                        d, Scalar<T>(), mask, s.repeat, U16(s.at[0].block),
                        U8(s.at[0].repeat));
                  };
                  Give(s, counted, masked);
                },
                [](double, double, double) { return 3.0; }};
  lanewise.push_back(fill);
  Lanewise copy{"Copy",
                {kType<T>, kType<T>},
                [](const Setting& s) {
                  const auto masked = [&](auto set, auto mask) {
                    Copy<T, decltype(set)::value>(
                        s.Tensor<T>(0), s.Tensor<T>(1), mask, s.repeat,
                        {U16(s.at[0].block), U16(s.at[1].block),
                         U16(s.at[0].repeat), U16(s.at[1].repeat)});
                  };
                  Give(s, [] {}, masked);
                },
                [](double a, double, double) { return a; }};
  copy.by_count = false;
  lanewise.push_back(copy);
}

// To an integer, as a mode rounds; what is real stays as it is.
double Rounded(RoundMode mode, double a) {
  switch (mode) {
    case RoundMode::CAST_FLOOR:
      return std::floor(a);
    case RoundMode::CAST_CEIL:
      return std::ceil(a);
    case RoundMode::CAST_ROUND:
      return std::round(a);
    case RoundMode::CAST_TRUNC:
      return std::trunc(a);
    default:
      return std::nearbyint(a);
  }
}

template <typename T, typename U>
void AddCast(RoundMode mode) {
  const bool whole = !IsReal(kType<T>) || kType<T> == kType<U>;
  lanewise.push_back(
      {"Cast",
       {kType<T>, kType<U>},
       [mode](const Setting& s) {
         const auto d = s.Tensor<T>(0);
         const auto x = s.Tensor<U>(1);
         const auto counted = [&] { Cast(d, x, mode, uint32_t(s.count)); };
         const auto masked = [&](auto set, auto mask) {
           Cast<T, U, decltype(set)::value>(d, x, mode, mask, s.repeat,
                                            s.Unary());
         };
         Give(s, counted, masked);
       },
       [=](double a, double, double) { return whole ? Rounded(mode, a) : a; }});
  // Nothing under zero: an unsigned type has none.
  if (kType<T> == Type::kUint8) lanewise.back().data = Data::kPositive;
}

// From one type to others, without rounding, or in each way to round.
template <typename U, typename... T>
void AddExact() {
  (AddCast<T, U>(RoundMode::CAST_NONE), ...);
}
template <typename U, typename... T>
void AddRounded() {
  for (const auto mode :
       {RoundMode::CAST_RINT, RoundMode::CAST_FLOOR, RoundMode::CAST_CEIL,
        RoundMode::CAST_ROUND, RoundMode::CAST_TRUNC}) {
    (AddCast<T, U>(mode), ...);
  }
}

void ListLanewise() {
  AddArithmetic<float>();
  AddArithmetic<half>();
  AddArithmetic<int16_t>();
  AddArithmetic<int32_t>();
  AddReal<float>();
  AddReal<half>();
  BINARY(MulAddDst, float, half, a* b + c, float, half);
  UNARY(Axpy, float, half, SCALED(half), 3 * a + c, float, half);
  AddMoved<int16_t>();
  AddMoved<uint16_t>();
  AddMoved<half>();
  AddMoved<bfloat16_t>();
  AddMoved<int32_t>();
  AddMoved<uint32_t>();
  AddMoved<float>();
  AddExact<int8_t, half>();
  AddExact<uint8_t, half>();
  AddExact<int16_t, half, float>();
  AddExact<half, float>();
  AddExact<bfloat16_t, float>();
  AddExact<int32_t, int16_t, float, int64_t>();
  AddExact<int64_t, int32_t>();
  AddRounded<half, int8_t, uint8_t, int16_t, int32_t>();
  AddRounded<bfloat16_t, int32_t>();
  AddRounded<float, int16_t, half, bfloat16_t, int32_t, float, int64_t>();
  AddRounded<int64_t, float>();
}

// -- Reductions.

struct Reduction {
  std::string name;
  ReduceType op;
  bool blocks;  // a result of each block
  ReduceOrder order = ReduceOrder::ORDER_ONLY_VALUE;
};

template <typename T, ReduceType op>
void IssueReduction(const Reduction& how, const Setting& s) {
  const auto d = s.Tensor<T>(0);
  const auto x = s.Tensor<T>(1);
  const int to = s.at[0].repeat, block = s.at[1].block, next = s.at[1].repeat;
  const auto masked = [&](auto set, auto mask) {
    constexpr bool kSet = decltype(set)::value;
    const auto times = static_cast<int32_t>(s.repeat);
    if (how.name == "BlockReduceSum") {
      BlockReduceSum<T, kSet>(d, x, times, mask, to, block, next);
    } else if (how.name == "WholeReduceSum") {
      WholeReduceSum<T, kSet>(d, x, mask, times, to, block, next);
    } else if (how.blocks) {
      ReduceDataBlock<op, T, T, kSet>(d, x, mask, times, to, block, next);
    } else {
      ReduceRepeat<op, T, T, kSet>(d, x, mask, times, to, block, next,
                                   how.order);
    }
  };
  Give(s, [] {}, masked);
}

// Bytes of what a repeat gives.
int ResultBytes(const Reduction& how, int size) {
  if (how.blocks) return 8 * size;
  if (how.order == ReduceOrder::ORDER_ONLY_VALUE) return size;
  return how.order == ReduceOrder::ORDER_ONLY_INDEX ? 4 : 2 * size;
}

void Reduce(const Reduction& how, const Setting& s, Image* image) {
  const Type type = s.at[1].type;
  const int size = BytesOf(type);
  const int a_block = kBlock / size;
  // Lanes and their values, by repeat and block.
  std::map<std::pair<int, int>, std::vector<std::pair<int, double>>> groups;
  for (const auto& at : Active(s)) {
    const int block = how.blocks ? at.second / a_block : 0;
    groups[{at.first, block}].push_back(
        {at.second, Decode(image->data() + ByteOf(s.at[1], at), type)});
  }
  for (const auto& [group, lanes] : groups) {
    double sum = 0;
    auto best = lanes[0];
    for (const auto& one : lanes) {
      sum += one.second;
      if (how.op == ReduceType::MAX ? one.second > best.second
                                    : one.second < best.second) {
        best = one;
      }
    }
    char* const to = image->data() + s.at[0].begin +
                     group.first * s.at[0].repeat * ResultBytes(how, size) +
                     group.second * size;
    const double value = how.op == ReduceType::SUM ? sum : best.second;
    const auto index = static_cast<uint32_t>(best.first);
    const bool alone = how.order == ReduceOrder::ORDER_ONLY_INDEX;
    const bool second = how.order == ReduceOrder::ORDER_VALUE_INDEX;
    if (!alone) {
      const bool after = how.order == ReduceOrder::ORDER_INDEX_VALUE;
      Encode(to + (after ? size : 0), type, value);
    }
    if (how.order != ReduceOrder::ORDER_ONLY_VALUE) {
      std::memcpy(to + (second ? size : 0), &index, alone ? 4 : size);
    }
  }
}

template <typename T, ReduceType op>
void AddReduction(const Reduction& how, int each) {
  const int size = sizeof(T);
  const int bytes = ResultBytes(how, size);
  const auto draw = [&](Form form) {
    Setting s = Draw({kType<T>, kType<T>}, form);
    s.at[1].begin = kRegion + Pick(0, 5) * kBlock;
    s.at[0].begin = Pick(0, 9) * bytes;
    s.at[0].repeat = PickOf({1, 1, 2, 5});
    s.repeat = std::min<int64_t>(s.repeat, 60);
    return s;
  };
  const auto add = [&](const Setting& s, std::vector<std::string> refused) {
    Job job{how.name, s, [=] { IssueReduction<T, op>(how, s); }, nullptr,
            refused};
    if (refused.empty()) job.plain = [=](Image* m) { Reduce(how, s, m); };
    jobs.push_back(job);
  };
  for (const Form form : kForms) {
    if (form == Form::kCount) continue;
    for (int i = 0; i < each; ++i) add(draw(form), {});
  }
  const auto bent = [&](auto bend, std::vector<std::string> words) {
    Setting s = draw(Form::kBits);
    bend(&s);
    add(s, words);
  };
  const std::string rule = "a multiple of " + std::to_string(bytes) + " B";
  bent([&](Setting* s) { s->at[0].begin += bytes / 2; }, {"dst:", rule});
  bent([](Setting* s) { s->at[1].begin += 16; }, {"src:", "of 32 B"});
  bent([](Setting* s) { s->repeat = 256; }, {"repeatTime:", "0 to 255"});
  bent([](Setting* s) { s->at[1].repeat = 65536; },
       {"srcRepStride:", "0 to 65535"});
  bent([](Setting* s) { s->at[0].repeat = -1; },
       {"dstRepStride:", "0 to 65535"});
  // A repeat writes where it reads, or where the next one does.
  const auto same = [](Setting* s) {
    s->at[0].begin = s->at[1].begin;
    s->at[0].repeat = 1, s->at[1].block = 1, s->at[1].repeat = 8;
    s->bits[0] = 255, s->bits[1] = 0, s->repeat = 3;
  };
  bent(same, {});
  bent([&](Setting* s) { same(s), s->at[0].begin += ascend_twin::kRepeat; },
       {"dst:", "no source of a later repeat"});
}

template <typename T, ReduceType op>
void AddOrders(int each) {
  AddReduction<T, op>({"ReduceDataBlock", op, true}, each);
  for (const auto order :
       {ReduceOrder::ORDER_VALUE_INDEX, ReduceOrder::ORDER_INDEX_VALUE,
        ReduceOrder::ORDER_ONLY_VALUE, ReduceOrder::ORDER_ONLY_INDEX}) {
    if (op == ReduceType::SUM && order != ReduceOrder::ORDER_ONLY_VALUE) {
      continue;
    }
    AddReduction<T, op>({"ReduceRepeat", op, false, order}, each);
  }
}

template <typename T>
void AddReductions(int each) {
  AddReduction<T, ReduceType::SUM>({"BlockReduceSum", ReduceType::SUM, true},
                                   each);
  AddReduction<T, ReduceType::SUM>({"WholeReduceSum", ReduceType::SUM, false},
                                   each);
  AddOrders<T, ReduceType::SUM>(each);
  AddOrders<T, ReduceType::MAX>(each);
  AddOrders<T, ReduceType::MIN>(each);
  for (int i = 0; i < 5 * each; ++i) {
    Setting s = Draw({kType<T>, kType<T>, kType<T>}, Form::kCount);
    s.at[1].begin = kRegion, s.at[1].repeat = 8;
    s.at[0].begin = Pick(0, 30) * static_cast<int>(sizeof(T));
    const bool wrong = i % 5 == 4;
    if (wrong) s.at[0].begin += 1;
    Job job{"ReduceSum",
            s,
            [s] {
              ReduceSum(s.Tensor<T>(0), s.Tensor<T>(1), s.Tensor<T>(2),
                        int32_t(s.count));
            },
            nullptr,
            {}};
    if (wrong) {
      job.words = {"dst:", "a multiple of " + std::to_string(sizeof(T)) + " B"};
    } else {
      job.plain = [s](Image* image) {
        double sum = 0;
        for (const auto& at : Active(s)) {
          sum += Decode(image->data() + ByteOf(s.at[1], at), kType<T>);
        }
        Encode(image->data() + s.at[0].begin, kType<T>, sum);
      };
    }
    jobs.push_back(job);
  }
}

// -- Calls that have forms of their own.

template <typename T>
LocalTensor<T> Local(int begin, int count = 1024) {
  return {TPosition::VECCALC, static_cast<uint32_t>(begin),
          static_cast<uint32_t>(count)};
}

void AddJob(const std::string& name, Type type, std::function<void()> issue,
            std::function<void(Image*)> plain,
            std::vector<std::string> refused = {}) {
  Job job{name, {}, std::move(issue), std::move(plain), std::move(refused)};
  for (int i = 0; i < 3; ++i) job.setting.at.push_back({type, i * kRegion});
  jobs.push_back(job);
}

// What is issued, and words of why it is refused.
using Refused = std::pair<std::function<void()>, std::vector<std::string>>;

void AddRefused(const std::string& name, Type type,
                const std::vector<Refused>& all) {
  for (const auto& [issue, words] : all) {
    AddJob(name, type, issue, nullptr, words);
  }
}

template <typename T>
void AddBroadcasts(int each) {
  constexpr int kSize = sizeof(T);
  for (int i = 0; i < 2 * each; ++i) {
    const int to = Pick(0, 9) * kBlock;
    const int from = kRegion + Pick(0, 9) * kBlock;
    const int repeat = Pick(0, 12);
    const int block = Pick(1, 3);
    const int next = PickOf({8 * block, 8 * block + 1, 0});
    const auto issue = [=](int dst, int src, int times, int stride) {
      return [=] {
        Brcb(Local<T>(dst), Local<T>(src), times,
             BrcbRepeatParams(U16(stride), U16(next)));
      };
    };
    AddJob("Brcb", kType<T>, issue(to, from, repeat, block), [=](Image* m) {
      for (int k = 0; k < 8 * repeat; ++k) {
        char* const at = m->data() + to + (k / 8 * next + k % 8 * block) * 32;
        for (int b = 0; b < kBlock; ++b) {
          at[b] = (*m)[from + k * kSize + b % kSize];
        }
      }
    });
    if (i > 0) continue;
    AddRefused("Brcb", kType<T>,
               {{issue(to, from + 16, 1, 1), {"src:", "of 32 B"}},
                {issue(to + 4, from, 1, 1), {"dst:", "of 32 B"}},
                {issue(to, to, 1, 1), {"dst and src:", "none in common"}},
                {issue(to, from, 1, 0), {"dstBlkStride:", "1 to 65535"}},
                {issue(to, from, 256, 1), {"repeatTime:", "0 to 255"}}});
  }
}

// SetMaskCount's number is of each repeat, here alone, and blocks go on.
template <typename T>
void AddCountedCopies(int each) {
  constexpr int kSize = sizeof(T);
  for (int i = 0; i < each; ++i) {
    const int to = Pick(0, 9) * kBlock;
    const int from = kRegion + Pick(0, 9) * kBlock;
    const int repeat = Pick(0, 4), count = Pick(1, 300);
    const int step = Pick(1, 2), gap = Pick(0, 3);
    const int blocks = (count * kSize + 31) / 32;
    const auto issue = [=](int longest) {
      return [=] {
        SetMaskCount();
        SetVectorMask<T, MaskMode::COUNTER>(count);
        Copy<T, false>(Local<T>(to), Local<T>(from), MASK_PLACEHOLDER, repeat,
                       {1, U16(step), U16(blocks), U16(longest)});
        SetMaskNorm();
        ResetMask();
      };
    };
    AddJob("Copy", kType<T>, issue(gap), [=](Image* m) {
      for (int k = 0; k < repeat * count; ++k) {
        const int byte = k % count * kSize;
        std::memcpy(m->data() + to + k / count * blocks * 32 + byte,
                    m->data() + from +
                        (k / count * gap + byte / 32 * step) * 32 + byte % 32,
                    kSize);
      }
    });
    if (i > 0) continue;
    AddJob("Copy", kType<T>, issue(4096), nullptr,
           {"srcRepeatSize:", "0 to 4095"});
    AddJob("Copy", kType<T>,
           [] {
             SetMaskCount();
             SetVectorMask<T, MaskMode::COUNTER>(kBlock / kSize);
             Copy<T, false>(Local<T>(2 * kBlock), Local<T>(0), MASK_PLACEHOLDER,
                            3, {1, 1, 1, 1});
           },
           nullptr, {"dst: expected no source of a later repeat, got src"});
  }
}

template <typename T>
void AddGathers(int each) {
  constexpr int kSize = sizeof(T);
  for (int i = 0; i < each; ++i) {
    const int to = Pick(0, 9) * kBlock;
    const int from = kRegion + Pick(0, 9) * kBlock;
    const int list = 2 * kRegion + Pick(0, 9) * kBlock;
    const int count = Pick(0, 70);
    const uint32_t base = Pick(0, 5) * kSize;
    // The job's offsets are what the image has where the call finds them.
    const auto index = [](int k) { return uint32_t(k * 37 % 101) * kSize; };
    const auto issue = [=](int dst, int src, int offsets, uint32_t first) {
      return [=] {
        for (int k = 0; k < count; ++k) {
          Local<uint32_t>(list).SetValue(k, index(k));
        }
        SetFlag<HardEvent::S_V>(0);
        WaitFlag<HardEvent::S_V>(0);
        Gather(Local<T>(dst), Local<T>(src), Local<uint32_t>(offsets), first,
               uint32_t(count));
      };
    };
    AddJob("Gather", kType<T>, issue(to, from, list, base), [=](Image* m) {
      for (int k = 0; k < count; ++k) Put(m->data() + list + 4 * k, index(k));
      for (int k = 0; k < count; ++k) {
        std::memcpy(m->data() + to + k * kSize,
                    m->data() + from + base + index(k), kSize);
      }
    });
    if (i > 0) continue;
    AddRefused("Gather", kType<T>,
               {{issue(to + 8, from, list, base), {"dst:", "of 32 B"}},
                {issue(to, from + 2, list, base), {"src:", "of 32 B"}},
                {issue(to, from, list + 4, base), {"srcOffset:", "of 32 B"}},
                {issue(to, from, list, kSize + 1),
                 {"srcBaseOffset:", "a multiple of"}}});
  }
}

template <typename T>
void AddChoices(int each) {
  constexpr int kSize = sizeof(T);
  constexpr int kLanes = 256 / kSize;
  constexpr int kBits = 20 << 10;  // of dst's region
  for (int i = 0; i < each; ++i) {
    const int to = Pick(0, 9) * kBlock;
    const int a = kRegion + Pick(0, 9) * kBlock;
    const int b = 2 * kRegion + Pick(0, 9) * kBlock;
    const auto mode = static_cast<CMPMODE>(Pick(0, 5));
    const int count = Pick(0, 5) * kLanes;
    const auto compare = [=](int dst, int x, int y, int n) {
      return [=] {
        Compare(Local<uint8_t>(dst), Local<T>(x), Local<T>(y), mode,
                uint32_t(n));
      };
    };
    AddJob("Compare", kType<T>, compare(to, a, b, count), [=](Image* m) {
      for (int k = 0; k < count; ++k) {
        const double x = Decode(m->data() + a + k * kSize, kType<T>);
        const double y = Decode(m->data() + b + k * kSize, kType<T>);
        const bool holds[] = {x<y, x> y, x == y, x <= y, x >= y, x != y};
        char& byte = (*m)[to + k / 8];
        if (k % 8 == 0) byte = 0;
        byte |= static_cast<char>(holds[static_cast<int>(mode)] << (k % 8));
      }
    });
    const auto selmode = static_cast<SELMODE>(i % 3);
    const bool scalar = selmode == SELMODE::VSEL_TENSOR_SCALAR_MODE;
    const int chosen = Pick(0, 300);
    const auto select = [=](int dst, int bits, int x, int y, bool number) {
      return [=] {
        const auto with = [=](auto other) {
          Select(Local<T>(dst), Local<uint8_t>(bits), Local<T>(x), other,
                 selmode, uint32_t(chosen));
        };
        number ? with(Scalar<T>()) : with(Local<T>(y));
      };
    };
    AddJob("Select", kType<T>, select(to, kBits, a, b, scalar), [=](Image* m) {
      for (int k = 0; k < chosen; ++k) {
        const int bit = selmode == SELMODE::VSEL_CMPMASK_SPR ? k % kLanes : k;
        const bool first = (*m)[kBits + bit / 8] >> (bit % 8) & 1;
        char* const at = m->data() + to + k * kSize;
        if (!first && scalar) Encode(at, kType<T>, 3);
        if (!first && scalar) continue;
        std::memcpy(at, m->data() + (first ? a : b) + k * kSize, kSize);
      }
    });
    if (i > 2) continue;
    AddRefused(
        "Compare", kType<T>,
        {{compare(to + 8, a, b, kLanes), {"dst:", "of 32 B"}},
         {compare(to, a + 4, b, kLanes), {"src0:", "of 32 B"}},
         {compare(to, a, b + 4, kLanes), {"src1:", "of 32 B"}},
         {compare(to, a, b, kLanes + 1),
          {"bytes of count:", "a multiple of 256"}},
         {compare(a, a, b, kLanes), {"dst and src0:", "not published"}}});
    AddRefused("Select", kType<T>,
               {{select(to + 2, kBits, a, b, scalar), {"dst:", "of 32 B"}},
                {select(to, kBits + 1, a, b, scalar), {"selMask:", "of 32 B"}},
                {select(to, kBits, a + 16, b, scalar), {"src0:", "of 32 B"}},
                {select(to, kBits, a, b, !scalar),
                 {"src1:", scalar ? "a scalar" : "a tensor"}}});
  }
}

// -- Moves: an image of global memory lies behind that of the chip.

char* other;  // its begin

template <typename T>
GlobalTensor<T> Global(int begin) {
  GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<T*>(other + begin));
  return tensor;
}

void CopyRows(Image* m, int to, int from, int rows, int bytes, int to_pitch,
              int from_pitch) {
  for (int row = 0; row < rows; ++row) {
    std::memmove(m->data() + to + row * to_pitch,
                 m->data() + from + row * from_pitch, bytes);
  }
}

template <typename T>
LocalTensor<T> OnChip(bool cube, int begin) {
  return {cube ? TPosition::A1 : TPosition::VECIN, static_cast<uint32_t>(begin),
          4096};
}

template <typename T>
void AddMoves(bool cube, int each) {
  constexpr int kSize = sizeof(T);
  const auto add = [cube](const char* name, auto issue, auto plain,
                          std::vector<std::string> words = {}) {
    AddJob(name, kType<T>, issue, plain, words);
    jobs.back().cube = cube;
  };
  for (int i = 0; i < each; ++i) {
    const int on = Pick(0, 9) * kBlock;
    const int off = Pick(0, 40) * kSize;
    const int count = Pick(0, 200);
    const int kept = count * kSize / kBlock * kBlock;
    const int rows = Pick(0, 6), blocks = Pick(0, 5);
    const int gap = Pick(0, 3), more = Pick(0, 3);
    const DataCopyParams params(U16(rows), U16(blocks), U16(gap), U16(more));
    const auto copies = [&](const char* name, auto issue, int to, int from,
                            int count_of, int bytes, int to_pitch,
                            int from_pitch) {
      add(name, issue, [=](Image* m) {
        CopyRows(m, to, from, count_of, bytes, to_pitch, from_pitch);
      });
    };
    const int size = blocks * 32, to_pitch = size + more * 32;
    const int from_pitch = size + gap * 32;
    const auto chip = [=] { return OnChip<T>(cube, on); };
    copies(
        "DataCopy", [=] { DataCopy(chip(), Global<T>(off), uint32_t(count)); },
        on, kImage + off, 1, kept, 0, 0);
    copies(
        "DataCopy", [=] { DataCopy(Global<T>(off), chip(), uint32_t(count)); },
        kImage + off, on, 1, kept, 0, 0);
    copies(
        "DataCopy", [=] { DataCopy(chip(), Global<T>(off), params); }, on,
        kImage + off, rows, size, to_pitch, from_pitch);
    copies(
        "DataCopy", [=] { DataCopy(Global<T>(off), chip(), params); },
        kImage + off, on, rows, size, to_pitch, from_pitch);
    if (i % 4 == 0) {
      const int wrong = Pick(1, 31);
      add("DataCopy",
          [=] { DataCopy(OnChip<T>(cube, on + wrong), Global<T>(off), 64u); },
          nullptr, {"dst:", "of 32 B"});
      add("DataCopy",
          [=] { DataCopy(Global<T>(off), OnChip<T>(cube, on + wrong), 64u); },
          nullptr, {"src:", "of 32 B"});
    }
    if (cube) continue;
    copies(
        "DataCopy",
        [=] { DataCopy(chip(), OnChip<T>(cube, kRegion + on), params); }, on,
        kRegion + on, rows, size, to_pitch, from_pitch);
    const int bytes = Pick(0, 50) * kSize;
    const int left = Pick(0, 32 / kSize), right = Pick(0, 32 / kSize);
    const int row = (left * kSize + bytes + right * kSize + 31) / 32 * 32;
    add(
        "DataCopyPad",
        [=] {
          DataCopyPad(
              Local<T>(on), Global<T>(off),
              {U16(rows), uint32_t(bytes), uint32_t(gap), uint32_t(more), 0},
              {true, uint8_t(left), uint8_t(right), Scalar<T>()});
        },
        [=](Image* m) {
          for (int r = 0; r < rows && bytes > 0; ++r) {
            char* const at = m->data() + on + r * (row + more * 32);
            const char* const from =
                m->data() + kImage + off + r * (bytes + gap);
            for (int k = 0; k < row; k += kSize) {
              if (left + right > 0) {
                Encode(at + k, kType<T>, 3);
              } else {
                std::memcpy(at + k, from, kSize);
              }
            }
            std::memcpy(at + left * kSize, from, bytes);
          }
        });
    copies(
        "DataCopyPad",
        [=] {
          DataCopyPad(
              Global<T>(off), Local<T>(on),
              {U16(rows), uint32_t(bytes), uint32_t(gap), uint32_t(more), 0});
        },
        kImage + off, on, rows, bytes, bytes + more,
        (bytes + 31) / 32 * 32 + gap * 32);
    const auto pad = [=](int dst, uint32_t length, int before) {
      return [=] {
        DataCopyPad(Local<T>(dst), Global<T>(off), {1, length, 0, 0, 0},
                    {true, uint8_t(before), 0, Scalar<T>()});
      };
    };
    if (i % 4 > 0) continue;
    add("DataCopyPad", pad(on + 16, 32, 0), nullptr, {"dst:", "of 32 B"});
    add("DataCopyPad", pad(on, 32, 33), nullptr,
        {"bytes of leftPadding:", "0 to 32"});
    add("DataCopyPad", pad(on, 2097152, 0), nullptr,
        {"blockLen:", "0 to 2097151"});
    add("DataCopyPad",
        [=] {
          DataCopyPad(Global<T>(off), Local<T>(on + 8), {1, 32, 0, 0, 0});
        },
        nullptr, {"src:", "of 32 B"});
    if (kSize > 1) {
      add("DataCopyPad", pad(on, kSize + 1, 0), nullptr,
          {"blockLen:", "a multiple of"});
      add("DataCopy",
          [=] {
            DataCopy(Local<T>(on), Global<T>(0)[off / kSize],
                     DataCopyParams(4096, 1, 0, 0));
          },
          nullptr, {"blockCount:", "0 to 4095"});
    }
  }
}

template <typename T>
void AddAtomics(int each) {
  constexpr int kSize = sizeof(T);
  for (int i = 0; i < each; ++i) {
    const int on = Pick(0, 9) * kBlock;
    const int off = Pick(0, 40) * kSize;
    const int count = Pick(1, 60);
    AddJob(
        "SetAtomicAdd", kType<T>,
        [=] {
          SetAtomicAdd<T>();
          DataCopyPad(Global<T>(off), Local<T>(on),
                      {1, uint32_t(count * kSize), 0, 0, 0});
          DisableDmaAtomic();
        },
        [=](Image* m) {
          for (int k = 0; k < count; ++k) {
            char* const to = m->data() + kImage + off + k * kSize;
            Encode(to, kType<T>,
                   Decode(to, kType<T>) +
                       Decode(m->data() + on + k * kSize, kType<T>));
          }
        });
  }
}

template <typename T>
void AddFractals(int each) {
  constexpr int kSize = sizeof(T);
  constexpr int kC0 = kBlock / kSize;
  for (int i = 0; i < each; ++i) {
    const int on = Pick(0, 9) * kBlock;
    const int off = Pick(0, 40) * kSize;
    const int rows = Pick(0, 20), columns = Pick(0, 40);
    const int pitch = columns + Pick(1, 5);
    const int row_stride = Pick(1, 2);
    const int stride = std::max(1, rows * row_stride + Pick(0, 3));
    const auto issue = [=](int dst, int source_pitch, int c0_stride) {
      return [=] {
        DataCopy(
            OnChip<T>(true, dst), Global<T>(off),
            Nd2NzParams(1, U16(rows + (dst != on)), U16(columns + 1), 0,
                        U16(source_pitch), U16(c0_stride), U16(row_stride), 0));
      };
    };
    AddJob("DataCopy", kType<T>, issue(on, pitch, stride), [=](Image* m) {
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < (columns + kC0) / kC0 * kC0; ++c) {
          char* const to = m->data() + on +
                           (c / kC0 * stride + r * row_stride) * 32 +
                           c % kC0 * kSize;
          if (c > columns) {
            std::memset(to, 0, kSize);
          } else {
            std::memcpy(to, m->data() + kImage + off + (r * pitch + c) * kSize,
                        kSize);
          }
        }
      }
    });
    jobs.back().cube = true;
    if (i > 2) continue;
    AddJob("DataCopy", kType<T>, issue(on + 8, pitch, stride), nullptr,
           {"dst:", "of 32 B"});
    jobs.back().cube = true;
  }
}

// Of a bias of eight floats in L1, past what all other calls are given, 64
// bytes are moved: as many columns as it has may be read.
void AddBias(int columns, bool legal) {
  const auto issue = [columns] {
    const LocalTensor<float> bias(TPosition::C1, kImage, 16);
    const LocalTensor<float> table(TPosition::C2, 0, 16);
    const LocalTensor<half> a(TPosition::A2, 0, 256);
    const LocalTensor<half> b(TPosition::B2, 0, 256);
    LoadData2DParams fractal;
    fractal.repeatTimes = 1;
    DataCopy(bias, Global<float>(0), 8u);
    LoadData(a, OnChip<half>(true, 0), fractal);
    LoadData(b, OnChip<half>(true, 0), fractal);
    PipeBarrier<PIPE_ALL>();
    DataCopy(table, bias, DataCopyParams(1, 1, 0, 0));
    PipeBarrier<PIPE_ALL>();
    Mmad(LocalTensor<float>(TPosition::CO1, 0, 256), a, b, table,
         MmadParams(1, static_cast<uint16_t>(columns), 16, 0, false, true));
  };
  if (legal) {
    AddJob("Mmad", Type::kHalf, issue, [](Image*) {});
  } else {
    AddJob("pipe M", Type::kHalf, issue, nullptr,
           {"Mmad reads BiasTable [0x20, 0x24), which nobody has written"});
  }
  jobs.back().cube = true;
}

// How a fractal comes to L0, from two rows in L1 past what all other calls are
// given: nobody wrote the others.
using Load = void (*)(const LocalTensor<half>& to,
                      const LocalTensor<half>& from);
template <bool transposed>
void LoadFractal(const LocalTensor<half>& to, const LocalTensor<half>& from) {
  LoadData2DParams fractal;
  fractal.repeatTimes = 1;
  fractal.ifTranspose = transposed;
  LoadData(to, from, fractal);
}
void LoadSquare(const LocalTensor<half>& to, const LocalTensor<half>& from) {
  LoadDataWithTranspose(to, from, LoadData2dTransposeParams(0, 1, 0, 0, 0));
}
template <bool transposed>
void LoadImage(const LocalTensor<half>& to, const LocalTensor<half>& from) {
  LoadData3DParamsV2<half> image;
  image.l1H = 1;
  image.l1W = image.channelSize = image.kExtension = image.mExtension = 16;
  image.enTranspose = transposed;
  LoadData(to, from, image);
}

// They are A and give rows of C, or terms of its sums; or they are columns of
// B.  `words`: of a product that takes a third; empty: of two.
void AddUnwritten(Load load, char of, const std::string& words) {
  const auto count = static_cast<uint16_t>(words.empty() ? 2 : 3);
  const auto issue = [=] {
    const LocalTensor<half> two(TPosition::A1, kImage, 256);
    const LocalTensor<half> a(TPosition::A2, 0, 256), b(TPosition::B2, 0, 256);
    const LocalTensor<float> c(TPosition::CO1, 0, 256);
    const LocalTensor<float> out(TPosition::A1, kImage + 512, 256);
    const LocalTensor<half> whole = OnChip<half>(true, 0);
    DataCopy(two, Global<half>(0), 32u);
    PipeBarrier<PIPE_ALL>();
    (of == 'n' ? LoadFractal<false> : load)(a, of == 'n' ? whole : two);
    (of == 'n' ? load : LoadFractal<false>)(b, of == 'n' ? two : whole);
    PipeBarrier<PIPE_ALL>();
    MmadParams product(16, of == 'n' ? count : 16, of == 'k' ? count : 16, 0,
                       false, true);
    Mmad(c, a, b, product);
    PipeBarrier<PIPE_M>();
    product.cmatrixInitVal = false;
    Mmad(c, a, b, product);
    PipeBarrier<PIPE_ALL>();
    const FixpipeParamsV220 stored(16, of == 'm' ? count : 16, 16, 32, false);
    Fixpipe<float, float, CFG_NZ>(out, c, stored);
  };
  const bool sums = words.find("L0C") != std::string::npos;
  AddJob(sums            ? "pipe FIX"
         : words.empty() ? "Mmad"
                         : "pipe M",
         Type::kHalf, issue, nullptr, {words});
  if (words.empty()) jobs.back().plain = [](Image*) {};
  jobs.back().cube = true;
}

// A mask of which only the first bytes are written: of `count` choices those
// that have a bit there are right, others nobody wrote.
void AddMasked(SELMODE mode, int bytes, int count, const std::string& words) {
  const auto issue = [=] {
    const LocalTensor<uint16_t> written(TPosition::VECIN, kImage, 16);
    Duplicate(written, uint16_t{0xFFFF}, bytes / 2);
    PipeBarrier<PIPE_V>();
    Select(OnChip<float>(false, 0),
           LocalTensor<uint8_t>(TPosition::VECIN, kImage, 32),
           OnChip<float>(false, kRegion), OnChip<float>(false, 2 * kRegion),
           mode, uint32_t(count));
  };
  if (!words.empty()) {
    return AddJob("pipe MTE3", Type::kFloat, issue, nullptr, {words});
  }
  AddJob("Select", Type::kFloat, issue, [=](Image* m) {
    std::memcpy(m->data(), m->data() + kRegion, count * sizeof(float));
  });
}

void ListUnwritten() {
  const std::string nobody = ", which nobody has written";
  const auto tensors = SELMODE::VSEL_TENSOR_TENSOR_MODE;
  const auto repeats = SELMODE::VSEL_CMPMASK_SPR;
  AddMasked(tensors, 8, 64, "");
  AddMasked(tensors, 8, 72, "DataCopy reads UB [0x100, 0x120)" + nobody);
  AddMasked(repeats, 8, 128, "");
  AddMasked(repeats, 6, 128, "DataCopy reads UB [0xc0, 0x100)" + nobody);
  for (const Load load : {LoadFractal<false>, LoadImage<false>}) {
    AddUnwritten(load, 'm', "");
    AddUnwritten(load, 'm', "Fixpipe reads L0C [0x80, 0xc0)" + nobody);
  }
  for (const Load load : {LoadFractal<true>, LoadSquare, LoadImage<true>}) {
    AddUnwritten(load, 'k', "");
    AddUnwritten(load, 'k', "Fixpipe reads L0C [0x0, 0x400)" + nobody);
  }
  const auto gather = [] {
    const LocalTensor<uint32_t> offsets(TPosition::VECIN, kImage, 8);
    Gather(OnChip<float>(false, 0), OnChip<float>(false, kRegion), offsets, 0,
           8);
  };
  AddJob("pipe V", Type::kFloat, gather, nullptr,
         {"Gather reads UB [0x12000, 0x12020)" + nobody});
  AddUnwritten(LoadFractal<false>, 'n', "");
  AddUnwritten(LoadFractal<false>, 'n', "Mmad reads L0B [0x40, 0x60)" + nobody);
}

void List() {
  ListLanewise();
  for (const Lanewise& call : lanewise) {
    AddLegal(call, call.name == "Cast" ? 2 : 8);
    if (call.name != "Cast" || Pick(0, 2) == 0) AddBroken(call);
  }
  AddReductions<float>(4);
  AddReductions<half>(4);
  AddBroadcasts<float>(8);
  AddBroadcasts<bfloat16_t>(8);
  AddCountedCopies<int32_t>(16);
  AddCountedCopies<bfloat16_t>(16);
  AddGathers<float>(16);
  AddGathers<half>(16);
  AddChoices<float>(24);
  AddChoices<half>(24);
  AddMoves<float>(false, 16);
  AddMoves<half>(false, 16);
  AddMoves<int8_t>(false, 16);
  AddMoves<float>(true, 16);
  AddMoves<bfloat16_t>(true, 16);
  AddAtomics<float>(8);
  AddAtomics<half>(8);
  AddAtomics<int32_t>(8);
  AddAtomics<int16_t>(8);
  AddFractals<float>(24);
  AddFractals<bfloat16_t>(24);
  AddBias(8, true);
  AddBias(9, false);
  ListUnwritten();
}

// -- Runs them.

const Image& Pattern(Type type, Data data) {
  static Image patterns[16][3];
  Image& pattern = patterns[static_cast<int>(type)][static_cast<int>(data)];
  if (!pattern.empty()) return pattern;
  pattern.resize(kRegion + 1024);
  const int size = BytesOf(type);
  for (int i = 0; i * size < static_cast<int>(pattern.size()); ++i) {
    const int small = i * 7 % 33 - 16;
    if (data == Data::kPowers) {
      Encode(&pattern[i * size], type,
             std::ldexp(i % 2 ? 1.0 : -1.0, i * 5 % 7 - 3));
      continue;
    }
    const double x = data == Data::kPositive ? std::abs(small) + 1 : small;
    Encode(&pattern[i * size], type, IsReal(type) ? x / 4 : x);
  }
  return pattern;
}

Image ImageFor(const Job& job) {
  Image image(2 * kImage);
  for (int i = 0; i < 6; ++i) {
    const auto& at = job.setting.at;
    // What a call computes in place is the source's.
    const bool in_place = at.size() > 1 && at[0].begin == at[1].begin;
    const size_t place = i % 3 == 0 && in_place ? 1 : i % 3;
    const Type type = at[std::min(place, at.size() - 1)].type;
    std::memcpy(&image[i * kRegion], &Pattern(type, job.data)[i * 64], kRegion);
  }
  return image;
}

std::string Described(const Job& job) {
  std::string text = job.name + (job.cube ? ", cube" : "") + ", form " +
                     std::to_string(static_cast<int>(job.setting.form)) +
                     ", count " + std::to_string(job.setting.count) +
                     ", repeat " + std::to_string(job.setting.repeat);
  for (const Place& at : job.setting.at) {
    text += std::string(", ") + ascend_twin::NameOf(at.type) + " at " +
            std::to_string(at.begin) + " by " + std::to_string(at.block) +
            " and " + std::to_string(at.repeat);
  }
  return text;
}

ascend_twin::LaunchResult RunJob(const Job& job, int number, Image* image) {
  static Image after(kImage);
  other = image->data() + kImage;
  const auto at = [](char* p) { return reinterpret_cast<uint64_t>(p); };
  ascend_twin::LaunchSpec spec;
  spec.kernel = "calls";
  spec.type = job.cube ? ascend_twin::TaskType::kAicOnly
                       : ascend_twin::TaskType::kAivOnly;
  spec.mode = static_cast<ascend_twin::Mode>(number % 3);
  spec.globals = {
      {"image", at(image->data()), kImage, ascend_twin::GlobalKind::kConstant},
      {"other", at(other), kImage, ascend_twin::GlobalKind::kFilled},
      {"after", at(after.data()), kImage, ascend_twin::GlobalKind::kEmpty}};
  spec.entry = [&](int32_t) {
    InitSocState();
    GlobalTensor<float> from, to;
    from.SetGlobalBuffer(reinterpret_cast<float*>(image->data()));
    to.SetGlobalBuffer(reinterpret_cast<float*>(after.data()));
    const LocalTensor<float> all = OnChip<float>(job.cube, 0);
    DataCopy(all, from, kImage / 4u);
    PipeBarrier<PIPE_ALL>();
    job.issue();
    PipeBarrier<PIPE_ALL>();
    DataCopy(to, all, kImage / 4u);
    PipeBarrier<PIPE_ALL>();
  };
  const ascend_twin::LaunchResult result = ascend_twin::Launch(spec);
  std::memcpy(image->data(), after.data(), kImage);
  return result;
}

// What does not hold; empty if all does.
std::string WrongWith(const Job& job, int number) {
  Image image = ImageFor(job);
  Image want = image;
  const auto result = RunJob(job, number, &image);
  const std::string said = result.ok() ? "" : result.errors[0].text;
  if (!job.plain) {
    if (result.ok()) return "not refused";
    std::vector<std::string> words = job.words;
    words.push_back(job.name + ": ");
    for (const std::string& word : words) {
      if (said.find(word) == std::string::npos) {
        return "expected \"" + word + "\" in what is said, got " + said;
      }
    }
    return "";
  }
  if (!result.ok()) return said;
  job.plain(&want);
  for (size_t i = 0; i < image.size(); ++i) {
    if (image[i] == want[i]) continue;
    return "byte " + std::to_string(i) + ": expected " +
           std::to_string(want[i]) + ", got " + std::to_string(image[i]);
  }
  return "";
}

}  // namespace

int main() {
  List();
  int legal = 0, illegal = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const std::string wrong = WrongWith(jobs[i], static_cast<int>(i));
    ++(jobs[i].plain ? legal : illegal);
    if (wrong.empty()) continue;
    std::printf("%zu: %s: %s\n", i, Described(jobs[i]).c_str(), wrong.c_str());
  }
  std::printf("legal: %d\nillegal: %d\n", legal, illegal);
}
