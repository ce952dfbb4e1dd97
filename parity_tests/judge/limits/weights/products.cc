#include "parity_tests/judge/limits/weights/products.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

// What is called from here is compiled for wide registers as well.
// target_clones knows no pair of features.
#if defined(__x86_64__)
#define HPMOE_WIDE(features) __attribute__((target(features), flatten))
#else
#define HPMOE_WIDE(features)
#endif

namespace hpmoe_limits {
namespace {

// Registers that a processor has.  A tile, `kTileRows` of `kTileLanes`
// registers each, is accumulated in them.  Tiles do not change the order of a
// sum.
struct Short {
  static constexpr int64_t kBytes = 32, kTileRows = 3;
};
struct Long {
  static constexpr int64_t kBytes = 64, kTileRows = 6;
};
constexpr int64_t kTileLanes = 4;
// Rows of weights in a panel, which stays in L1 cache.
constexpr int64_t kPanelDepth = 128;
template <class Registers, class Number>
constexpr int64_t kTileColumns =
    kTileLanes * Registers::kBytes / sizeof(Number);

constexpr int32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

// A register of numbers.  They are passed by address: a function that is
// compiled for narrow registers has no other way to pass them.
template <class Number, int64_t kBytes>
struct LanesOf {
  typedef Number Type __attribute__((vector_size(kBytes)));
};
template <class Registers>
using Floats = typename LanesOf<float, Registers::kBytes>::Type;
template <class Registers>
using Words = typename LanesOf<uint32_t, Registers::kBytes>::Type;
template <class Registers>
constexpr int64_t kGroup = Registers::kBytes / sizeof(float);

template <class Registers>
void Load(const float* from, Floats<Registers>* to) {
  std::memcpy(to, from, sizeof(*to));
}
template <class Registers>
void Load(const Bfloat16* from, Floats<Registers>* to) {
  typename LanesOf<uint16_t, Registers::kBytes / 2>::Type halves;
  std::memcpy(&halves, from, sizeof(halves));
  const Words<Registers> words =
      __builtin_convertvector(halves, Words<Registers>) << 16;
  std::memcpy(to, &words, sizeof(words));
}

template <class Registers>
void Store(const Floats<Registers>& values, float* to) {
  std::memcpy(to, &values, sizeof(values));
}
template <class Registers>
void Store(const Floats<Registers>& values, double* to) {
  using Doubles = typename LanesOf<double, 2 * Registers::kBytes>::Type;
  const Doubles wide = __builtin_convertvector(values, Doubles);
  std::memcpy(to, &wide, sizeof(wide));
}

template <class Registers>
void TakeMagnitudes(Floats<Registers>* values) {
  Words<Registers> words;
  std::memcpy(&words, values, sizeof(words));
  words &= kMagnitude;
  std::memcpy(values, &words, sizeof(words));
}

// Panels hold the weights themselves.
struct AsStored {
  template <class Registers>
  void Change(int64_t, int64_t, Floats<Registers>*) const {}
};

// Panels hold `Magnitudes`, or their squares.
template <bool kSquared>
struct AsMagnitudes {
  template <class Registers>
  void Change(int64_t k, int64_t j, Floats<Registers>* weights) const {
    Floats<Registers> factors;
    std::memcpy(&factors, columns + j, sizeof(factors));
    TakeMagnitudes<Registers>(weights);
    *weights *= factors;
    *weights *= rows[k];
    if (kSquared) *weights *= *weights;
  }

  const float *rows, *columns;
};

// Widens weights `[depth, count]` from row `k` and column `first` on into whole
// tiles, padded with zeros.
template <class Registers, class Number, class Weight, class Form>
void TakePanel(const Weight* weights, const Form& form, int64_t k,
               int64_t depth, int64_t first, int64_t count, int64_t stride,
               Number* panel) {
  constexpr int64_t kColumns = kTileColumns<Registers, Number>;
  Weight padded[kColumns] = {};
  for (int64_t i = 0; i < depth; ++i) {
    const Weight* from = weights + (k + i) * stride + first;
    __builtin_prefetch(from + 8 * stride);
    if (count < kColumns) from = std::copy_n(from, count, padded) - count;
    for (int64_t j = 0; j < kColumns; j += kGroup<Registers>) {
      Floats<Registers> values;
      Load<Registers>(from + j, &values);
      form.template Change<Registers>(k + i, first + j, &values);
      Store<Registers>(values, panel + i * kColumns + j);
    }
  }
}

// Returns rows `[count, depth]` in the order in which tiles read them: by tile
// of rows, then by term.
template <class Registers, class Number>
std::vector<Number> PackRows(const Number* rows, int64_t count, int64_t depth) {
  std::vector<Number> packed(count * depth);
  for (int64_t row = 0; row < count; row += Registers::kTileRows) {
    const int64_t height = std::min(Registers::kTileRows, count - row);
    Number* to = packed.data() + row * depth;
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t r = 0; r < height; ++r) *to++ = rows[(row + r) * depth + k];
    }
  }
  return packed;
}

// Adds `kRows` packed rows times a panel to sums, which begin every
// `kTileColumns`.
template <class Registers, int64_t kRows, class Number>
void AddTile(const Number* rows, const Number* panel, int64_t depth,
             Number* sums) {
  using Lanes = typename LanesOf<Number, Registers::kBytes>::Type;
  constexpr int64_t kColumns = kTileColumns<Registers, Number>;
  constexpr int64_t kWidth = Registers::kBytes / sizeof(Number);
  Lanes sum[kRows][kTileLanes];
  std::memcpy(sum, sums, sizeof(sum));
  for (int64_t k = 0; k < depth; ++k) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kTileLanes; ++v) {
      Lanes weight;
      std::memcpy(&weight, panel + k * kColumns + v * kWidth, sizeof(weight));
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; ++r) {
        sum[r][v] += rows[k * kRows + r] * weight;
      }
    }
  }
  std::memcpy(sums, sum, sizeof(sum));
}

