// The sums over a right chunk of a tensor, which its rules need.
//
// numpy finds the errors of a chunk, in a hundred passes over it; a right chunk
// needs only sums, which are computed here in one pass.  A chunk that is not
// certainly right is refused, and numpy judges it.

#ifndef PARITY_TESTS_LANES_CHUNK_SUMS_H_
#define PARITY_TESTS_LANES_CHUNK_SUMS_H_

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace hpmoe_lanes {

// Elements below `small` are small, others below `cancel` cancel.
struct Thresholds {
  double small, cancel;
};

// Regions: all elements, then normal, small and cancelling ones of each pair of
// thresholds.
enum Column {
  kCount,
  kGoldenSquare,
  kRelative,
  kSquare,
  kBenchmarkRelative,
  kBenchmarkSquare,
  kNumColumns
};

// One chunk `[rows, columns]`: whole tile rows, row after row.
struct Chunk {
  const float* actual;
  const float* benchmark;  // null: no record asks
  const double* golden;
  const double* bound;
  const double* variance;  // null: the spread is not judged
  double unit_roundoff;    // of the candidate's storage dtype
  // Starts of tiles, and the end of the last: `[tile_rows + 1]`,
  // `[tile_columns + 1]`.
  std::vector<int64_t> row_starts, col_starts;

  int64_t Rows() const { return row_starts.back(); }
  int64_t Columns() const { return col_starts.back(); }
  int64_t TileColumns() const {
    return static_cast<int64_t>(col_starts.size()) - 1;
  }
  int64_t Tiles() const {
    return (static_cast<int64_t>(row_starts.size()) - 1) * TileColumns();
  }
};

// The smallest errors that the bounds would have detected, see `power`.
struct Power {
  double element = 0, row = 0;
  double whole = std::numeric_limits<double>::infinity();
  int64_t judged = 0;
};

struct Sums {
  double worst_error = 0, worst_of_bound = 0;
  int64_t worst_at = 0;         // the first element with that error
  std::vector<double> regions;  // `[1 + 3 pairs, kNumColumns]`
  // In standard deviations, `[tile_rows, tile_columns]`.
  std::vector<double> square, product, information;
  // Of the golden: `[rows, tile_columns]` and `[tile_rows, columns]`.
  std::vector<double> by_row, by_column;
  // `[rows, tile_columns]`: the golden's squares, these in deviations, and the
  // largest variance.
  std::vector<double> row_square, row_information, row_variance;
  Power power;
};

// Returns false if an element, or the benchmark's, is not within a finite bound
// of a finite golden.
bool Add(const Chunk& chunk, const std::vector<Thresholds>& pairs, Sums* sums);

}  // namespace hpmoe_lanes

#endif  // PARITY_TESTS_LANES_CHUNK_SUMS_H_
