#include "backend_ascend/kernels/host/checks/runtime_accesses.h"

#include <utility>

namespace hpmoe {
namespace {

constexpr bool kReads = false, kWrites = true;

// Collects one task's accesses.
class Recorder {
 public:
  Recorder(const TaskDesc& task, const Layer& layer)
      : task_(task), layer_(layer), works_(KindOf(task)) {}

  std::vector<Access> Take() { return std::move(accesses_); }

  void PutRows() {
    const int32_t rows = RealRows(task_, layer_).count();
    const int32_t first = FirstRow(task_, layer_);
    const int32_t owner = layer_.Owner(task_.expert);
    const auto cols = static_cast<int32_t>(Of(written()).cols);
    for (int32_t i = 0; i < rows; ++i) {
      const int32_t token = SentSlot(task_, layer_, i) / layer_.image->top_k;
      Add(kReads, works_.left(), task_.rank, token, 1, 0, cols);
    }
    Add(kWrites, written(), owner, first, rows, 0, cols);
    Beside(kWrites, written(), owner, first, rows);
  }

  void Gemm(const GemmTile& tile) {
    Box(kReads, works_.left(), tile.a, tile.trans_a ? tile.k : tile.m,
        tile.trans_a ? tile.m : tile.k);
    Box(kReads, works_.right(), tile.b, tile.trans_b ? tile.n : tile.k,
        tile.trans_b ? tile.k : tile.n);
    if (!tile.carry_out) Box(kWrites, written(), tile.c, tile.m, tile.n);
    if (tile.carry_in) Sums(kReads, tile);
    if (tile.carry_out) Sums(kWrites, tile);
  }

  void Swiglu(const SwigluTile& tile) {
    Box(kReads, works_.left(), tile.gate, tile.rows, tile.cols);
    Box(kReads, works_.left(), tile.up, tile.rows, tile.cols);
    RowWeights(tile.row_weight, tile.rows);
    Box(kWrites, written(), tile.out, tile.rows, tile.cols);
  }

  void SwigluGrad(const SwigluGradTile& tile) {
    Box(kReads, works_.left(), tile.d_out, tile.rows, tile.cols);
    Box(kReads, works_.right(), tile.gate, tile.rows, tile.cols);
    Box(kReads, works_.right(), tile.up, tile.rows, tile.cols);
    RowWeights(tile.row_weight, tile.rows);
    Box(kWrites, written(), tile.d_gate, tile.rows, tile.cols);
    Box(kWrites, written(), tile.d_up, tile.rows, tile.cols);
    if (tile.d_row_weight == nullptr) return;
    Along(kWrites, written(), tile.d_row_weight - layer_.d_row_weight,
          tile.rows);
  }

  void PutHome() {
    const int32_t rows = RealRows(task_, layer_).count();
    const int32_t first = FirstRow(task_, layer_), rank = task_.rank;
    const auto cols = static_cast<int32_t>(Of(written()).cols);
    Add(kReads, works_.left(), rank, first, rows, 0, cols);
    Beside(kReads, HeaderBuffer(*layer_.image), rank, first, rows);
    const bool weights = layer_.d_slot_weight != nullptr;
    if (weights) Beside(kReads, kDGateUp, rank, first, rows);
    ForEachReturned(task_, layer_, [&](int32_t, int32_t source, int32_t slot) {
      Add(kWrites, written(), source, slot, 1, 0, cols);
      if (weights) Beside(kWrites, written(), source, slot, 1);
    });
  }

  void Combine(const CombineTile& tile) {
    Box(kReads, works_.left(), tile.returned, tile.tokens * tile.top_k,
        tile.cols);
    Box(kWrites, written(), tile.y, tile.tokens, tile.cols);
  }

  void WeightDots() {
    const int32_t begin = task_.row_begin, tokens = task_.row_end - begin;
    const int32_t top_k = layer_.image->top_k, rank = task_.rank;
    const int32_t slot = begin * top_k, slots = tokens * top_k;
    if (layer_.d_slot_weight != nullptr) {
      Beside(kReads, kDReturned, rank, slot, slots);
    } else {
      const auto cols = static_cast<int32_t>(Of(works_.left()).cols);
      Add(kReads, works_.left(), rank, begin, tokens, 0, cols);
      Add(kReads, works_.right(), rank, slot, slots, 0, cols);
    }
    Add(kWrites, written(), rank, begin, tokens, 0, top_k);
  }

