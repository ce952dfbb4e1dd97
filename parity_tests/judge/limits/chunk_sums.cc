#include "parity_tests/judge/limits/chunk_sums.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

// All that is called from here is compiled for the widest registers there are.
// Clang has no clones of a function that all calls are inlined into.
#if defined(__x86_64__) && !defined(__clang__)
#define HPMOE_WIDEST __attribute__((target_clones("avx2", "default"), flatten))
#else
#define HPMOE_WIDEST
#endif

namespace hpmoe_lanes {
namespace {

constexpr double kRelativeEps = 1e-7;  // as in `standards`
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr float kSmallest = std::numeric_limits<float>::min();
constexpr double kTiny = std::numeric_limits<double>::min();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Numbers of one vector: sums have the same bits for any register width.
constexpr int64_t kLanes = 4;
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Mask = int64_t __attribute__((vector_size(kLanes * sizeof(int64_t))));

double Total(const Lanes& of) { return (of[0] + of[1]) + (of[2] + of[3]); }

double Most(const Lanes& of) {
  return std::max(std::max(of[0], of[1]), std::max(of[2], of[3]));
}

bool Any(const Mask& of) { return (of[0] | of[1] | of[2] | of[3]) != 0; }

void TakeMagnitude(Lanes* of) {
  *of = reinterpret_cast<Lanes>(reinterpret_cast<Mask>(*of) &
                                std::numeric_limits<int64_t>::max());
}

void TakeLarger(const Lanes& other, Lanes* of) {
  *of = other > *of ? other : *of;
}

// Takes the next of `count` numbers, and `rest` for what is past the last.
void Load(const double* values, int64_t count, double rest, Lanes* to) {
  if (count >= kLanes) {
    std::memcpy(to, values, sizeof(*to));
    return;
  }
  for (int64_t l = 0; l < kLanes; ++l) (*to)[l] = l < count ? values[l] : rest;
}

void Load(const float* values, int64_t count, Lanes* to) {
  Floats narrow{};
  if (count >= kLanes) {
    std::memcpy(&narrow, values, sizeof(narrow));
  } else {
    for (int64_t l = 0; l < count; ++l) narrow[l] = values[l];
  }
  *to = __builtin_convertvector(narrow, Lanes);
}

// Elements that are processed together, so that temporaries stay in L1 cache.
constexpr int64_t kSegment = 128;
using Of = Lanes[kSegment / kLanes];

// Temporaries of some elements of a row; zeros past the last one.
struct Segment {
  int64_t size = 0, lanes = 0;
  Of golden, bound, actual;
  Of error, off;  // of candidate and benchmark
};

// Loads the next elements; returns whether values are within finite bounds.
bool TakeUp(const Chunk& chunk, int64_t first, int64_t size, Segment* seg) {
  seg->size = size;
  seg->lanes = (size + kLanes - 1) / kLanes;
  Mask outside{};
  for (int64_t i = 0; i < seg->lanes; ++i) {
    const int64_t at = first + i * kLanes, count = size - i * kLanes;
    Lanes golden, bound, values;
    Load(chunk.golden + at, count, 0, &golden);
    Load(chunk.bound + at, count, 0, &bound);
    Load(chunk.actual + at, count, &values);
    seg->golden[i] = golden;
    seg->bound[i] = bound;
    seg->actual[i] = values;
    Lanes error = values - golden;
    TakeMagnitude(&error);
    seg->error[i] = error;
    // No comparison with NaN is true.
    outside |= ~(error <= bound) | ~(bound <= kLargest);
    if (chunk.benchmark == nullptr) continue;
    Load(chunk.benchmark + at, count, &values);
    error = values - golden;
    TakeMagnitude(&error);
    seg->off[i] = error;
    outside |= ~(error <= bound);
  }
  return !Any(outside);
}

// The detectable errors of one row, see `power`.
class RowPower {
 public:
  // `scale`: the least size that an element counts as having.
  RowPower(double unit_roundoff, double scale)
      : u_(unit_roundoff), scale_(Lanes{} + scale) {}

  void Add(const Segment& seg) {
    for (int64_t i = 0; i < seg.lanes; ++i) {
      Lanes size = seg.actual[i], reach = scale_;
      TakeMagnitude(&size);
      TakeLarger(size, &reach);
      const Lanes& bound = seg.bound[i];
      const Lanes seen = (bound + seg.error[i] + u_ * size) * (1 + 2 * u_);
      const Mask judged = (bound < reach) | (bound == 0);
      const Mask finite = judged & (seen <= kLargest);
      judged_ -= judged;
      TakeLarger(finite ? seen : Lanes{}, &most_);
      // Of a zero it is an infinity, or 0 / 0, which no comparison takes.
      const Lanes factor = (finite ? seen : Lanes{} + kInfinity) / size;
      least_ = factor < least_ ? factor : least_;
    }
    judged_[0] -= seg.lanes * kLanes - seg.size;  // zeros past the last one
  }

