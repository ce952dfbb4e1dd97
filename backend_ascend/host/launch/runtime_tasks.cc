#include "backend_ascend/host/launch/runtime_tasks.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend_ascend/host/launch/runtime_puts.h"
#include "backend_ascend/host/launch/task_operands.h"
#include "backend_ascend/host/tiles/poison.h"

namespace hpmoe {

void HostKernels::Gemm(const GemmTile& tile) {
  RunGemmTile(tile, isa_, scratch_);
}

void HostKernels::Swiglu(const SwigluTile& tile) { RunSwigluTile(tile, isa_); }

void HostKernels::SwigluGrad(const SwigluGradTile& tile) {
  RunSwigluGradTile(tile, isa_);
}

void HostKernels::Combine(const CombineTile& tile) {
  RunCombineTile(tile, isa_);
}

void HostKernels::RowDots(const RowDotTile& tile) { RunRowDotTile(tile, isa_); }

void HostKernels::ScaleRows(const ScaleRowsTile& tile) {
  RunScaleRowsTile(tile, isa_);
}

void HostKernels::Norm(const NormTile& tile) { RunNormTile(tile, isa_); }

void HostKernels::CodeGemm(const CodeGemmTile& tile) {
  RunCodeGemmTile(tile, isa_, scratch_);
}

void HostKernels::QuantiseRows(const QuantiseRowsTile& tile) {
  RunQuantiseRowsTile(tile, isa_);
}

void HostKernels::CodeSwiglu(const CodeSwigluTile& tile) {
  RunCodeSwigluTile(tile, isa_);
}

void HostKernels::DequantiseRows(const DequantiseRowsTile& tile) {
  RunDequantiseRowsTile(tile, isa_);
}

void* HostKernels::Scratch(GemmScratch::Slot slot, int64_t elements,
                           int64_t element_bytes) {
  float* const tile = scratch_->Reserve(slot, elements);
  if (poison_) {
    PoisonElements(reinterpret_cast<char*>(tile), elements, element_bytes);
  }
  return tile;
}

Array ShapeOf(const ImageHeader& image, BufferId buffer) {
  const BufferInfo& info = kBuffers[buffer];
  const int64_t rows =
      info.rows == Axis::kC ? image.num_rows : SizeOf(image, info.rows);
  return {nullptr, IsWeight(info.rows) ? image.num_experts : image.num_ranks,
          rows, SizeOf(image, info.cols), ElementBytes(image, buffer)};
}

namespace {

// The product of a kind for the task's rows, but for where it goes.
GemmTile MakeProduct(const KindInfo& kind, const TaskDesc& task, int32_t expert,
                     int32_t col, int32_t cols, const Layer& layer) {
  const Array& rows = layer.buffers[kind.left()];
  const Array& weight = layer.buffers[kind.right()];
  GemmTile tile{};
  tile.trans_b = kind.work == Work::kGemmTransposed;
  tile.a = RowsAt(rows, task.rank, FirstRow(task, layer), 0);
  tile.b = tile.trans_b ? weight.At(expert, col, 0) : weight.At(expert, 0, col);
  tile.lda = rows.cols;
  tile.ldb = weight.cols;
  tile.m = RealRows(task, layer).count();
  tile.n = cols;
  tile.k = static_cast<int32_t>(rows.cols);
  tile.dtype = StoredAs(layer);
  tile.order = OrderOf(layer);
  tile.row_weight = RowWeights(kind, task, layer);
  return tile;
}

// The activation of the task's rows, but for where it goes.
SwigluTile MakeActivation(const TaskDesc& task, int32_t col, int32_t cols,
                          const Layer& layer) {
  const Array& gate_up = layer.buffers[kGateUpBuffer];
  const int32_t row = FirstRow(task, layer);
  SwigluTile tile{};
  tile.gate = RowsAt(gate_up, task.rank, row, col);
  tile.up = RowsAt(gate_up, task.rank, row, layer.image->d_ff + col);
  tile.ld_in = gate_up.cols;
  tile.rows = RealRows(task, layer).count();
  tile.cols = cols;
  tile.row_weight = RowWeights(kKinds[kSwiglu], task, layer);
  tile.dtype = StoredAs(layer);
  tile.activation = static_cast<ActivationKind>(layer.image->activation);
  return tile;
}

// The kernel arguments of a task with real rows.  Null for rows that this
// launch does not make: Fused brings others.

GemmTile MakeGemmTile(const TaskDesc& task, int32_t expert,
                      const Layer& layer) {
  const Array& out = Written(task, layer);
  GemmTile tile = MakeProduct(KindOf(task), task, expert, task.col_begin,
                              task.col_end - task.col_begin, layer);
  tile.c = out.At(task.rank, FirstRow(task, layer), task.col_begin);
  tile.ldc = out.cols;
  return tile;
}

GemmTile MakeWeightGradTile(const TaskDesc& task, const Layer& layer) {
  const Array& left = Left(task, layer);
  const Array& right = Right(task, layer);
  const Array& out = Written(task, layer);
  const RowRange rows = SummedRows(task, layer);
  // Rows of an empty sum may lie past the buffer; none is read.
  const int64_t row =
      rows.count() == 0 ? 0 : layer.plan.expert_base[task.expert] + rows.begin;
  GemmTile tile{};
  tile.trans_a = true;
  tile.a = RowsAt(left, task.rank, row, task.row_begin);
  tile.b = RowsAt(right, task.rank, row, task.col_begin);
  tile.c = out.At(task.expert, task.row_begin, task.col_begin);
  tile.lda = left.cols;
  tile.ldb = right.cols;
  tile.ldc = out.cols;
  tile.m = task.row_end - task.row_begin;
  tile.n = task.col_end - task.col_begin;
  tile.k = rows.count();
  tile.dtype = StoredAs(layer);
  tile.order = OrderOf(layer);
  float* const sums = layer.sums[KindOf(task).written];
  if (sums != nullptr) {
    tile.carry =
        sums +
        ((task.expert - out.first) * out.rows + task.row_begin) * out.cols +
        task.col_begin;
    tile.ld_carry = out.cols;
    tile.carry_in = task.peer > 0;
    tile.carry_out = task.peer + 1 < LinksOf(*layer.image);
  }
  return tile;
}

SwigluTile MakeSwigluTile(const TaskDesc& task, const Layer& layer) {
  const Array& out = Written(task, layer);
  SwigluTile tile = MakeActivation(task, task.col_begin,
                                   task.col_end - task.col_begin, layer);
  tile.out = out.At(task.rank, FirstRow(task, layer), task.col_begin);
  tile.ld_out = out.cols;
  return tile;
}

// Whole rows, whatever the columns of the task: the gradient of a row's weight
// is a sum over all of them.
SwigluGradTile MakeSwigluGradTile(const TaskDesc& task, const Layer& layer) {
  const Array& d_out = Left(task, layer);
  const Array& gate_up = Right(task, layer);
  const Array& grad = Written(task, layer);
  const int32_t row = FirstRow(task, layer);
  const int32_t width = layer.image->d_ff;
  SwigluGradTile tile{};
  tile.d_out = RowsAt(d_out, task.rank, row, 0);
  tile.gate = gate_up.At(task.rank, row, 0);
  tile.up = gate_up.At(task.rank, row, width);
  tile.d_gate = grad.At(task.rank, row, 0);
  tile.d_up = grad.At(task.rank, row, width);
  tile.ld_d_out = d_out.cols;
  tile.ld_in = gate_up.cols;
  tile.ld_grad = grad.cols;
  tile.rows = RealRows(task, layer).count();
  tile.cols = width;
  tile.row_weight = RowWeights(KindOf(task), task, layer);
  // Where the weight comes later its gradient is of what was stored.
  if (layer.image->placement == kBeforeDown) {
    tile.d_row_weight = layer.d_row_weight + layer.RowAt(task.rank, row);
  }
  tile.dtype = StoredAs(layer);
  tile.activation = static_cast<ActivationKind>(layer.image->activation);
  return tile;
}

CombineTile MakeCombineTile(const TaskDesc& task, const Layer& layer) {
  const Array& rows = Left(task, layer);
  const Array& out = Written(task, layer);
  const int64_t slot = int64_t{task.row_begin} * layer.image->top_k;
  CombineTile tile{};
  tile.returned = RowsAt(rows, task.rank, slot, task.col_begin);
  if (IsWeighted(task, layer)) {
    tile.weights = layer.topk_weights + layer.SlotAt(task.rank, slot);
  }
  tile.y = out.At(task.rank, task.row_begin, task.col_begin);
  tile.ld = rows.cols;
  tile.ld_y = out.cols;
  tile.tokens = RealRows(task, layer).count();
  tile.top_k = layer.image->top_k;
  tile.cols = task.col_end - task.col_begin;
  tile.dtype = StoredAs(layer);
  return tile;
}

// Of the norm's own buffers: a sub-layer makes all of them.
NormTile MakeNormTile(const TaskDesc& task, const Layer& layer) {
  const bool sums = KindOf(task).work == Work::kGainGrad;
  const bool grad = sums || KindOf(task).work == Work::kNormGrad;
  const Array& y = layer.buffers[kY];
  const int32_t row = sums ? 0 : task.row_begin;
  NormTile tile{};
  tile.work = KindOf(task).work;
  tile.y = y.At(task.rank, row, 0);
  if (grad) {
    tile.dx = layer.buffers[kDx].At(task.rank, row, sums ? task.col_begin : 0);
  }
  if (!sums) tile.gain = layer.buffers[kWNorm].At(task.rank, 0, 0);
  tile.out = Written(task, layer)
                 .At(task.rank, task.row_begin, sums ? task.col_begin : 0);
  tile.ld = y.cols;
  tile.rows = sums ? layer.image->num_tokens : task.row_end - task.row_begin;
  tile.cols = static_cast<int32_t>(y.cols);
  tile.first_col = task.col_begin;
  tile.out_cols = task.col_end - task.col_begin;
  tile.dtype = StoredAs(layer);
  tile.epsilon = kEpsilons[layer.image->epsilon];
  tile.plain = layer.image->activation == kAbsolute;
  return tile;
}

// Of an image that quantises, whose rows are all made.

CodeGemmTile MakeCodeGemmTile(const TaskDesc& task, const Layer& layer) {
  const Array& rows = Left(task, layer);
  const Array& weight = Right(task, layer);
  const Array& out = Written(task, layer);
  const int32_t row = FirstRow(task, layer);
  CodeGemmTile tile{};
  tile.a = CodesAt(rows, task.rank, row, 0);
  tile.b = CodesAt(weight, task.expert, 0, task.col_begin);
  tile.c = SumsAt(out, task.rank, row, task.col_begin);
  tile.lda = rows.cols;
  tile.ldb = weight.cols;
  tile.ldc = out.cols;
  tile.m = RealRows(task, layer).count();
  tile.n = task.col_end - task.col_begin;
  tile.k = static_cast<int32_t>(tile.lda);
  return tile;
}

// Whole rows, whatever the columns of the task: a row has one scale.
CodeSwigluTile MakeCodeSwigluTile(const TaskDesc& task, const Layer& layer) {
  const Array& gate_up = Left(task, layer);
  const Array& out = Written(task, layer);
  const int32_t row = FirstRow(task, layer), width = layer.image->d_ff;
  CodeSwigluTile tile{};
  tile.gate = SumsAt(gate_up, task.rank, row, 0);
  tile.up = SumsAt(gate_up, task.rank, row, width);
  tile.row_scales = layer.RowScales(kExpertIn, task.rank, row);
  tile.gate_scales = layer.ColScales(kWGateUp, task.expert, 0);
  tile.up_scales = layer.ColScales(kWGateUp, task.expert, width);
  tile.row_weight = RowWeights(KindOf(task), task, layer);
  tile.codes = CodesAt(out, task.rank, row, 0);
  tile.scales = layer.RowScales(kActivation, task.rank, row);
  tile.ld_in = gate_up.cols;
  tile.ld_codes = out.cols;
  tile.rows = RealRows(task, layer).count();
  tile.cols = layer.image->d_ff;
  const bool wide = layer.image->quantised == kInt8TokenChannelWide;
  tile.dtype = wide ? kFloat32 : StoredAs(layer);
  tile.activation = static_cast<ActivationKind>(layer.image->activation);
  return tile;
}

// Work whose rows may not be made.
class Fused {
 public:
  Fused(const TaskDesc& task, const Layer& layer, Kernels* kernels)
      : task_(task),
        layer_(layer),
        image_(*layer.image),
        kernels_(*kernels),
        bytes_(BytesOf(StoredAs(layer))),
        rows_(RealRows(task, layer).count()) {}

