#include "parity_tests/judge/limits/weights/products.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

// What is called from here is compiled twice, for wide registers as well.
// target_clones knows no pair of features.
#if defined(__x86_64__)
#define HPMOE_WIDE __attribute__((target("avx2,fma"), flatten))
#else
#define HPMOE_WIDE
#endif

namespace hpmoe_limits {
namespace {

constexpr int64_t kRegister = 32;  // bytes
template <class Number>
struct LanesOf;
template <>
struct LanesOf<double> {
  using Type = double __attribute__((vector_size(kRegister)));
};
template <>
struct LanesOf<float> {
  using Type = float __attribute__((vector_size(kRegister)));
};

// A tile: its rows and columns are accumulated in registers.
constexpr int64_t kTileRows = 3, kTileLanes = 4;
// Rows of weights in a panel, which stays in L1 cache.
constexpr int64_t kPanelDepth = 128;
template <class Number>
constexpr int64_t kTileColumns = kTileLanes * kRegister / sizeof(Number);

constexpr int32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

// Eight floats, and their bits.  They are passed by address: a function that is
// compiled for narrow registers has no other way to pass them.
constexpr int64_t kGroup = kRegister / sizeof(float);
using Floats = float __attribute__((vector_size(kRegister)));
using Words = uint32_t __attribute__((vector_size(kRegister)));
using Halves = uint16_t __attribute__((vector_size(kRegister / 2)));

void Load(const float* from, Floats* to) { std::memcpy(to, from, sizeof(*to)); }
void Load(const Bfloat16* from, Floats* to) {
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  const Words words = __builtin_convertvector(halves, Words) << 16;
  std::memcpy(to, &words, sizeof(words));
}

void Store(const Floats& values, float* to) {
  std::memcpy(to, &values, sizeof(values));
}
void Store(const Floats& values, double* to) {
  using Doubles = double __attribute__((vector_size(2 * kRegister)));
  const Doubles wide = __builtin_convertvector(values, Doubles);
  std::memcpy(to, &wide, sizeof(wide));
}

void TakeMagnitudes(Floats* values) {
  Words words;
  std::memcpy(&words, values, sizeof(words));
  words &= kMagnitude;
  std::memcpy(values, &words, sizeof(words));
}

// Panels hold the weights themselves.
struct AsStored {
  void operator()(int64_t, int64_t, Floats*) const {}
};

// Panels hold `Magnitudes`, or their squares.
template <bool kSquared>
struct AsMagnitudes {
  void operator()(int64_t k, int64_t j, Floats* weights) const {
    Floats factors;
    std::memcpy(&factors, columns + j, sizeof(factors));
    TakeMagnitudes(weights);
    *weights *= factors;
    *weights *= rows[k];
    if (kSquared) *weights *= *weights;
  }

  const float *rows, *columns;
};

// Widens weights `[depth, count]` from row `k` and column `first` on into whole
// tiles, padded with zeros.
template <class Number, class Weight, class Form>
void TakePanel(const Weight* weights, const Form& form, int64_t k,
               int64_t depth, int64_t first, int64_t count, int64_t stride,
               Number* panel) {
  constexpr int64_t kColumns = kTileColumns<Number>;
  Weight padded[kColumns] = {};
  for (int64_t i = 0; i < depth; ++i) {
    const Weight* from = weights + (k + i) * stride + first;
    __builtin_prefetch(from + 8 * stride);
    if (count < kColumns) from = std::copy_n(from, count, padded) - count;
    for (int64_t j = 0; j < kColumns; j += kGroup) {
      Floats values;
      Load(from + j, &values);
      form(k + i, first + j, &values);
      Store(values, panel + i * kColumns + j);
    }
  }
}

// Adds `kRows` rows times a panel to sums, which begin every `kTileColumns`.
template <int64_t kRows, class Number>
void AddTile(const Number* rows, int64_t stride, const Number* panel,
             int64_t depth, Number* sums) {
  using Lanes = typename LanesOf<Number>::Type;
  constexpr int64_t kColumns = kTileColumns<Number>;
  constexpr int64_t kWidth = kRegister / sizeof(Number);
  Lanes sum[kRows][kTileLanes];
  std::memcpy(sum, sums, sizeof(sum));
  for (int64_t k = 0; k < depth; ++k) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kTileLanes; ++v) {
      Lanes weight;
      std::memcpy(&weight, panel + k * kColumns + v * kWidth, sizeof(weight));
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; ++r) {
        sum[r][v] += rows[r * stride + k] * weight;
      }
    }
  }
  std::memcpy(sums, sum, sizeof(sum));
}