  void End(double root_mean_square, Power* power) const {
    for (int64_t l = 0; l < kLanes; ++l) power->judged += judged_[l];
    if (!(root_mean_square > 0)) return;
    power->element = std::max(power->element, Most(most_) / root_mean_square);
    const double least = -Most(-least_);
    if (least <= kLargest) {
      power->row = std::max(power->row, least);
      power->whole = std::min(power->whole, least);
    }
  }

 private:
  const double u_;
  const Lanes scale_;
  Lanes most_{}, least_ = Lanes{} + kInfinity;
  Mask judged_{};
};

// Returns the region of an element: 0 normal, 1 small, 2 cancelling.
int PlaceOf(double size, double actual, const Thresholds& pair) {
  if (size < pair.small) return 1;
  return size < pair.cancel && std::abs(actual) < pair.cancel ? 2 : 0;
}

// Sums of one segment, of which most elements are normal to everybody.
class Regions {
 public:
  Regions(const std::vector<Thresholds>& pairs, double* regions)
      : pairs_(pairs), regions_(regions) {
    for (const auto& pair : pairs) {
      below_ = std::max({below_, pair.small, pair.cancel});
    }
  }

  void Add(const Segment& seg) {
    for (int64_t i = 0; i < seg.lanes; ++i) {
      Lanes size = seg.golden[i];
      TakeMagnitude(&size);
      const Lanes scale = 1 / (size + kRelativeEps);
      const Lanes& error = seg.error[i];
      const Lanes& off = seg.off[i];
      const Lanes sums[kNumColumns] = {Lanes{} + 1,   size * size,
                                       error * scale, error * error,
                                       off * scale,   off * off};
      const int64_t count = seg.size - i * kLanes;
      if (count >= kLanes && !Any(size < below_)) {
        for (int c = 0; c < kNumColumns; ++c) normal_[c] += sums[c];
        continue;
      }
      for (int64_t l = 0; l < std::min(count, kLanes); ++l) {
        AddTo(regions_, sums, l);
        for (size_t k = 0; k < pairs_.size(); ++k) {
          const int place = PlaceOf(size[l], seg.actual[i][l], pairs_[k]);
          AddTo(regions_ + (1 + 3 * k + place) * kNumColumns, sums, l);
        }
      }
    }
  }

  // Counts in what is normal to everybody.
  void End() {
    for (size_t k = 0; k <= pairs_.size(); ++k) {
      double* region = regions_ + (k ? 3 * k - 2 : 0) * kNumColumns;
      for (int c = 0; c < kNumColumns; ++c) region[c] += Total(normal_[c]);
    }
  }

 private:
  static void AddTo(double* region, const Lanes* sums, int64_t l) {
    for (int c = 0; c < kNumColumns; ++c) region[c] += sums[c][l];
  }

