#include "backend_ascend/kernels/host/production/production_tasks.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace hpmoe {
namespace {

// Rows of a matrix, either side by side or each at an address of its own.
struct Matrix {
  const void* data = nullptr;
  int64_t ld = 0;
  const void* const* rows = nullptr;
};

Matrix At(const Array& array, int64_t slab, int64_t row, int64_t col) {
  return {array.At(slab, row, col), array.cols, nullptr};
}

class Runner {
 public:
  Runner(const TaskDesc& task, const ProductionLayer& production,
         GemmScratch* scratch)
      : task_(task),
        production_(production),
        layer_(production.layer),
        image_(*production.layer.image),
        kernels_(layer_.isa, scratch),
        scratch_(scratch),
        rows_(RealRows(task, layer_)),
        first_(FirstRow(task, layer_)) {}

  void Run() {
    const KindInfo& kind = KindOf(task_);
    const bool made = production_.Makes(kind.written);
    // A corrupt image may have tiles without columns: there is no memory then.
    const bool wide = kind.info().whole_rows || task_.col_end > task_.col_begin;
    if (rows_.count() == 0 || !wide || !made) return;
    switch (kind.work) {
      case Work::kPutRows:
        return PutRows();
      case Work::kGemm:
      case Work::kGemmTransposed:
        return Gemm();
      case Work::kWeightGrad:
        return WeightGrad();
      case Work::kActivation:
        return Activate(
            GatesAndUps(task_.col_begin, task_.col_end - task_.col_begin),
            Written(), Made(kind.written).cols);
      case Work::kActivationGrad:
        return ActivateGrad();
      case Work::kPutHome:
        return PutHome();
      case Work::kSumSlots:
        return SumSlots();
      case Work::kWeightDots:
        return WeightDots();
      case Work::kPutOnce:
        return PutRows();
      case Work::kRelayRows:
        return RelayRows();
    }
  }

 private:
  const Array& Made(BufferId buffer) const { return layer_.buffers[buffer]; }
  DType dtype() const { return static_cast<DType>(image_.dtype); }
  int64_t bytes() const { return BytesOf(dtype()); }

  // Where the task writes.
  void* Written() const {
    return Made(KindOf(task_).written).At(task_.rank, first_, task_.col_begin);
  }

  void* Scratch(GemmScratch::Slot slot, int64_t elements) const {
    return scratch_->Reserve(slot, elements);
  }

  // Addresses of the tokens of `count` rows of the expert from `first`, as its
  // owner packs them.
  Matrix RowsOfTokens(const Array& tokens, int32_t first, int32_t count) {
    const PlanView& plan = layer_.plan;
    pointers_.clear();
    for (int32_t source = 0; source < image_.num_ranks; ++source) {
      const int64_t slice = SliceOf(task_, source, plan);
      const int32_t base = plan.row_base[slice];
      const int32_t end = std::min(base + plan.counts[slice], first + count);
      for (int32_t row = std::max(base, first); row < end; ++row) {
        const int32_t slot =
            plan.slice_slots[plan.slice_begin[slice] + row - base];
        pointers_.push_back(tokens.At(source, slot / image_.top_k, 0));
      }
    }
    return {nullptr, 0, pointers_.data()};
  }

  // Rows of a buffer that a put writes, or those that it would send.
  Matrix Sent(BufferId buffer, const Array& tokens, int32_t first,
              int32_t count) {
    if (production_.Makes(buffer)) {
      return At(Made(buffer), task_.rank, first, 0);
    }
    return RowsOfTokens(tokens, first, count);
  }

  const float* RowWeights() const {
    if (KindOf(task_).weighted != static_cast<int32_t>(image_.placement)) {
      return nullptr;
    }
    return layer_.header_weight + layer_.RowAt(task_.rank, first_);
  }