template <class Number>
void AddPanel(const Number* rows, int64_t count, int64_t stride,
              const Number* panel, int64_t depth, Number* sums) {
  constexpr int64_t kColumns = kTileColumns<Number>;
  int64_t row = 0;
  for (; row + kTileRows <= count; row += kTileRows) {
    AddTile<kTileRows>(rows + row * stride, stride, panel, depth,
                       sums + row * kColumns);
  }
  for (; row < count; ++row) {
    AddTile<1>(rows + row * stride, stride, panel, depth,
               sums + row * kColumns);
  }
}

// Accumulators of a few adjacent tiles: `kTiles` of `[rows, kTileColumns]`, so
// that a row of weights is read by whole cache lines.
constexpr int64_t kTiles = 4;
template <class Number>
struct Strip {
  explicit Strip(int64_t rows)
      : size(rows * kTileColumns<Number>),
        sums(kTiles * size),
        squares(kTiles * size) {}

  void Clear() {
    std::fill(sums.begin(), sums.end(), Number{0});
    std::fill(squares.begin(), squares.end(), Number{0});
  }

  void AddSquares() {
    for (size_t i = 0; i < sums.size(); ++i) squares[i] += sums[i] * sums[i];
  }

  const int64_t size;
  std::vector<Number> sums, squares;
  Number panels[kTiles][kPanelDepth * kTileColumns<Number>];
};

// Copies `[rows, count]` of a tile to its place in `[rows, columns]`.
template <class Number>
void PutTile(const Number* tile, int64_t rows, int64_t count, int64_t columns,
             Number* to) {
  for (int64_t row = 0; row < rows; ++row) {
    const Number* from = tile + row * kTileColumns<Number>;
    std::copy(from, from + count, to + row * columns);
  }
}

template <class Number, class Weight, class Form>
void MultiplyOf(const Number* rows, const Weight* weights, const Form& form,
                const Sizes& sizes, int64_t block, Number* total,
                Number* squares) {
  constexpr int64_t kColumns = kTileColumns<Number>;
  const auto strip = std::make_unique<Strip<Number>>(sizes.rows);
  for (int64_t first = 0; first < sizes.columns; first += kTiles * kColumns) {
    const int64_t left = sizes.columns - first;
    const int64_t tiles = std::min(kTiles, (left + kColumns - 1) / kColumns);
    const auto width = [&](int64_t t) {
      return std::min(kColumns, left - t * kColumns);
    };
    strip->Clear();
    for (int64_t k = 0; k < sizes.depth;) {
      const int64_t end = std::min(sizes.depth, (k / block + 1) * block);
      const int64_t depth = std::min(kPanelDepth, end - k);
      for (int64_t t = 0; t < tiles; ++t) {
        Number* panel = strip->panels[t];
        TakePanel(weights, form, k, depth, first + t * kColumns, width(t),
                  sizes.columns, panel);
        AddPanel(rows + k, sizes.rows, sizes.depth, panel, depth,
                 strip->sums.data() + t * strip->size);
      }
      k += depth;
      if (squares != nullptr && k == end && k < sizes.depth) {
        strip->AddSquares();
      }
    }
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t at = first + t * kColumns, tile = t * strip->size;
      PutTile(strip->sums.data() + tile, sizes.rows, width(t), sizes.columns,
              total + at);
      if (squares == nullptr) continue;
      PutTile(strip->squares.data() + tile, sizes.rows, width(t), sizes.columns,
              squares + at);
    }
  }
}

