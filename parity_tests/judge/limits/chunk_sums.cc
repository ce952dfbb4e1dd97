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

// A row's figures, each `[columns]`.
struct Row {
  explicit Row(int64_t columns)
      : error(columns),
        off(columns),
        size(columns),
        relative(columns),
        relative_off(columns) {}
  std::vector<double> error, off;  // of the candidate, of the benchmark
  std::vector<double> size, relative, relative_off;
};

// Says whether values lie within finite bounds; writes how far off they are.
bool Within(const double* values, const double* golden, const double* bound,
            int64_t size, double* error) {
  int outside = 0;
  for (int64_t j = 0; j < size; ++j) {
    error[j] = std::abs(values[j] - golden[j]);
    // No comparison with NaN is true.
    outside |= !(error[j] <= bound[j]) | !(bound[j] <= kLargest);
  }
  return outside == 0;
}

void Relate(const double* golden, int64_t size, Row* row) {
  for (int64_t j = 0; j < size; ++j) {
    row->size[j] = std::abs(golden[j]);
    const double scale = row->size[j] + kRelativeEps;
    row->relative[j] = row->error[j] / scale;
    row->relative_off[j] = row->off[j] / scale;
  }
}

void AddElement(const Row& row, int64_t j, double* region) {
  region[kCount] += 1;
  region[kGoldenSquare] += row.size[j] * row.size[j];
  region[kRelative] += row.relative[j];
  region[kSquare] += row.error[j] * row.error[j];
  region[kBenchmarkRelative] += row.relative_off[j];
  region[kBenchmarkSquare] += row.off[j] * row.off[j];
}

// Adds a row to the three regions of a pair of thresholds.
void AddRegions(const Row& row, const double* actual, int64_t size,
                const Thresholds& pair, double* regions) {
  double of[3][kNumColumns] = {};
  for (int64_t j = 0; j < size; ++j) {
    const bool small = row.size[j] < pair.small;
    const bool cancel =
        row.size[j] < pair.cancel && std::abs(actual[j]) < pair.cancel;
    AddElement(row, j, of[small ? 1 : cancel ? 2 : 0]);
  }
  for (int i = 0; i < 3 * kNumColumns; ++i) regions[i] += of[0][i];
}

void AddAll(const Row& row, int64_t size, double* region) {
  double of[kNumColumns] = {};
  for (int64_t j = 0; j < size; ++j) AddElement(row, j, of);
  for (int i = 0; i < kNumColumns; ++i) region[i] += of[i];
}

void FindWorst(const Row& row, const double* bound, int64_t first, int64_t size,
               Sums* sums) {
  for (int64_t j = 0; j < size; ++j) {
    const double error = row.error[j];
    if (error > sums->worst_error) {
      sums->worst_error = error;
      sums->worst_at = first + j;
    }
    if (error > sums->worst_of_bound * bound[j]) {
      sums->worst_of_bound = std::max(sums->worst_of_bound, error / bound[j]);
    }
  }
}

// Adds a row's part in one tile.
void AddTile(const Chunk& chunk, int64_t first, int64_t size, int64_t tile,
             Sums* sums) {
  const double* golden = chunk.golden + first;
  double square = 0, product = 0, information = 0;
  for (int64_t j = 0; j < size; ++j) {
    const double variance = std::max(chunk.variance[first + j], kTiny);
    const double scale = 1 / std::sqrt(variance);
    const double error = (chunk.actual[first + j] - golden[j]) * scale;
    const double value = golden[j] * scale;
    square += error * error;
    product += error * value;
    information += value * value;
  }
  sums->square[tile] += square;
  sums->product[tile] += product;
  sums->information[tile] += information;
}

// Adds a row to the sums that `spread` asks for.
void AddSpread(const Chunk& chunk, int64_t row, int64_t tile_row, Sums* sums) {
  const int64_t columns = chunk.Columns(), tiles = chunk.TileColumns();
  const double* golden = chunk.golden + row * columns;
  for (int64_t c = 0; c < tiles; ++c) {
    const int64_t begin = chunk.col_starts[c], end = chunk.col_starts[c + 1];
    AddTile(chunk, row * columns + begin, end - begin, tile_row * tiles + c,
            sums);
    double total = 0;
    for (int64_t j = begin; j < end; ++j) total += golden[j];
    sums->by_row[row * tiles + c] = total;
  }
  double* by_column = sums->by_column.data() + tile_row * columns;
  for (int64_t j = 0; j < columns; ++j) by_column[j] += golden[j];
}

bool AddRow(const Chunk& chunk, int64_t i, const std::vector<Thresholds>& pairs,
            Row* row, Sums* sums) {
  const int64_t columns = chunk.Columns(), first = i * columns;
  const double* golden = chunk.golden + first;
  const double* bound = chunk.bound + first;
  const double* actual = chunk.actual + first;
  if (!Within(actual, golden, bound, columns, row->error.data())) return false;
  if (chunk.benchmark == nullptr) {
    row->off = row->error;
  } else if (!Within(chunk.benchmark + first, golden, bound, columns,
                     row->off.data())) {
    return false;
  }
  FindWorst(*row, bound, first, columns, sums);
  if (chunk.benchmark == nullptr) return true;
  Relate(golden, columns, row);
  AddAll(*row, columns, sums->regions.data());
  for (size_t k = 0; k < pairs.size(); ++k) {
    AddRegions(*row, actual, columns, pairs[k],
               sums->regions.data() + (1 + 3 * k) * kNumColumns);
  }
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
  Row row(chunk.Columns());
  for (size_t b = 0; b + 1 < chunk.row_starts.size(); ++b) {
    for (int64_t i = chunk.row_starts[b]; i < chunk.row_starts[b + 1]; ++i) {
      if (!AddRow(chunk, i, pairs, &row, sums)) return false;
      if (chunk.variance != nullptr) AddSpread(chunk, i, b, sums);
    }
  }
  return true;
}

int64_t Furthest(const int16_t* one, const int16_t* other, int64_t size) {
  return FurthestOf(one, other, size);
}

int64_t Furthest(const int32_t* one, const int32_t* other, int64_t size) {
  return FurthestOf(one, other, size);
}

}  // namespace hpmoe_lanes
