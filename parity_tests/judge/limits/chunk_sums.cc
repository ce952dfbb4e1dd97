#include "parity_tests/judge/limits/chunk_sums.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace hpmoe_lanes {
namespace {

constexpr double kRelativeEps = 1e-7;  // as in `standards`
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::min();

// Elements that are looked at together: what is known of them stays in the
// first cache.
constexpr int64_t kSegment = 128;
// Sums that are made side by side: the same bits, however wide a register is.
constexpr int64_t kLanes = 4;

// What is known of some elements of a row.
struct Segment {
  int64_t size = 0;
  const double* golden = nullptr;
  const double* bound = nullptr;
  double actual[kSegment], benchmark[kSegment];
  double error[kSegment], off[kSegment];  // of candidate and benchmark
  double magnitude[kSegment], relative[kSegment], relative_off[kSegment];
};

struct Lanes {
  double of[kLanes] = {};

  double Total() const { return (of[0] + of[1]) + (of[2] + of[3]); }
};

void Widen(const float* values, int64_t size, double* wide) {
  for (int64_t j = 0; j < size; ++j) wide[j] = values[j];
}

// Says whether values lie within finite bounds; writes how far off they are.
bool Within(const double* values, const Segment& seg, double* error) {
  int outside = 0;
  for (int64_t j = 0; j < seg.size; ++j) {
    error[j] = std::abs(values[j] - seg.golden[j]);
    // No comparison with NaN is true.
    outside |= !(error[j] <= seg.bound[j]) | !(seg.bound[j] <= kLargest);
  }
  return outside == 0;
}

void Relate(Segment* seg) {
  for (int64_t j = 0; j < seg->size; ++j) {
    seg->magnitude[j] = std::abs(seg->golden[j]);
    const double scale = 1 / (seg->magnitude[j] + kRelativeEps);
    seg->relative[j] = seg->error[j] * scale;
    seg->relative_off[j] = seg->off[j] * scale;
  }
}

void AddElement(const Segment& seg, int64_t j, double* region) {
  region[kCount] += 1;
  region[kGoldenSquare] += seg.magnitude[j] * seg.magnitude[j];
  region[kRelative] += seg.relative[j];
  region[kSquare] += seg.error[j] * seg.error[j];
  region[kBenchmarkRelative] += seg.relative_off[j];
  region[kBenchmarkSquare] += seg.off[j] * seg.off[j];
}

// Returns the region of an element: 0 normal, 1 small, 2 cancelling.
int PlaceOf(const Segment& seg, int64_t j, const Thresholds& pair) {
  if (seg.magnitude[j] < pair.small) return 1;
  const bool cancel =
      seg.magnitude[j] < pair.cancel && std::abs(seg.actual[j]) < pair.cancel;
  return cancel ? 2 : 0;
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
    int64_t j = 0;
    for (; j + kLanes <= seg.size; j += kLanes) {
      int low = 0;
      for (int64_t l = 0; l < kLanes; ++l) low |= seg.magnitude[j + l] < below_;
      if (low) {
        for (int64_t l = 0; l < kLanes; ++l) AddOne(seg, j + l);
      } else {
        AddNormal(seg, j);
      }
    }
    for (; j < seg.size; ++j) AddOne(seg, j);
  }

  // Counts in what is normal to everybody.
  void End() {
    const double normal[kNumColumns] = {normal_count_,     square_.Total(),
                                        relative_.Total(), of_error_.Total(),
                                        beside_.Total(),   of_off_.Total()};
    for (size_t k = 0; k <= pairs_.size(); ++k) {
      double* region = regions_ + (k ? 3 * k - 2 : 0) * kNumColumns;
      for (int i = 0; i < kNumColumns; ++i) region[i] += normal[i];
    }
  }

 private:
  void AddOne(const Segment& seg, int64_t j) {
    AddElement(seg, j, regions_);
    for (size_t k = 0; k < pairs_.size(); ++k) {
      const size_t region = 1 + 3 * k + PlaceOf(seg, j, pairs_[k]);
      AddElement(seg, j, regions_ + region * kNumColumns);
    }
  }

  void AddNormal(const Segment& seg, int64_t j) {
    normal_count_ += kLanes;
    for (int64_t l = 0; l < kLanes; ++l, ++j) {
      square_.of[l] += seg.magnitude[j] * seg.magnitude[j];
      relative_.of[l] += seg.relative[j];
      of_error_.of[l] += seg.error[j] * seg.error[j];
      beside_.of[l] += seg.relative_off[j];
      of_off_.of[l] += seg.off[j] * seg.off[j];
    }
  }

  const std::vector<Thresholds>& pairs_;
  double* regions_;
  double below_ = 0;  // what is not is normal to everybody
  double normal_count_ = 0;
  Lanes square_, relative_, of_error_, beside_, of_off_;
};