  void Gemm() {
    Multiply(KindOf(task_), MakeGemmTile(task_, task_.expert, layer_));
  }

  void Activate() {
    SwigluTile tile = MakeSwigluTile(task_, layer_);
    if (tile.gate == nullptr) PlaceGates(task_.col_begin, &tile);
    kernels_.Swiglu(tile);
  }

  void ActivateGrad() {
    SwigluGradTile tile = MakeSwigluGradTile(task_, layer_);
    if (tile.d_out == nullptr) {
      const KindInfo& kind = kKinds[kDownGrad];
      GemmTile product =
          MakeProduct(kind, task_, task_.expert, 0, tile.cols, layer_);
      product.c = Scratch(GemmScratch::kActTile, tile.cols);
      product.ldc = tile.ld_d_out = tile.cols;
      tile.d_out = product.c;
      Multiply(kind, product);
    }
    kernels_.SwigluGrad(tile);
    if (image_.placement == kInEpilogue) DotActivations(tile);
  }

  void WeightGrad() {
    GemmTile tile = MakeWeightGradTile(task_, layer_);
    const RowRange summed = SummedRows(task_, layer_);
    if (summed.count() > 0) {
      const int32_t first =
          layer_.plan.expert_base[task_.expert] + summed.begin;
      PlaceRight(first, &tile);
      if (tile.a == nullptr) {
        tile.a_rows =
            RowsOfTokens(KindOf(task_).left(), first, tile.k, task_.row_begin);
      }
    }
    kernels_.Gemm(tile);
  }