  const std::vector<Thresholds>& pairs_;
  double* regions_;
  double below_ = 0;  // what is not is normal to everybody
  Lanes normal_[kNumColumns] = {};
};

void FindWorst(const Segment& seg, int64_t first, Sums* sums) {
  Lanes most{};
  Mask above{};
  for (int64_t i = 0; i < seg.lanes; ++i) {
    TakeLarger(seg.error[i], &most);
    above |= seg.error[i] > sums->worst_of_bound * seg.bound[i];
  }
  if (!Any(above) && !(Most(most) > sums->worst_error)) return;
  for (int64_t j = 0; j < seg.size; ++j) {
    const double error = seg.error[j / kLanes][j % kLanes];
    const double bound = seg.bound[j / kLanes][j % kLanes];
    if (error > sums->worst_error) {
      sums->worst_error = error;
      sums->worst_at = first + j;
    }
    if (error > sums->worst_of_bound * bound) {
      sums->worst_of_bound = std::max(sums->worst_of_bound, error / bound);
    }
  }
}

// Adds a row's part of one tile, which is one of all `lines`.
void AddTile(const Chunk& chunk, int64_t first, int64_t size, int64_t tile,
             int64_t line, Sums* sums) {
  Lanes square{}, product{}, information{}, total{}, golden_square{};
  Lanes most = Lanes{} + kTiny;
  for (int64_t j = 0; j < size; j += kLanes) {
    Lanes golden, error, variance;
    Load(chunk.golden + first + j, size - j, 0, &golden);
    Load(chunk.actual + first + j, size - j, &error);
    Load(chunk.variance + first + j, size - j, 0, &variance);
    TakeLarger(variance, &most);
    TakeLarger(Lanes{} + kTiny, &variance);
    error -= golden;
    const Lanes weight = 1 / variance;
    square += error * weight * error;
    product += error * weight * golden;
    information += golden * weight * golden;
    total += golden;
    golden_square += golden * golden;
  }
  sums->square[tile] += Total(square);
  sums->product[tile] += Total(product);
  sums->information[tile] += Total(information);
  sums->by_row[line] = Total(total);
  sums->row_square[line] = Total(golden_square);
  sums->row_information[line] = Total(information);
  sums->row_variance[line] = Most(most);
}

// Adds a row to the sums of `spread`.
void AddSpread(const Chunk& chunk, int64_t row, int64_t tile_row, Sums* sums) {
  const int64_t columns = chunk.Columns(), tiles = chunk.TileColumns();
  const double* golden = chunk.golden + row * columns;
  for (int64_t c = 0; c < tiles; ++c) {
    const int64_t begin = chunk.col_starts[c], end = chunk.col_starts[c + 1];
    AddTile(chunk, row * columns + begin, end - begin, tile_row * tiles + c,
            row * tiles + c, sums);
  }
  double* by_column = sums->by_column.data() + tile_row * columns;
  for (int64_t j = 0; j < columns; ++j) by_column[j] += golden[j];
}

void MakeRoom(const Chunk& chunk, Sums* sums) {
  for (auto* of : {&sums->square, &sums->product, &sums->information}) {
    of->assign(chunk.Tiles(), 0);
  }
  for (auto* of : {&sums->by_row, &sums->row_square, &sums->row_information,
                   &sums->row_variance}) {
    of->assign(chunk.Rows() * chunk.TileColumns(), 0);
  }
  sums->by_column.assign((chunk.row_starts.size() - 1) * chunk.Columns(), 0);
}

// The mean square of each row of the candidate.
std::vector<double> MeanSquares(const Chunk& chunk) {
  std::vector<double> squares(chunk.Rows());
  const int64_t columns = chunk.Columns();
  for (int64_t i = 0; i < chunk.Rows(); ++i) {
    Lanes square{}, values;
    for (int64_t j = 0; j < columns; j += kLanes) {
      Load(chunk.actual + i * columns + j, columns - j, &values);
      square += values * values;
    }
    squares[i] = Total(square) / columns;
    // A row of subnormal numbers has no size.
    if (squares[i] < double{kSmallest} * kSmallest) squares[i] = 0;
  }
  return squares;
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / values.size();
}

// Adds one row; returns false if numpy must judge an element.
bool AddRow(const Chunk& chunk, int64_t row, Segment* seg, Regions* regions,
            RowPower* power, Sums* sums) {
  const int64_t columns = chunk.Columns();
  for (int64_t j = 0; j < columns; j += kSegment) {
    const int64_t first = row * columns + j;
    if (!TakeUp(chunk, first, std::min(kSegment, columns - j), seg)) {
      return false;
    }
    FindWorst(*seg, first, sums);
    power->Add(*seg);
    if (chunk.benchmark != nullptr) regions->Add(*seg);
  }
  return true;
}

}  // namespace

HPMOE_WIDEST bool Add(const Chunk& chunk, const std::vector<Thresholds>& pairs,
                      Sums* sums) {
  sums->regions.assign((1 + 3 * pairs.size()) * kNumColumns, 0);
  if (chunk.variance != nullptr) MakeRoom(chunk, sums);
  const std::vector<double> squares = MeanSquares(chunk);
  const double lost = chunk.unit_roundoff * std::sqrt(Mean(squares));
  Regions regions(pairs, sums->regions.data());
  Segment seg;
  for (size_t b = 0; b + 1 < chunk.row_starts.size(); ++b) {
    for (int64_t i = chunk.row_starts[b]; i < chunk.row_starts[b + 1]; ++i) {
      const double root = std::sqrt(squares[i]);
      RowPower power(chunk.unit_roundoff, std::max(root, lost));
      if (!AddRow(chunk, i, &seg, &regions, &power, sums)) return false;
      power.End(root, &sums->power);
      if (chunk.variance != nullptr) AddSpread(chunk, i, b, sums);
    }
  }
  if (chunk.benchmark != nullptr) regions.End();
  return true;
}

}  // namespace hpmoe_lanes
