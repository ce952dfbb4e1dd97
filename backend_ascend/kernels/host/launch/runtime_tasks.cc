#include "backend_ascend/kernels/host/launch/runtime_tasks.h"

#include <algorithm>
#include <cstring>
#include <vector>

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

void HostKernels::Copy(const void* from, size_t bytes, void* to) {
  std::memcpy(to, from, bytes);
}

void HostKernels::WriteHeader(int32_t slot, float weight, int32_t* slot_to,
                              float* weight_to) {
  *slot_to = slot;
  *weight_to = weight;
}

void HostKernels::ReadHeader(const int32_t*) {}

namespace {

const Array& Left(const TaskDesc& task, const Layer& layer) {
  return layer.buffers[KindOf(task).left()];
}

const Array& Right(const TaskDesc& task, const Layer& layer) {
  return layer.buffers[KindOf(task).right()];
}

const Array& Written(const TaskDesc& task, const Layer& layer) {
  return layer.buffers[KindOf(task).written];
}

DType StoredAs(const Layer& layer) {
  return static_cast<DType>(layer.image->dtype);
}

AccumulationOrder OrderOf(const Layer& layer) {
  return static_cast<AccumulationOrder>(layer.image->accumulation_order);
}

bool IsWeighted(const TaskDesc& task, const Layer& layer) {
  return KindOf(task).weighted == static_cast<int32_t>(layer.image->placement);
}

// The weights of the task's rows, or null where it does not apply them.
const float* RowWeights(const TaskDesc& task, const Layer& layer, int64_t row) {
  if (!IsWeighted(task, layer)) return nullptr;
  return layer.header_weight + layer.RowAt(task.rank, row);
}

// Where a dispatch writes consecutive rows and their headers.
struct RowsOut {
  char* rows;
  int32_t* slots;
  float* weights;
};

// The row that a put sends for a token under a weight, or a relay for a row.
ScaleRowsTile MakeSentRow(const TaskDesc& task, const Layer& layer,
                          int32_t token, const float* weight, void* to) {
  const Array& from = Left(task, layer);
  ScaleRowsTile tile{};
  tile.x = from.At(task.rank, token, 0);
  tile.out = to;
  tile.weight = IsWeighted(task, layer) ? weight : nullptr;
  tile.ld_x = from.cols;
  tile.ld_out = from.cols;
  tile.rows = 1;
  tile.cols = static_cast<int32_t>(from.cols);
  tile.dtype = StoredAs(layer);
  return tile;
}

int32_t SentToken(const TaskDesc& task, const Layer& layer, int32_t i) {
  return SentSlot(task, layer, i) / layer.image->top_k;
}

void WriteSentRows(const TaskDesc& task, const Layer& layer, int32_t count,
                   const RowsOut& out, Kernels* kernels) {
  const Array& to = Written(task, layer);
  const int64_t row_bytes = to.cols * to.element_bytes;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t slot = SentSlot(task, layer, i);
    const float weight = layer.topk_weights[layer.SlotAt(task.rank, slot)];
    kernels->ScaleRows(MakeSentRow(task, layer, slot / layer.image->top_k,
                                   &weight, out.rows + i * row_bytes));
    kernels->WriteHeader(slot, weight, out.slots + i, out.weights + i);
  }
}

// To another address space: the rows of a task land side by side, so they go
// as one put, and their headers as two.
void SendRows(const TaskDesc& task, const Layer& layer, int32_t count,
              int32_t owner, Kernels* kernels) {
  const Array& to = Written(task, layer);
  const int64_t row_bytes = to.cols * to.element_bytes;
  const int64_t row = FirstRow(task, layer);
  std::vector<char> rows(count * row_bytes);
  std::vector<int32_t> slots(count);
  std::vector<float> weights(count);
  WriteSentRows(task, layer, count, {rows.data(), slots.data(), weights.data()},
                kernels);
  const HeapLayout& heap = *layer.heap;
  const int64_t at = heap.buffers[KindOf(task).written];
  layer.transport->Put(owner, at + row * row_bytes, rows.data(),
                       count * row_bytes);
  layer.transport->Put(owner, heap.header_slot + row * 4, slots.data(),
                       int64_t{count} * 4);
  layer.transport->Put(owner, heap.header_weight + row * 4, weights.data(),
                       int64_t{count} * 4);
  layer.transport->Flush(owner);
}

