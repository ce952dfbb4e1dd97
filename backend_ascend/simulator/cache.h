// Which reads are served by a rank's L2 cache.
//
// A buffer is cut into parts, as its readers read it.  Its reuse distance is
// what other bytes were touched since it was: read, written, or put by another
// rank.  It is in the cache while that is less than `l2_bytes`.
//
// Distinct bytes count, and a touch at distance d is new to what was touched
// after its last one only: to a share of d / l2_bytes of all that are about to
// leave.  So a touch moves the clock by that share of its bytes.  For parts
// that come round in turn it is the cache of least recent use exactly.

#ifndef BACKEND_ASCEND_SIMULATOR_CACHE_H_
#define BACKEND_ASCEND_SIMULATOR_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "backend_ascend/image/image.h"
#include "backend_ascend/image/regions.h"

namespace hpmoe::sim {

// Rows and columns of a group of a buffer.
struct Box {
  int64_t row_begin, row_end, col_begin, col_end;
  int64_t rows() const { return row_end > row_begin ? row_end - row_begin : 0; }
  int64_t cols() const { return col_end > col_begin ? col_end - col_begin : 0; }
  int64_t elements() const { return rows() * cols(); }
};

// One cache, as a clock of bytes.
class Clock {
 public:
  static constexpr double kNever = -std::numeric_limits<double>::infinity();

  explicit Clock(double l2_bytes) : l2_bytes_(l2_bytes) {}

  // Whether a part that was touched at `last` is no longer there.  Until Tick,
  // all touches are at one time.
  bool Touch(double bytes, double* last) {
    const double distance = now_ - *last;
    const bool missed = distance >= l2_bytes_;
    passed_ += missed ? bytes : bytes * (distance / l2_bytes_);
    *last = now_;
    return missed;
  }
  void Add(double bytes) { passed_ += bytes; }
  void Tick() {
    now_ += passed_;
    passed_ = 0;
  }

 private:
  double l2_bytes_, now_ = 0, passed_ = 0;
};

class Caches {
 public:
  // `part_rows`, `part_cols`: by buffer; 0: no task reads it.
  // `shared`: one cache of all ranks.
  Caches(const ImageHeader& header, double l2_bytes, bool shared,
         const int64_t* part_rows, const int64_t* part_cols)
      : shared_(shared),
        clocks_(shared ? 1 : header.num_ranks, Clock(l2_bytes)) {
    int64_t parts = 0;
    for (int b = 0; b < kNumBuffers; ++b) {
      Grid& grid = grids_[b];
      if (part_rows[b] == 0) continue;
      const Extent extent = ExtentOf(header, b, kRows);
      grid.part_rows = part_rows[b];
      grid.part_cols = part_cols[b];
      grid.rows = (extent.rows + grid.part_rows - 1) / grid.part_rows;
      grid.cols = (extent.cols + grid.part_cols - 1) / grid.part_cols;
      grid.per_rank = extent.groups * grid.rows * grid.cols;
      grid.begin = parts;
      parts += grid.per_rank * header.num_ranks;
    }
    last_.assign(parts, Clock::kNever);
  }

  // Bytes of the box that come from memory.
  double Read(int32_t rank, int buffer, int64_t group, const Box& box,
              double element_bytes) {
    Clock& clock = ClockOf(rank);
    double missed = 0;
    Visit(rank, buffer, group, box, [&](double* last, int64_t elements) {
      const double bytes = static_cast<double>(elements) * element_bytes;
      if (clock.Touch(bytes, last)) missed += bytes;
    });
    clock.Tick();
    return missed;
  }

  void Write(int32_t rank, int buffer, int64_t group, const Box& box,
             double element_bytes) {
    if (grids_[buffer].part_rows > 0) {
      Read(rank, buffer, group, box, element_bytes);
      return;
    }
    ClockOf(rank).Add(static_cast<double>(box.elements()) * element_bytes);
    ClockOf(rank).Tick();
  }

 private:
  struct Grid {
    int64_t part_rows = 0, part_cols = 0, rows = 0, cols = 0, per_rank = 0,
            begin = 0;
  };

  template <class Visitor>
  void Visit(int32_t rank, int buffer, int64_t group, const Box& box,
             Visitor visit) {
    const Grid& grid = grids_[buffer];
    if (grid.part_rows == 0 || box.elements() == 0) return;
    double* const parts = last_.data() + grid.begin + rank * grid.per_rank +
                          group * grid.rows * grid.cols;
    for (int64_t r = box.row_begin / grid.part_rows;
         r * grid.part_rows < box.row_end; ++r) {
      const int64_t rows = std::min(box.row_end, (r + 1) * grid.part_rows) -
                           std::max(box.row_begin, r * grid.part_rows);
      for (int64_t c = box.col_begin / grid.part_cols;
           c * grid.part_cols < box.col_end; ++c) {
        const int64_t cols = std::min(box.col_end, (c + 1) * grid.part_cols) -
                             std::max(box.col_begin, c * grid.part_cols);
        visit(parts + r * grid.cols + c, rows * cols);
      }
    }
  }

  Clock& ClockOf(int32_t rank) { return clocks_[shared_ ? 0 : rank]; }

  const bool shared_;
  std::vector<Clock> clocks_;  // [R], or one
  Grid grids_[kNumBuffers];
  std::vector<double> last_;  // by part, the clock when it was touched
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_CACHE_H_