float Widen(float weight) { return weight; }
float Widen(Bfloat16 weight) {
  const uint32_t bits = static_cast<uint32_t>(weight) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

int32_t BitsOf(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float NumberOf(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Returns a power of two above a number that is not zero.
double PowerAbove(float largest) {
  int exponent = 0;
  std::frexp(largest, &exponent);
  // Beyond this range the factor itself is no normal float.
  return std::ldexp(1.0, std::clamp(exponent, -126, 126));
}

// Bits of numbers that are not negative have the order of the numbers.
template <class Weight>
void MaxOf(const Weight* weights, int64_t count, int32_t* largest) {
  for (int64_t j = 0; j < count; ++j) {
    largest[j] = std::max(largest[j], BitsOf(Widen(weights[j])) & kMagnitude);
  }
}

template <class Weight>
bool MeasureOf(const Weight* weights, int64_t depth, int64_t columns,
               double* row_scale, double* column_scale) {
  std::vector<int32_t> largest(columns);
  for (int64_t k = 0; k < depth; ++k) {
    MaxOf(weights + k * columns, columns, largest.data());
  }
  std::vector<float> factors(columns);
  for (int64_t j = 0; j < columns; ++j) {
    if (largest[j] >= kInfinity) return false;
    column_scale[j] = PowerAbove(NumberOf(largest[j]));
    factors[j] = static_cast<float>(1 / column_scale[j]);
  }
  for (int64_t k = 0; k < depth; ++k) {
    const Weight* row = weights + k * columns;
    int32_t most = 0;
    for (int64_t j = 0; j < columns; ++j) {
      const float size = NumberOf(BitsOf(Widen(row[j])) & kMagnitude);
      most = std::max(most, BitsOf(size * factors[j]));
    }
    row_scale[k] = PowerAbove(NumberOf(most));
  }
  return true;
}

// Returns factors that undo scales, followed by zeros for a whole tile.
std::vector<float> Invert(const double* scales, int64_t count) {
  std::vector<float> factors(count + kTileColumns<float>);
  for (int64_t i = 0; i < count; ++i) {
    factors[i] = static_cast<float>(1 / scales[i]);
  }
  return factors;
}

bool HasWideRegisters() {
#if defined(__x86_64__)
  static const bool has =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
#else
  return false;
#endif
}

template <class... Arguments>
HPMOE_WIDE void MultiplyWide(Arguments... arguments) {
  MultiplyOf(arguments...);
}

template <class... Arguments>
void MultiplyBest(Arguments... arguments) {
  if (HasWideRegisters()) {
    MultiplyWide(arguments...);
  } else {
    MultiplyOf(arguments...);
  }
}

template <class... Arguments>
HPMOE_WIDE bool MeasureWide(Arguments... arguments) {
  return MeasureOf(arguments...);
}

}  // namespace

template <class Weight>
void Multiply(const double* rows, const Weight* weights, const Sizes& sizes,
              int64_t block, double* total, double* squares) {
  MultiplyBest(rows, weights, AsStored{}, sizes, block, total, squares);
}

template void Multiply(const double*, const Bfloat16*, const Sizes&, int64_t,
                       double*, double*);
template void Multiply(const double*, const float*, const Sizes&, int64_t,
                       double*, double*);

template <class Weight>
void MultiplyMagnitudes(const float* rows, const Weight* weights,
                        const Sizes& sizes, const double* row_scale,
                        const double* column_scale, bool squared,
                        float* total) {
  const std::vector<float> row_factors = Invert(row_scale, sizes.depth);
  const std::vector<float> column_factors = Invert(column_scale, sizes.columns);
  const auto multiply = [&](auto form) {
    float* squares = nullptr;
    MultiplyBest(rows, weights, form, sizes, sizes.depth, total, squares);
  };
  if (squared) {
    multiply(AsMagnitudes<true>{row_factors.data(), column_factors.data()});
  } else {
    multiply(AsMagnitudes<false>{row_factors.data(), column_factors.data()});
  }
}

template void MultiplyMagnitudes(const float*, const Bfloat16*, const Sizes&,
                                 const double*, const double*, bool, float*);
template void MultiplyMagnitudes(const float*, const float*, const Sizes&,
                                 const double*, const double*, bool, float*);

template <class Weight>
bool MeasureWeights(const Weight* weights, int64_t depth, int64_t columns,
                    double* row_scale, double* column_scale) {
  return HasWideRegisters()
             ? MeasureWide(weights, depth, columns, row_scale, column_scale)
             : MeasureOf(weights, depth, columns, row_scale, column_scale);
}

template bool MeasureWeights(const Bfloat16*, int64_t, int64_t, double*,
                             double*);
template bool MeasureWeights(const float*, int64_t, int64_t, double*, double*);

}  // namespace hpmoe_limits