void PutRows(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  const int32_t count = RealRows(task, layer).count();
  const int32_t owner = layer.Owner(task.expert);
  if (!layer.Holds(owner)) return SendRows(task, layer, count, owner, kernels);
  const int64_t row = FirstRow(task, layer);
  const int64_t header = layer.RowAt(owner, row);
  WriteSentRows(task, layer, count,
                {Written(task, layer).At(owner, row, 0),
                 layer.header_slot + header, layer.header_weight + header},
                kernels);
}

// The copies that a relayed row is sent with: `count` of them.
void WriteCopies(const TaskDesc& task, const Layer& layer, int32_t i,
                 RowCopy* to) {
  const int32_t count = CopiesOf(*layer.image);
  const int64_t at = SentAt(task, layer.plan, i) * count;
  for (int32_t c = 0; c < count; ++c) {
    to[c] = {layer.plan.copy_rows[at + c], layer.plan.copy_slots[at + c], 0.0f};
    if (to[c].row < 0) continue;
    to[c].weight = layer.topk_weights[layer.SlotAt(task.rank, to[c].slot)];
  }
}

// Rows and what travels beside them go as one put each.
void SendOnce(const TaskDesc& task, const Layer& layer, int32_t owner,
              Kernels* kernels) {
  const Array& to = Written(task, layer);
  const int32_t count = RealRows(task, layer).count();
  const int32_t copies = CopiesOf(*layer.image);
  const int64_t row_bytes = to.cols * to.element_bytes;
  const int64_t row = FirstRow(task, layer);
  std::vector<char> rows(count * row_bytes);
  std::vector<RowCopy> beside(int64_t{count} * copies);
  for (int32_t i = 0; i < count; ++i) {
    kernels->ScaleRows(MakeSentRow(task, layer, SentToken(task, layer, i),
                                   nullptr, rows.data() + i * row_bytes));
    WriteCopies(task, layer, i, beside.data() + int64_t{i} * copies);
  }
  const HeapLayout& heap = *layer.heap;
  const int64_t at = heap.buffers[KindOf(task).written];
  const int64_t beside_bytes = int64_t{copies} * sizeof(RowCopy);
  layer.transport->Put(owner, at + row * row_bytes, rows.data(),
                       count * row_bytes);
  layer.transport->Put(owner, heap.copies + row * beside_bytes, beside.data(),
                       count * beside_bytes);
  layer.transport->Flush(owner);
}

void PutOnce(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  const int32_t owner = layer.Owner(task.expert);
  if (!layer.Holds(owner)) return SendOnce(task, layer, owner, kernels);
  const Array& to = Written(task, layer);
  const int64_t row = FirstRow(task, layer);
  std::vector<RowCopy> beside(CopiesOf(*layer.image));
  for (int32_t i = 0; i < RealRows(task, layer).count(); ++i) {
    kernels->ScaleRows(MakeSentRow(task, layer, SentToken(task, layer, i),
                                   nullptr, to.At(owner, row + i, 0)));
    WriteCopies(task, layer, i, beside.data());
    kernels->Copy(beside.data(), beside.size() * sizeof(RowCopy),
                  layer.CopiesAt(owner, row + i));
  }
}

// A row of its own for every expert that a relayed row is for.
void RelayRows(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  const Array& to = Written(task, layer);
  const RowCopy* const copies = layer.CopiesAt(task.rank, 0);
  const int32_t per = CopiesOf(*layer.image);
  ForEachCopy(task, layer.plan, CopyRowsOf(layer, task.rank),
              [&](int64_t at, int32_t row) {
                const RowCopy& copy = copies[at];
                const auto from = static_cast<int32_t>(at / per);
                const int64_t header = layer.RowAt(task.rank, row);
                kernels->ReadHeader(&copy.row);
                kernels->ScaleRows(MakeSentRow(task, layer, from, &copy.weight,
                                               to.At(task.rank, row, 0)));
                kernels->WriteHeader(copy.slot, copy.weight,
                                     layer.header_slot + header,
                                     layer.header_weight + header);
              });
}

// Consecutive rows of an expert that land on consecutive slots of a source.
struct HomeRun {
  int32_t row, source, slot, count;

