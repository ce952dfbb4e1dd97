// Calls that compute lane by lane: under each form of mask, and with one rule
// broken.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_LANE_CALLS_TESTING_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_LANE_CALLS_TESTING_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "backend_ascend/twin/instructions/call_jobs_testing.h"

namespace twin_calls {

struct Lanewise {
  std::string name;
  std::vector<Type> types;  // dst, then sources
  std::function<void(const Setting&)> issue;
  std::function<double(double, double, double)> plain;  // of src0, src1, dst
  bool by_count = true;
  bool accumulates = false;
  Data data = Data::kSmall;
};
inline std::vector<Lanewise> lanewise;

inline int WidestOf(const std::vector<Type>& types) {
  int widest = 1;
  for (const Type type : types) widest = std::max(widest, BytesOf(type));
  return widest;
}

inline void DrawMask(Setting* s) {
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
inline int ExtentOf(const Setting& s, const Place& place, int blocks) {
  const int repeats = s.form == Form::kCount || s.form == Form::kCounter
                          ? static_cast<int>((s.count + s.lanes - 1) / s.lanes)
                          : static_cast<int>(s.repeat);
  return (repeats - 1) * place.repeat + (blocks - 1) * place.block + 1;
}

// Legal by construction: apart, or dst in place of src0.
inline Setting Draw(const std::vector<Type>& types, Form form) {
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

inline void Apply(const Lanewise& call, const Setting& s, Image* image) {
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

inline void AddCall(const Lanewise& call, const Setting& s,
                    std::vector<std::string> refused = {}) {
  Job job{call.name, s, [call, s] { call.issue(s); }, nullptr, refused};
  job.data = call.data;
  if (refused.empty()) {
    job.plain = [call, s](Image* image) { Apply(call, s, image); };
  }
  jobs.push_back(job);
}

// One rule of a legal call broken.
inline void AddBroken(const Lanewise& call) {
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

inline void AddLegal(const Lanewise& call, int each) {
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
inline double Rounded(RoundMode mode, double a) {
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

inline void ListLanewise() {
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

}  // namespace twin_calls

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_LANE_CALLS_TESTING_H_