  void SumSlots() {
    CombineTile tile = MakeCombineTile(task_, layer_);
    if (tile.returned == nullptr) tile.rows = RowsOfOwners();
    kernels_.Combine(tile);
  }

  void WeightDots() {
    for (int32_t token = task_.row_begin; token < task_.row_end; ++token) {
      const Array& out = Written(task_, layer_);
      DotsOf(token, reinterpret_cast<float*>(out.At(task_.rank, token, 0)));
    }
  }

 private:
  // Of the task's rows.
  void* Scratch(GemmScratch::Slot slot, int64_t cols) {
    return kernels_.Scratch(slot, rows_ * cols, bytes_);
  }

  void Multiply(const KindInfo& kind, GemmTile tile) {
    if (tile.a == nullptr && kind.left() == kActivation) {
      const SwigluTile made = ActivationTile();
      tile.a = made.out;
      tile.lda = made.ld_out;
    } else if (tile.a == nullptr) {
      tile.a_rows =
          RowsOfTokens(kind.left(), FirstRow(task_, layer_), tile.m, 0);
    }
    kernels_.Gemm(tile);
  }

  // In place of the gates if nobody asked for those.
  SwigluTile ActivationTile() {
    SwigluTile tile = MakeActivation(task_, 0, image_.d_ff, layer_);
    if (tile.gate == nullptr) {
      PlaceGates(0, &tile);
      tile.out = const_cast<void*>(tile.gate);
      tile.ld_out = tile.ld_in;
    } else {
      tile.out = Scratch(GemmScratch::kActTile, tile.cols);
      tile.ld_out = tile.cols;
    }
    kernels_.Swiglu(tile);
    return tile;
  }