  bool Continues(int32_t next_row, int32_t next_source,
                 int32_t next_slot) const {
    return next_row == row + count && next_source == source &&
           next_slot == slot + count;
  }
};

// To another address space, from where the rows stay.
void SendHome(const TaskDesc& task, const Layer& layer, const HomeRun& run) {
  if (run.count == 0) return;
  const Array& rows = Left(task, layer);
  const int64_t row_bytes = rows.cols * rows.element_bytes;
  const HeapLayout& heap = *layer.heap;
  const int64_t at = heap.buffers[KindOf(task).written];
  layer.transport->Put(run.source, at + run.slot * row_bytes,
                       rows.At(task.rank, run.row, 0), run.count * row_bytes);
  if (layer.d_slot_weight == nullptr) return;
  layer.transport->Put(run.source, heap.d_slot_weight + int64_t{run.slot} * 4,
                       layer.d_row_weight + layer.RowAt(task.rank, run.row),
                       run.count * 4);
}

void SendRowsHome(const TaskDesc& task, const Layer& layer) {
  HomeRun run = {0, task.rank, 0, 0};
  std::vector<bool> reached(layer.image->num_ranks, false);
  ForEachReturned(task, layer, [&](int32_t row, int32_t source, int32_t slot) {
    if (layer.Holds(source)) return;
    if (run.Continues(row, source, slot)) {
      ++run.count;
      return;
    }
    SendHome(task, layer, run);
    run = {row, source, slot, 1};
    reached[source] = true;
  });
  SendHome(task, layer, run);
  for (int32_t rank = 0; rank < layer.image->num_ranks; ++rank) {
    if (reached[rank]) layer.transport->Flush(rank);
  }
}

void PutHome(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  const Array& rows = Left(task, layer);
  const Array& home = Written(task, layer);
  const size_t row_bytes = rows.cols * rows.element_bytes;
  ForEachReturned(task, layer, [&](int32_t row, int32_t source, int32_t slot) {
    if (!layer.Holds(source)) return;
    const int64_t at = layer.RowAt(task.rank, row);
    kernels->ReadHeader(layer.header_slot + at);
    kernels->Copy(rows.At(task.rank, row, 0), row_bytes,
                  home.At(source, slot, 0));
    if (layer.d_slot_weight == nullptr) return;
    kernels->Copy(layer.d_row_weight + at, sizeof(float),
                  layer.d_slot_weight + layer.SlotAt(source, slot));
  });
  if (layer.transport != nullptr) SendRowsHome(task, layer);
}

// A token's weight gradients came home with its rows, or are dots of its row
// of `left` with its rows of `right`.
void WeightDots(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  const Array& dy = Left(task, layer);
  const Array& returned = Right(task, layer);
  const int32_t top_k = layer.image->top_k;
  for (int32_t token = task.row_begin; token < task.row_end; ++token) {
    const int64_t slot = int64_t{token} * top_k;
    auto* out =
        reinterpret_cast<float*>(Written(task, layer).At(task.rank, token, 0));
    if (layer.d_slot_weight != nullptr) {
      kernels->Copy(layer.d_slot_weight + layer.SlotAt(task.rank, slot),
                    top_k * sizeof(float), out);
      continue;
    }
    RowDotTile tile{};
    tile.a = dy.At(task.rank, token, 0);
    tile.b = returned.At(task.rank, slot, 0);
    tile.out = out;
    tile.ld_a = 0;
    tile.ld_b = returned.cols;
    tile.rows = top_k;
    tile.cols = static_cast<int32_t>(dy.cols);
    tile.dtype = StoredAs(layer);
    kernels->RowDots(tile);
  }
}

}  // namespace

Array ShapeOf(const ImageHeader& image, BufferId buffer) {
  const BufferInfo& info = kBuffers[buffer];
  const int64_t rows =
      info.rows == Axis::kC ? image.num_rows : SizeOf(image, info.rows);
  const int64_t stored = BytesOf(DType{image.dtype});
  return {nullptr, IsWeight(info.rows) ? image.num_experts : image.num_ranks,
          rows, SizeOf(image, info.cols),
          info.element == Element::kFloat ? 4 : stored};
}

