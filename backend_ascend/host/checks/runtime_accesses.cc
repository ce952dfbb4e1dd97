#include "backend_ascend/host/checks/runtime_accesses.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "backend_ascend/host/checks/tile_operands.h"

namespace hpmoe {
namespace {

constexpr bool kReads = false, kWrites = true;

// Memory of a buffer or of what travels beside it, as rows of elements.
struct Range {
  uint16_t buffer;
  const char* begin;
  int64_t slabs, rows, cols, element_bytes;
  int32_t first_col;  // as an Access counts

  int64_t bytes() const { return slabs * rows * cols * element_bytes; }
  bool Holds(const void* at) const {
    const auto* byte = static_cast<const char*>(at);
    return begin != nullptr && byte >= begin && byte < begin + bytes();
  }
};

std::vector<Range> RangesOf(const Layer& layer) {
  const ImageHeader& image = *layer.image;
  std::vector<Range> ranges;
  const auto beside = [&](uint16_t buffer, const void* begin, int64_t rows,
                          int64_t cols) {
    const Array& array = layer.buffers[buffer];
    ranges.push_back({buffer, static_cast<const char*>(begin), array.slabs,
                      rows, cols, 4, static_cast<int32_t>(array.cols)});
  };
  for (uint16_t b = 0; b < kNumBuffers; ++b) {
    const Array& array = layer.buffers[b];
    if (array.data == nullptr) continue;
    ranges.push_back({b, array.data, array.slabs, array.rows, array.cols,
                      array.element_bytes, 0});
    if (layer.sums[b] != nullptr) {
      beside(b, layer.sums[b], array.rows, array.cols);
    }
  }
  beside(HeaderBuffer(image), layer.header_slot, image.num_rows, 1);
  beside(HeaderBuffer(image), layer.header_weight, image.num_rows, 1);
  if (layer.copies != nullptr) {
    beside(image.direction == kForward ? kXRelayed : kDyRelayed, layer.copies,
           image.num_rows, CopiesOf(image) * (sizeof(RowCopy) / 4));
  }
  for (uint16_t b = 0; b < kNumBuffers; ++b) {
    if (IsWritten(image, b)) beside(b, layer.scales[b], image.num_rows, 1);
  }
  beside(kDGateUp, layer.d_row_weight, image.num_rows, 1);
  beside(kDReturned, layer.d_slot_weight, layer.Slots(), 1);
  return ranges;
}

// Keeps the addresses that one task's work is given, and touches nothing.
class Recorder final : public Kernels {
 public:
  explicit Recorder(const Layer& layer) : ranges_(RangesOf(layer)) {
    for (int b = 0; b < kNumBuffers; ++b) cols_[b] = layer.buffers[b].cols;
  }

  std::vector<Access> Take() { return std::move(accesses_); }

  void Gemm(const GemmTile& t) override { Record(t); }
  void Swiglu(const SwigluTile& t) override { Record(t); }
  void SwigluGrad(const SwigluGradTile& t) override { Record(t); }
  void Combine(const CombineTile& t) override { Record(t); }
  void RowDots(const RowDotTile& t) override { Record(t); }
  void ScaleRows(const ScaleRowsTile& t) override { Record(t); }
  void Norm(const NormTile& t) override { Record(t); }
  void CodeGemm(const CodeGemmTile& t) override { Record(t); }
  void QuantiseRows(const QuantiseRowsTile& t) override { Record(t); }
  void CodeSwiglu(const CodeSwigluTile& t) override { Record(t); }
  void DequantiseRows(const DequantiseRowsTile& t) override { Record(t); }

  void Copy(const void* from, size_t bytes, void* to) override {
    Run(kReads, from, bytes);
    Run(kWrites, to, bytes);
  }

  void WriteHeader(int32_t, float, int32_t* slot, float* weight) override {
    Run(kWrites, slot, sizeof(*slot));
    Run(kWrites, weight, sizeof(*weight));
  }

  void ReadHeader(const int32_t* slot) override {
    Run(kReads, slot, sizeof(*slot));
  }

  // What is a thread's own is no buffer; nobody touches it here.
  void* Scratch(GemmScratch::Slot slot, int64_t elements, int64_t) override {
    return scratch_.Reserve(slot, elements);
  }

 private:
  template <class Tile>
  void Record(const Tile& tile) {
    VisitOperands(tile, [this](TileUse use, const TileOperand& of, auto, auto) {
      const bool written = use == TileUse::kWrite || use == TileUse::kUpdate;
      // Rows at addresses of their own are read.
      for (int64_t i = 0; of.at != nullptr && i < of.rows; ++i) {
        Box(kReads, of.at[i], 1, of.cols, of.cols, of.element_bytes);
      }
      if (use != TileUse::kWrite) Box(kReads, of);
      if (written) Box(kWrites, of);
    });
  }