  // [rows, 2 * cols]: gate columns first.
  void PlaceGates(int32_t col, SwigluTile* tile) {
    const int32_t cols = tile->cols;
    auto* const gate =
        static_cast<char*>(Scratch(GemmScratch::kGateUpTile, 2 * cols));
    tile->gate = gate;
    tile->up = gate + cols * bytes_;
    tile->ld_in = 2 * cols;
    const auto multiply = [&](int32_t from, int32_t count, char* to) {
      const KindInfo& kind = kKinds[kGateUp];
      GemmTile product =
          MakeProduct(kind, task_, task_.expert, from, count, layer_);
      product.c = to;
      product.ldc = 2 * cols;
      Multiply(kind, product);
    };
    if (cols == image_.d_ff) return multiply(0, 2 * cols, gate);
    multiply(col, cols, gate);
    multiply(image_.d_ff + col, cols, gate + cols * bytes_);
  }

  // Addresses of what a put would send to `count` rows of the expert from
  // `first`, as its owner packs them; from a column on.
  const void* const* RowsOfTokens(BufferId sent, int32_t first, int32_t count,
                                  int32_t col) {
    const Array& tokens = layer_.buffers[sent == kExpertIn ? kX : kDy];
    const PlanView& plan = layer_.plan;
    pointers_.clear();
    for (int32_t source = 0; source < image_.num_ranks; ++source) {
      const int64_t slice = SliceOf(task_, source, plan);
      const int32_t base = plan.row_base[slice];
      const int32_t end = std::min(base + plan.counts[slice], first + count);
      for (int32_t row = std::max(base, first); row < end; ++row) {
        const int32_t slot =
            plan.slice_slots[plan.slice_begin[slice] + row - base];
        pointers_.push_back(tokens.At(source, slot / image_.top_k, col));
      }
    }
    return pointers_.data();
  }