  // c[rows, n] = a[rows, k] @ b, or b^T.
  void Multiply(const Matrix& a, int32_t k, const Matrix& b, bool transposed,
                int32_t n, void* c, int64_t ldc) {
    GemmTile tile{};
    tile.a = a.data;
    tile.lda = a.ld;
    tile.a_rows = a.rows;
    tile.b = b.data;
    tile.ldb = b.ld;
    tile.trans_b = transposed;
    tile.c = c;
    tile.ldc = ldc;
    tile.m = rows_.count();
    tile.n = n;
    tile.k = k;
    tile.dtype = dtype();
    tile.order = static_cast<AccumulationOrder>(image_.accumulation_order);
    kernels_.Gemm(tile);
  }

  void PutRows() {
    const Array& to = Made(KindOf(task_).written);
    const int32_t owner = layer_.Owner(task_.expert);
    for (int32_t i = 0; i < rows_.count(); ++i) {
      const int32_t slot = SentSlot(task_, layer_, i);
      WriteSentRow(task_, layer_, slot / image_.top_k,
                   layer_.topk_weights[layer_.SlotAt(task_.rank, slot)],
                   to.At(owner, first_ + i, 0));
    }
  }

  void RelayRows() {
    const Array& to = Made(KindOf(task_).written);
    const RowCopy* const copies = layer_.CopiesAt(task_.rank, 0);
    const int32_t per = CopiesOf(image_);
    ForEachCopy(task_, layer_.plan, CopyRowsOf(layer_, task_.rank),
                [&](int64_t at, int32_t row) {
                  WriteSentRow(task_, layer_, static_cast<int32_t>(at / per),
                               copies[at].weight, to.At(task_.rank, row, 0));
                });
  }

  void Gemm() {
    const int32_t col = task_.col_begin, n = task_.col_end - col;
    const BufferId out = KindOf(task_).written;
    const BufferId left = KindOf(task_).left(), right = KindOf(task_).right();
    const bool transposed = KindOf(task_).work == Work::kGemmTransposed;
    const Matrix b = transposed ? At(Made(right), task_.expert, col, 0)
                                : At(Made(right), task_.expert, 0, col);
    Matrix a;
    int64_t depth = Made(left).cols;
    if (left == kExpertIn) {
      a = Sent(left, production_.x, first_, rows_.count());
    } else if (left == kDExpertOut) {
      a = Sent(left, Made(kDy), first_, rows_.count());
    } else if (production_.Makes(left)) {
      a = At(Made(left), task_.rank, first_, 0);
    } else {  // activation
      depth = image_.d_ff;
      a = ActivationTile();
    }
    Multiply(a, static_cast<int32_t>(depth), b, transposed, n, Written(),
             Made(out).cols);
  }

  // The activation of the task's rows, in place of the gates if nobody asked
  // for those.
  Matrix ActivationTile() {
    const int32_t cols = image_.d_ff;
    const SwigluTile in = GatesAndUps(0, cols);
    const bool kept = production_.Makes(kGateUpBuffer);
    const int64_t ld = kept ? cols : in.ld_in;
    void* const out =
        kept ? Scratch(GemmScratch::kActTile, int64_t{rows_.count()} * cols)
             : const_cast<void*>(in.gate);
    Activate(in, out, ld);
    return {out, ld, nullptr};
  }

  // Columns [col, col + cols) of what is activated, where they were made or of
  // a tile.
  SwigluTile GatesAndUps(int32_t col, int32_t cols) {
    SwigluTile tile{};
    tile.cols = cols;
    if (production_.Makes(kGateUpBuffer)) {
      const Array& gate_up = Made(kGateUpBuffer);
      tile.gate = gate_up.At(task_.rank, first_, col);
      tile.up = gate_up.At(task_.rank, first_, image_.d_ff + col);
      tile.ld_in = gate_up.cols;
    } else {
      auto* const gate = static_cast<char*>(
          Scratch(GemmScratch::kGateUpTile, int64_t{2} * rows_.count() * cols));
      GateAndUp(col, cols, gate);
      tile.gate = gate;
      tile.up = gate + cols * bytes();
      tile.ld_in = 2 * cols;
    }
    return tile;
  }