// `AddTile` of `count` rows, at most `kRows`.
template <class Registers, int64_t kRows, class Number>
void AddRows(int64_t count, const Number* rows, const Number* panel,
             int64_t depth, Number* sums) {
  if constexpr (kRows > 0) {
    if (count == kRows) {
      AddTile<Registers, kRows>(rows, panel, depth, sums);
    } else {
      AddRows<Registers, kRows - 1>(count, rows, panel, depth, sums);
    }
  }
}

// Adds the terms of a panel, from `k` on, of packed rows of `terms` terms.
template <class Registers, class Number>
void AddPanel(const Number* rows, int64_t count, int64_t terms, int64_t k,
              const Number* panel, int64_t depth, Number* sums) {
  constexpr int64_t kColumns = kTileColumns<Registers, Number>;
  for (int64_t row = 0; row < count; row += Registers::kTileRows) {
    const int64_t height = std::min(Registers::kTileRows, count - row);
    AddRows<Registers, Registers::kTileRows>(
        height, rows + row * terms + k * height, panel, depth,
        sums + row * kColumns);
  }
}

// Accumulators of a few adjacent tiles: `kTiles` of `[rows, kTileColumns]`, so
// that a row of weights is read by whole cache lines.
constexpr int64_t kTiles = 4;
template <class Registers, class Number>
struct Strip {
  explicit Strip(int64_t rows)
      : size(rows * kTileColumns<Registers, Number>),
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
  Number panels[kTiles][kPanelDepth * kTileColumns<Registers, Number>];
};

// Copies `[rows, count]` of a tile to its place in `[rows, columns]`.
template <class Registers, class Number>
void PutTile(const Number* tile, int64_t rows, int64_t count, int64_t columns,
             Number* to) {
  for (int64_t row = 0; row < rows; ++row) {
    const Number* from = tile + row * kTileColumns<Registers, Number>;
    std::copy(from, from + count, to + row * columns);
  }
}

template <class Registers, class Number, class Weight, class Form>
void MultiplyOf(const Number* rows, const Weight* weights, const Form& form,
                const Sizes& sizes, int64_t block, Number* total,
                Number* squares) {
  constexpr int64_t kColumns = kTileColumns<Registers, Number>;
  const auto strip = std::make_unique<Strip<Registers, Number>>(sizes.rows);
  const std::vector<Number> packed =
      PackRows<Registers>(rows, sizes.rows, sizes.depth);
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
        TakePanel<Registers>(weights, form, k, depth, first + t * kColumns,
                             width(t), sizes.columns, panel);
        AddPanel<Registers>(packed.data(), sizes.rows, sizes.depth, k, panel,
                            depth, strip->sums.data() + t * strip->size);
      }
      k += depth;
      if (squares != nullptr && k == end && k < sizes.depth) {
        strip->AddSquares();
      }
    }
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t at = first + t * kColumns, tile = t * strip->size;
      PutTile<Registers>(strip->sums.data() + tile, sizes.rows, width(t),
                         sizes.columns, total + at);
      if (squares == nullptr) continue;
      PutTile<Registers>(strip->squares.data() + tile, sizes.rows, width(t),
                         sizes.columns, squares + at);
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
  std::vector<float> factors(count + kTileColumns<Long, float>);
  for (int64_t i = 0; i < count; ++i) {
    factors[i] = static_cast<float>(1 / scales[i]);
  }
  return factors;
}

// Bytes of the longest registers that are compiled for and that this processor
// has, 0 for any processor's.
int64_t FindRegisters() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    return Long::kBytes;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return Short::kBytes;
  }
#endif
  return 0;
}

std::atomic<int64_t> most_bytes{FindRegisters()};

template <class... Arguments>
HPMOE_WIDE("avx512f,avx512bw,avx2,fma")
void MultiplyLong(Arguments... arguments) {
  MultiplyOf<Long>(arguments...);
}

template <class... Arguments>
HPMOE_WIDE("avx2,fma")
void MultiplyWide(Arguments... arguments) {
  MultiplyOf<Short>(arguments...);
}

template <class... Arguments>
void MultiplyBest(Arguments... arguments) {
  const int64_t bytes = most_bytes;
  if (bytes >= Long::kBytes) {
    MultiplyLong(arguments...);
  } else if (bytes >= Short::kBytes) {
    MultiplyWide(arguments...);
  } else {
    MultiplyOf<Short>(arguments...);
  }
}

template <class... Arguments>
HPMOE_WIDE("avx2,fma")
bool MeasureWide(Arguments... arguments) {
  return MeasureOf(arguments...);
}

}  // namespace

int64_t LimitRegisters(int64_t bytes) {
  return most_bytes = std::min(bytes, FindRegisters());
}

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
  return most_bytes >= Short::kBytes
             ? MeasureWide(weights, depth, columns, row_scale, column_scale)
             : MeasureOf(weights, depth, columns, row_scale, column_scale);
}

template bool MeasureWeights(const Bfloat16*, int64_t, int64_t, double*,
                             double*);
template bool MeasureWeights(const float*, int64_t, int64_t, double*, double*);

}  // namespace hpmoe_limits