  // Gradients of the rows' weights, with their rows.
  void DotActivations(const SwigluGradTile& grad) {
    const Array& activation = layer_.buffers[kActivation];
    const int32_t row = FirstRow(task_, layer_);
    RowDotTile tile{};
    tile.a = grad.d_out;
    tile.b = activation.At(task_.rank, row, 0);
    tile.out = layer_.d_row_weight + layer_.RowAt(task_.rank, row);
    tile.ld_a = grad.ld_d_out;
    tile.ld_b = activation.cols;
    tile.rows = grad.rows;
    tile.cols = grad.cols;
    tile.dtype = grad.dtype;
    kernels_.RowDots(tile);
  }

  // The right rows of a weight gradient where no buffer has them as they are
  // multiplied: rows of dy, or weighted ones.  Of the columns that it reads.
  void PlaceRight(int32_t first, GemmTile* tile) {
    const bool weighted = IsWeighted(task_, layer_);
    if (tile->b != nullptr && !weighted) return;
    const void* const* const tokens =
        tile->b != nullptr ? nullptr
                           : RowsOfTokens(KindOf(task_).right(), first, tile->k,
                                          task_.col_begin);
    ScaleRowsTile row{};
    row.rows = 1;
    row.cols = tile->n;
    row.dtype = tile->dtype;
    row.ld_x = row.ld_out = tile->n;
    auto* to = static_cast<char*>(kernels_.Scratch(
        GemmScratch::kGateUpTile, int64_t{tile->n} * tile->k, bytes_));
    const float* const weights =
        layer_.header_weight + layer_.RowAt(task_.rank, first);
    for (int32_t i = 0; i < tile->k; ++i) {
      row.x = tokens != nullptr
                  ? tokens[i]
                  : static_cast<const char*>(tile->b) + i * tile->ldb * bytes_;
      row.out = to + i * tile->n * bytes_;
      row.weight = weighted ? weights + i : nullptr;
      kernels_.ScaleRows(row);
    }
    tile->b = to;
    tile->ldb = tile->n;
  }

  // Where a token's expert has the row of one of its slots.
  int32_t OwnerOf(int64_t slot) const {
    return layer_.Owner(layer_.topk_ids[layer_.SlotAt(task_.rank, slot)]);
  }
  int32_t RowOf(int64_t slot) const {
    return layer_.row_of_slot[layer_.SlotAt(task_.rank, slot)];
  }