  void Activate(SwigluTile tile, void* out, int64_t ld_out) {
    tile.out = out;
    tile.ld_out = ld_out;
    tile.rows = rows_.count();
    if (image_.placement == kBeforeDown) {
      tile.row_weight = layer_.header_weight + layer_.RowAt(task_.rank, first_);
    }
    tile.dtype = dtype();
    tile.activation = static_cast<ActivationKind>(image_.activation);
    kernels_.Swiglu(tile);
  }

  // out[rows, 2 * cols]: gate columns first.
  void GateAndUp(int32_t col, int32_t cols, char* out) {
    const Array& weight = Made(kWGateUp);
    const Matrix a = Sent(kExpertIn, production_.x, first_, rows_.count());
    const auto half = [&](int32_t from, int32_t n, char* to) {
      Multiply(a, image_.d_model, At(weight, task_.expert, 0, from), false, n,
               to, 2 * cols);
    };
    if (cols == image_.d_ff) return half(0, 2 * cols, out);
    half(col, cols, out);
    half(image_.d_ff + col, cols, out + cols * bytes());
  }

  void ActivateGrad() {
    const int32_t width = image_.d_ff, count = rows_.count();
    const Array& gate_up = Made(kGateUpBuffer);
    const Array& grad = Made(kDGateUp);
    SwigluGradTile tile{};
    if (production_.Makes(kDActivation)) {
      tile.d_out = Made(kDActivation).At(task_.rank, first_, 0);
      tile.ld_d_out = width;
    } else {
      void* const d_out =
          Scratch(GemmScratch::kActTile, int64_t{count} * width);
      Multiply(Sent(kDExpertOut, Made(kDy), first_, count), image_.d_model,
               At(Made(kWDown), task_.expert, 0, 0), true, width, d_out, width);
      tile.d_out = d_out;
      tile.ld_d_out = width;
    }
    tile.gate = gate_up.At(task_.rank, first_, 0);
    tile.up = gate_up.At(task_.rank, first_, width);
    tile.d_gate = grad.At(task_.rank, first_, 0);
    tile.d_up = grad.At(task_.rank, first_, width);
    tile.ld_in = gate_up.cols;
    tile.ld_grad = grad.cols;
    tile.rows = count;
    tile.cols = width;
    tile.row_weight = RowWeights();
    if (layer_.d_row_weight != nullptr) {
      tile.d_row_weight =
          layer_.d_row_weight + layer_.RowAt(task_.rank, first_);
    }
    tile.dtype = dtype();
    tile.activation = static_cast<ActivationKind>(image_.activation);
    kernels_.SwigluGrad(tile);
  }

  void WeightGrad() {
    GemmTile tile = MakeWeightGradTile(task_, layer_);
    const RowRange summed = SummedRows(task_, layer_);
    if (!production_.Makes(KindOf(task_).left()) && summed.count() > 0) {
      const int32_t first =
          layer_.plan.expert_base[task_.expert] + summed.begin;
      RowsOfTokens(production_.x, first, summed.count());
      for (const void*& row : pointers_) {
        row = static_cast<const char*>(row) + task_.row_begin * bytes();
      }
      tile.a_rows = pointers_.data();
    }
    if (!production_.Makes(KindOf(task_).right()) && summed.count() > 0) {
      return WeightGradOfTokens(tile, summed);
    }
    kernels_.Gemm(tile);
  }

  // d_expert_out at no weight: a copy of the columns that the task reads.
  void WeightGradOfTokens(GemmTile tile, const RowRange& summed) {
    const int32_t first = layer_.plan.expert_base[task_.expert] + summed.begin;
    const int64_t row_bytes = tile.n * bytes();
    auto* to = static_cast<char*>(
        Scratch(GemmScratch::kGateUpTile, int64_t{tile.n} * tile.k));
    tile.b = to;
    tile.ldb = tile.n;
    RowsOfTokens(Made(kDy), first, summed.count());
    for (const void* row : pointers_) {
      std::memcpy(to, static_cast<const char*>(row) + task_.col_begin * bytes(),
                  row_bytes);
      to += row_bytes;
    }
    kernels_.Gemm(tile);
  }