void WriteSentRow(const TaskDesc& task, const Layer& layer, int32_t token,
                  float weight, void* to) {
  RunScaleRowsTile(MakeSentRow(task, layer, token, &weight, to), layer.isa);
}

GemmTile MakeGemmTile(const TaskDesc& task, int32_t expert,
                      const Layer& layer) {
  const Array& rows = Left(task, layer);
  const Array& weight = Right(task, layer);
  const Array& out = Written(task, layer);
  const int32_t row = FirstRow(task, layer);
  GemmTile tile{};
  tile.trans_b = KindOf(task).work == Work::kGemmTransposed;
  tile.a = rows.At(task.rank, row, 0);
  tile.b = tile.trans_b ? weight.At(expert, task.col_begin, 0)
                        : weight.At(expert, 0, task.col_begin);
  tile.c = out.At(task.rank, row, task.col_begin);
  tile.lda = rows.cols;
  tile.ldb = weight.cols;
  tile.ldc = out.cols;
  tile.m = RealRows(task, layer).count();
  tile.n = task.col_end - task.col_begin;
  tile.k = static_cast<int32_t>(rows.cols);
  tile.dtype = StoredAs(layer);
  tile.order = OrderOf(layer);
  return tile;
}

namespace {

// Null where a production launch does not make the rows and brings others.
const char* RowsAt(const Array& rows, int64_t slab, int64_t row, int64_t col) {
  return rows.data == nullptr ? nullptr : rows.At(slab, row, col);
}

}  // namespace

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
  const Array& gate_up = Left(task, layer);
  const Array& out = Written(task, layer);
  const int32_t row = FirstRow(task, layer);
  SwigluTile tile{};
  tile.gate = gate_up.At(task.rank, row, task.col_begin);
  tile.up = gate_up.At(task.rank, row, layer.image->d_ff + task.col_begin);
  tile.out = out.At(task.rank, row, task.col_begin);
  tile.ld_in = gate_up.cols;
  tile.ld_out = out.cols;
  tile.rows = RealRows(task, layer).count();
  tile.cols = task.col_end - task.col_begin;
  tile.row_weight = RowWeights(task, layer, row);
  tile.dtype = StoredAs(layer);
  tile.activation = static_cast<ActivationKind>(layer.image->activation);
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
  tile.d_out = d_out.At(task.rank, row, 0);
  tile.gate = gate_up.At(task.rank, row, 0);
  tile.up = gate_up.At(task.rank, row, width);
  tile.d_gate = grad.At(task.rank, row, 0);
  tile.d_up = grad.At(task.rank, row, width);
  tile.ld_d_out = d_out.cols;
  tile.ld_in = gate_up.cols;
  tile.ld_grad = grad.cols;
  tile.rows = RealRows(task, layer).count();
  tile.cols = width;
  tile.row_weight = RowWeights(task, layer, row);
  if (layer.d_row_weight != nullptr) {
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
  tile.returned = rows.At(task.rank, slot, task.col_begin);
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

void RunTask(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  if (RealRows(task, layer).count() == 0) return;
  switch (KindOf(task).work) {
    case Work::kPutRows:
      return PutRows(task, layer, kernels);
    case Work::kGemm:
    case Work::kGemmTransposed:
      return kernels->Gemm(MakeGemmTile(task, task.expert, layer));
    case Work::kWeightGrad:
      return kernels->Gemm(MakeWeightGradTile(task, layer));
    case Work::kActivation:
      return kernels->Swiglu(MakeSwigluTile(task, layer));
    case Work::kActivationGrad:
      return kernels->SwigluGrad(MakeSwigluGradTile(task, layer));
    case Work::kPutHome:
      return PutHome(task, layer, kernels);
    case Work::kSumSlots:
      return kernels->Combine(MakeCombineTile(task, layer));
    case Work::kWeightDots:
      return WeightDots(task, layer, kernels);
    case Work::kPutOnce:
      return PutOnce(task, layer, kernels);
    case Work::kRelayRows:
      return RelayRows(task, layer, kernels);
  }
}

void RunTask(const TaskDesc& task, const Layer& layer, GemmScratch* scratch) {
  HostKernels kernels(layer.isa, scratch);
  RunTask(task, layer, &kernels);
}

}  // namespace hpmoe