  void Box(bool write, const TileOperand& of) {
    Box(write, of.data, of.rows, of.cols, of.ld, of.element_bytes);
  }

  // Rows of elements, `ld` elements apart; none at null.
  void Box(bool write, const void* at, int64_t rows, int64_t cols, int64_t ld,
           int64_t element_bytes) {
    const Range* const range = RangeOf(at);
    // Routing weights and what a put carries are no buffer.
    if (range == nullptr || rows == 0 || cols == 0) return;
    const int64_t begin =
        (static_cast<const char*>(at) - range->begin) / range->element_bytes;
    const int64_t col = begin % range->cols;
    const bool aligned = element_bytes == range->element_bytes;
    if (aligned && ld == range->cols && col + cols <= range->cols) {
      return Add(write, *range, begin / range->cols, rows, col, cols);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t from =
          begin + i * ld * element_bytes / range->element_bytes;
      Run(write, *range, from,
          from + cols * element_bytes / range->element_bytes);
    }
  }

  // Bytes side by side.
  void Run(bool write, const void* at, int64_t bytes) {
    Box(write, at, 1, bytes, bytes, 1);
  }

  // Elements side by side, cut at the ends of the buffer's rows.
  void Run(bool write, const Range& range, int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t col = begin % range.cols;
      const int64_t cols = std::min(range.cols - col, end - begin);
      Add(write, range, begin / range.cols, 1, col, cols);
      begin += cols;
    }
  }

  const Range* RangeOf(const void* at) const {
    const auto range =
        std::find_if(ranges_.begin(), ranges_.end(),
                     [&](const Range& r) { return r.Holds(at); });
    return range == ranges_.end() ? nullptr : &*range;
  }

  // Cut at the ends of slabs.
  void Add(bool write, const Range& range, int64_t row, int64_t rows,
           int64_t col, int64_t cols) {
    const auto narrow = [](int64_t x) { return static_cast<int32_t>(x); };
    while (rows > 0) {
      const int64_t in_slab = row % range.rows;
      const int64_t taken = std::min(rows, range.rows - in_slab);
      Add({range.buffer, write, narrow(row / range.rows), narrow(in_slab),
           narrow(in_slab + taken), narrow(range.first_col + col),
           narrow(range.first_col + col + cols)});
      row += taken;
      rows -= taken;
    }
  }

  // Grows the last access of its like where it can.  A row header has several
  // parts, which are one column.
  void Add(const Access& next) {
    const bool beside = next.col_begin >= cols_[next.buffer];
    int32_t& last = last_[next.buffer][next.write][beside];
    if (last > 0) {
      Access& a = accesses_[last - 1];
      const bool alike = a.slab == next.slab && a.col_begin == next.col_begin &&
                         a.col_end == next.col_end;
      if (alike && a.row_begin <= next.row_begin && next.row_end <= a.row_end) {
        return;
      }
      if (alike && a.row_end == next.row_begin) {
        a.row_end = next.row_end;
        return;
      }
    }
    accesses_.push_back(next);
    last = static_cast<int32_t>(accesses_.size());
  }

  const std::vector<Range> ranges_;
  int64_t cols_[kNumBuffers];
  int32_t last_[kNumBuffers][2][2] = {};  // place in accesses_, from 1
  std::vector<Access> accesses_;
  GemmScratch scratch_;
};

}  // namespace

SentRows::SentRows(const Layer& layer) {
  const ImageHeader& image = *layer.image;
  const PlanView& plan = layer.plan;
  source.assign(int64_t{image.num_ranks} * image.num_rows, -1);
  slot = source;
  ForEachPlannedRow(plan, [&](int64_t at, int32_t from, int32_t of) {
    source[at] = from;
    slot[at] = of;
  });
  if (image.relay == 0) return;
  copies.assign(source.size() * CopiesOf(image), {-1, -1, 0.0f});
  ForEachPlannedCopy(
      plan, [&](int64_t at, int32_t from, int32_t row, int32_t of) {
        copies[at] = {row, of, layer.topk_weights[from * layer.Slots() + of]};
      });
}

std::vector<Access> AccessesOf(const TaskDesc& task, const Layer& live,
                               const SentRows& sent) {
  Layer layer = live;
  // Only read below.
  layer.header_slot = const_cast<int32_t*>(sent.slot.data());
  if (live.copies != nullptr) {
    layer.copies = const_cast<RowCopy*>(sent.copies.data());
  }
  Recorder recorder(layer);
  RunTask(task, layer, &recorder);
  return recorder.Take();
}

BufferId HeaderBuffer(const ImageHeader& image) {
  return image.direction == kForward ? kExpertIn : kDExpertOut;
}

}  // namespace hpmoe