  void PutHome() {
    const Array& rows = Made(KindOf(task_).left());
    const Array& home = Made(KindOf(task_).written);
    ForEachReturned(
        task_, layer_, [&](int32_t row, int32_t source, int32_t slot) {
          std::memcpy(home.At(source, slot, 0), rows.At(task_.rank, row, 0),
                      rows.cols * rows.element_bytes);
        });
  }

  // Where a token's expert put the row of one of its slots.
  int32_t OwnerOf(int64_t slot) const {
    return layer_.Owner(production_.topk_ids[layer_.SlotAt(task_.rank, slot)]);
  }
  int32_t RowOf(int64_t slot) const {
    return production_.row_of_slot[layer_.SlotAt(task_.rank, slot)];
  }

  void SumSlots() {
    CombineTile tile{};
    const BufferId left = KindOf(task_).left();
    const int64_t slot = int64_t{task_.row_begin} * image_.top_k;
    const int32_t count = rows_.count();
    if (production_.Makes(left)) {
      tile.returned = Made(left).At(task_.rank, slot, task_.col_begin);
    } else {
      const Array& from = Made(left == kReturned ? kExpertOut : kDExpertIn);
      pointers_.resize(int64_t{count} * image_.top_k);
      for (size_t i = 0; i < pointers_.size(); ++i) {
        pointers_[i] =
            from.At(OwnerOf(slot + i), RowOf(slot + i), task_.col_begin);
      }
      tile.rows = pointers_.data();
    }
    if (KindOf(task_).weighted == static_cast<int32_t>(image_.placement)) {
      tile.weights = layer_.topk_weights + layer_.SlotAt(task_.rank, slot);
    }
    const Array& out = Made(KindOf(task_).written);
    tile.y = out.At(task_.rank, task_.row_begin, task_.col_begin);
    tile.ld = Made(left).cols;
    tile.ld_y = out.cols;
    tile.tokens = count;
    tile.top_k = image_.top_k;
    tile.cols = task_.col_end - task_.col_begin;
    tile.dtype = dtype();
    kernels_.Combine(tile);
  }

  void WeightDots() {
    const Array& out = Made(kDTopkWeights);
    for (int32_t token = task_.row_begin; token < task_.row_end; ++token) {
      auto* const to = reinterpret_cast<float*>(out.At(task_.rank, token, 0));
      for (int32_t k = 0; k < image_.top_k; ++k) {
        WeightDot(token, int64_t{token} * image_.top_k + k, to + k);
      }
    }
  }

  void WeightDot(int32_t token, int64_t slot, float* to) {
    if (layer_.d_row_weight != nullptr) {
      *to = layer_.d_row_weight[layer_.RowAt(OwnerOf(slot), RowOf(slot))];
      return;
    }
    RowDotTile tile{};
    tile.a = Made(kDy).At(task_.rank, token, 0);
    tile.b = production_.Makes(kReturned)
                 ? Made(kReturned).At(task_.rank, slot, 0)
                 : production_.expert_out.At(OwnerOf(slot), RowOf(slot), 0);
    tile.out = to;
    tile.rows = 1;
    tile.cols = image_.d_model;
    tile.dtype = dtype();
    kernels_.RowDots(tile);
  }

  const TaskDesc& task_;
  const ProductionLayer& production_;
  const Layer& layer_;
  const ImageHeader& image_;
  HostKernels kernels_;
  GemmScratch* const scratch_;
  const RowRange rows_;
  const int32_t first_;
  std::vector<const void*> pointers_;
};

}  // namespace

void RunProductionTask(const TaskDesc& task, const ProductionLayer& production,
                       GemmScratch* scratch) {
  Runner(task, production, scratch).Run();
}

}  // namespace hpmoe