  // Of all slots of the task's tokens: what would be put home.
  const void* const* RowsOfOwners() {
    const bool back = KindOf(task_).left() == kDReturned;
    const Array& from = layer_.buffers[back ? kDExpertIn : kExpertOut];
    const int64_t slot = int64_t{task_.row_begin} * image_.top_k;
    pointers_.resize(rows_ * image_.top_k);
    for (size_t i = 0; i < pointers_.size(); ++i) {
      pointers_[i] =
          from.At(OwnerOf(slot + i), RowOf(slot + i), task_.col_begin);
    }
    return pointers_.data();
  }

  // A token's weight gradients came home with its rows, or stayed with them, or
  // are dots of its row of `left` with its rows of `right`.
  void DotsOf(int32_t token, float* out) {
    const int32_t top_k = image_.top_k;
    const int64_t slot = int64_t{token} * top_k;
    if (layer_.d_slot_weight != nullptr) {
      return kernels_.Copy(
          layer_.d_slot_weight + layer_.SlotAt(task_.rank, slot),
          top_k * sizeof(float), out);
    }
    for (int32_t k = 0; k < top_k && layer_.d_row_weight != nullptr; ++k) {
      const int64_t row = layer_.RowAt(OwnerOf(slot + k), RowOf(slot + k));
      kernels_.Copy(layer_.d_row_weight + row, sizeof(float), out + k);
    }
    if (layer_.d_row_weight != nullptr) return;
    RowDotTile tile{};
    tile.a = Left(task_, layer_).At(task_.rank, token, 0);
    tile.b = RowsAt(Right(task_, layer_), task_.rank, slot, 0);
    tile.out = out;
    tile.ld_b = image_.d_model;
    tile.rows = top_k;
    tile.cols = image_.d_model;
    tile.dtype = StoredAs(layer_);
    if (tile.b != nullptr) return kernels_.RowDots(tile);
    tile.rows = 1;
    for (int32_t k = 0; k < top_k; ++k, ++tile.out) {
      tile.b =
          layer_.buffers[kExpertOut].At(OwnerOf(slot + k), RowOf(slot + k), 0);
      kernels_.RowDots(tile);
    }
  }

  const TaskDesc& task_;
  const Layer& layer_;
  const ImageHeader& image_;
  Kernels& kernels_;
  const int64_t bytes_;
  const int64_t rows_;
  std::vector<const void*> pointers_;
};

}  // namespace

void RunTask(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  const KindInfo& kind = KindOf(task);
  // A corrupt image may have tiles without columns: there is no memory then.
  const bool wide =
      WritesWholeRows(*layer.image, kind) || task.col_end > task.col_begin;
  if (RealRows(task, layer).count() == 0 || !wide) return;
  ReadHeaders(task, layer, kernels);
  if (!layer.Has(kind.written)) return;
  Fused fused(task, layer, kernels);
  switch (kind.work) {
    case Work::kPutRows:
      return PutRows(task, layer, kernels);
    case Work::kGemm:
      if (IsQuantised(*layer.image)) {
        return kernels->CodeGemm(MakeCodeGemmTile(task, layer));
      }
      return fused.Gemm();
    case Work::kGemmTransposed:
      return fused.Gemm();
    case Work::kWeightGrad:
      return fused.WeightGrad();
    case Work::kActivation:
      if (IsQuantised(*layer.image)) {
        return kernels->CodeSwiglu(MakeCodeSwigluTile(task, layer));
      }
      return fused.Activate();
    case Work::kActivationGrad:
      return fused.ActivateGrad();
    case Work::kPutHome:
      return PutHome(task, layer, kernels);
    case Work::kSumSlots:
      return fused.SumSlots();
    case Work::kWeightDots:
      return fused.WeightDots();
    case Work::kPutOnce:
      return PutOnce(task, layer, kernels);
    case Work::kRelayRows:
      return RelayRows(task, layer, kernels);
    case Work::kNorm:
    case Work::kNormGrad:
    case Work::kGainGrad:
      return kernels->Norm(MakeNormTile(task, layer));
  }
}

void RunTask(const TaskDesc& task, const Layer& layer, GemmScratch* scratch) {
  HostKernels kernels(layer.isa, scratch);
  RunTask(task, layer, &kernels);
}

}  // namespace hpmoe