 private:
  BufferId written() const { return works_.written; }
  const Array& Of(BufferId buffer) const { return layer_.buffers[buffer]; }

  void Add(bool write, BufferId buffer, int64_t slab, int64_t row, int64_t rows,
           int64_t col, int64_t cols) {
    if (rows == 0 || cols == 0) return;
    const auto narrow = [](int64_t x) { return static_cast<int32_t>(x); };
    accesses_.push_back({buffer, write, narrow(slab), narrow(row),
                         narrow(row + rows), narrow(col), narrow(col + cols)});
  }

  void Beside(bool write, BufferId buffer, int64_t slab, int64_t row,
              int64_t rows) {
    Add(write, buffer, slab, row, rows, Of(buffer).cols, 1);
  }

  // Beside the rows from row `at` of all [R, N].
  void Along(bool write, BufferId buffer, int64_t at, int64_t rows) {
    const int64_t num_rows = layer_.image->num_rows;
    Beside(write, buffer, at / num_rows, at % num_rows, rows);
  }

  void RowWeights(const float* weights, int64_t rows) {
    if (weights == nullptr) return;
    Along(kReads, HeaderBuffer(*layer_.image), weights - layer_.header_weight,
          rows);
  }

  // From the element at `at`; `past` columns further.
  void Box(bool write, BufferId buffer, const void* at, int64_t rows,
           int64_t cols, int64_t past = 0) {
    const Array& array = Of(buffer);
    const int64_t index =
        (static_cast<const char*>(at) - array.data) / array.element_bytes;
    const int64_t row = index / array.cols;
    Add(write, buffer, row / array.rows, row % array.rows, rows,
        index % array.cols + past, cols);
  }

  // They lie as the gradient does.
  void Sums(bool write, const GemmTile& tile) {
    Box(write, written(), tile.c, tile.m, tile.n, Of(written()).cols);
  }

  const TaskDesc& task_;
  const Layer& layer_;
  const KindInfo& works_;
  std::vector<Access> accesses_;
};

}  // namespace

SentRows::SentRows(const Layer& layer) {
  const ImageHeader& image = *layer.image;
  const Plan& plan = *layer.plan;
  source.assign(int64_t{image.num_ranks} * image.num_rows, -1);
  slot = source;
  for (int32_t rank = 0; rank < image.num_ranks; ++rank) {
    for (int32_t expert = 0; expert < image.num_experts; ++expert) {
      const int64_t slice = int64_t{rank} * image.num_experts + expert;
      const int64_t row =
          int64_t{layer.Owner(expert)} * image.num_rows + plan.row_base[slice];
      for (int32_t i = 0; i < plan.counts[slice]; ++i) {
        source[row + i] = rank;
        slot[row + i] = plan.slice_slots[plan.slice_begin[slice] + i];
      }
    }
  }
}

std::vector<Access> AccessesOf(const TaskDesc& task, const Layer& live,
                               const SentRows& sent) {
  if (RealRows(task, live).count() == 0) return {};
  Layer layer = live;
  // Only read below.
  layer.header_slot = const_cast<int32_t*>(sent.slot.data());
  Recorder recorder(task, layer);
  switch (KindOf(task).work) {
    case Work::kPutRows:
      recorder.PutRows();
      break;
    case Work::kGemm:
    case Work::kGemmTransposed:
      recorder.Gemm(MakeGemmTile(task, task.expert, layer));
      break;
    case Work::kWeightGrad:
      recorder.Gemm(MakeWeightGradTile(task, layer));
      break;
    case Work::kActivation:
      recorder.Swiglu(MakeSwigluTile(task, layer));
      break;
    case Work::kActivationGrad:
      recorder.SwigluGrad(MakeSwigluGradTile(task, layer));
      break;
    case Work::kPutHome:
      recorder.PutHome();
      break;
    case Work::kSumSlots:
      recorder.Combine(MakeCombineTile(task, layer));
      break;
    case Work::kWeightDots:
      recorder.WeightDots();
      break;
  }
  return recorder.Take();
}

BufferId HeaderBuffer(const ImageHeader& image) {
  return image.direction == kForward ? kExpertIn : kDExpertOut;
}

}  // namespace hpmoe