void FindWorst(const Segment& seg, int64_t first, Sums* sums) {
  for (int64_t j = 0; j < seg.size; ++j) {
    const double error = seg.error[j];
    if (error > sums->worst_error) {
      sums->worst_error = error;
      sums->worst_at = first + j;
    }
    if (error > sums->worst_of_bound * seg.bound[j]) {
      sums->worst_of_bound =
          std::max(sums->worst_of_bound, error / seg.bound[j]);
    }
  }
}

// Adds a row's part in one tile; returns the sum of its golden.
double AddTile(const Chunk& chunk, int64_t first, int64_t size, int64_t tile,
               Sums* sums) {
  Lanes square, product, information, total;
  for (int64_t j = 0; j < size; ++j) {
    const int64_t l = j % kLanes;
    const double golden = chunk.golden[first + j];
    const double weight = 1 / std::max(chunk.variance[first + j], kTiny);
    const double error = chunk.actual[first + j] - golden;
    square.of[l] += error * weight * error;
    product.of[l] += error * weight * golden;
    information.of[l] += golden * weight * golden;
    total.of[l] += golden;
  }
  sums->square[tile] += square.Total();
  sums->product[tile] += product.Total();
  sums->information[tile] += information.Total();
  return total.Total();
}

// Adds a row to the sums that `spread` asks for.
void AddSpread(const Chunk& chunk, int64_t row, int64_t tile_row, Sums* sums) {
  const int64_t columns = chunk.Columns(), tiles = chunk.TileColumns();
  const double* golden = chunk.golden + row * columns;
  for (int64_t c = 0; c < tiles; ++c) {
    const int64_t begin = chunk.col_starts[c], end = chunk.col_starts[c + 1];
    sums->by_row[row * tiles + c] = AddTile(
        chunk, row * columns + begin, end - begin, tile_row * tiles + c, sums);
  }
  double* by_column = sums->by_column.data() + tile_row * columns;
  for (int64_t j = 0; j < columns; ++j) by_column[j] += golden[j];
}

bool AddSegment(const Chunk& chunk, int64_t first, int64_t size, Segment* seg,
                Regions* regions, Sums* sums) {
  seg->size = size;
  seg->golden = chunk.golden + first;
  seg->bound = chunk.bound + first;
  Widen(chunk.actual + first, size, seg->actual);
  if (!Within(seg->actual, *seg, seg->error)) return false;
  FindWorst(*seg, first, sums);
  if (chunk.benchmark == nullptr) return true;
  Widen(chunk.benchmark + first, size, seg->benchmark);
  if (!Within(seg->benchmark, *seg, seg->off)) return false;
  Relate(seg);
  regions->Add(*seg);
  return true;
}

template <class Word>
int64_t MagnitudeOf(Word word) {
  return word & std::numeric_limits<Word>::max();
}

template <class Word>
int64_t FurthestOf(const Word* one, const Word* other, int64_t size) {
  int64_t most = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t a = MagnitudeOf(one[i]), b = MagnitudeOf(other[i]);
    // Of another sign: the way there leads through zero.
    const bool across = (one[i] ^ other[i]) < 0;
    most = std::max(most, across ? a + b : std::abs(a - b));
  }
  return most;
}

}  // namespace

bool Add(const Chunk& chunk, const std::vector<Thresholds>& pairs, Sums* sums) {
  const size_t tiles = chunk.Tiles();
  sums->regions.assign((1 + 3 * pairs.size()) * kNumColumns, 0);
  if (chunk.variance != nullptr) {
    for (auto* of : {&sums->square, &sums->product, &sums->information}) {
      of->assign(tiles, 0);
    }
    sums->by_row.assign(chunk.Rows() * chunk.TileColumns(), 0);
    sums->by_column.assign((chunk.row_starts.size() - 1) * chunk.Columns(), 0);
  }
  Regions regions(pairs, sums->regions.data());
  Segment seg;
  for (size_t b = 0; b + 1 < chunk.row_starts.size(); ++b) {
    for (int64_t i = chunk.row_starts[b]; i < chunk.row_starts[b + 1]; ++i) {
      const int64_t end = (i + 1) * chunk.Columns();
      for (int64_t at = i * chunk.Columns(); at < end; at += kSegment) {
        const int64_t size = std::min(kSegment, end - at);
        if (!AddSegment(chunk, at, size, &seg, &regions, sums)) return false;
      }
      if (chunk.variance != nullptr) AddSpread(chunk, i, b, sums);
    }
  }
  if (chunk.benchmark != nullptr) regions.End();
  return true;
}

int64_t Furthest(const int16_t* one, const int16_t* other, int64_t size) {
  return FurthestOf(one, other, size);
}

int64_t Furthest(const int32_t* one, const int32_t* other, int64_t size) {
  return FurthestOf(one, other, size);
}

}  // namespace hpmoe_lanes
