#include "backend_ascend/host/launch/runtime_puts.h"

#include <cstring>
#include <vector>

#include "backend_ascend/host/launch/task_operands.h"

namespace hpmoe {

namespace {

// Where a dispatch writes consecutive rows and their headers.
struct RowsOut {
  char* rows;
  int32_t* slots;
  float* weights;
  float* scales;  // of codes, or null
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

// Writes the row of a token, or its codes and their scale.
void WriteTokenRow(const TaskDesc& task, const Layer& layer, int32_t token,
                   const float* weight, char* to, float* scale,
                   Kernels* kernels) {
  const ScaleRowsTile row = MakeSentRow(task, layer, token, weight, to);
  if (!IsQuantised(*layer.image)) return kernels->ScaleRows(row);
  QuantiseRowsTile tile{};
  tile.x = row.x;
  tile.codes = reinterpret_cast<int8_t*>(to);
  tile.scales = scale;
  tile.ld_x = row.ld_x;
  tile.ld_codes = row.ld_out;
  tile.rows = row.rows;
  tile.cols = row.cols;
  tile.dtype = row.dtype;
  kernels->QuantiseRows(tile);
}

float* ScaleAt(float* scales, int64_t row) {
  return scales == nullptr ? nullptr : scales + row;
}

// Scales of rows that a task writes, of an image that quantises.
float* WrittenScales(const TaskDesc& task, const Layer& layer, int32_t rank,
                     int64_t row) {
  float* const scales = layer.scales[KindOf(task).written];
  return ScaleAt(scales, scales == nullptr ? 0 : layer.RowAt(rank, row));
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
    WriteTokenRow(task, layer, slot / layer.image->top_k, &weight,
                  out.rows + i * row_bytes, ScaleAt(out.scales, i), kernels);
    if (layer.BringsHeaders()) {
      kernels->WriteHeader(slot, weight, out.slots + i, out.weights + i);
    }
  }
}

// Scales of rows that a put brings, to another address space.
void SendScales(const TaskDesc& task, const Layer& layer, int32_t owner,
                int64_t row, const std::vector<float>& scales) {
  const int64_t at = layer.heap->scales[KindOf(task).written];
  if (at < 0) return;
  layer.transport->Put(owner, at + row * 4, scales.data(),
                       static_cast<int64_t>(scales.size()) * 4);
}

// To another address space: the rows of a task land side by side, so they go
// as one put, and each part of their headers as one.
void SendRows(const TaskDesc& task, const Layer& layer, int32_t count,
              int32_t owner, Kernels* kernels) {
  const Array& to = Written(task, layer);
  const int64_t row_bytes = to.cols * to.element_bytes;
  const int64_t row = FirstRow(task, layer);
  std::vector<char> rows(count * row_bytes);
  std::vector<int32_t> slots(count);
  std::vector<float> weights(count), scales(count);
  WriteSentRows(task, layer, count,
                {rows.data(), slots.data(), weights.data(), scales.data()},
                kernels);
  const HeapLayout& heap = *layer.heap;
  const int64_t at = heap.buffers[KindOf(task).written];
  layer.transport->Put(owner, at + row * row_bytes, rows.data(),
                       count * row_bytes);
  if (layer.BringsHeaders()) {
    layer.transport->Put(owner, heap.header_slot + row * 4, slots.data(),
                         int64_t{count} * 4);
    layer.transport->Put(owner, heap.header_weight + row * 4, weights.data(),
                         int64_t{count} * 4);
  }
  SendScales(task, layer, owner, row, scales);
  layer.transport->Flush(owner);
}

}  // namespace

void PutRows(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  const int32_t count = RealRows(task, layer).count();
  const int32_t owner = layer.Owner(task.expert);
  if (!layer.Holds(owner)) return SendRows(task, layer, count, owner, kernels);
  const int64_t row = FirstRow(task, layer);
  const int64_t header = layer.RowAt(owner, row);
  WriteSentRows(
      task, layer, count,
      {Written(task, layer).At(owner, row, 0), layer.header_slot + header,
       layer.header_weight + header, WrittenScales(task, layer, owner, row)},
      kernels);
}

namespace {

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
  std::vector<float> scales(count);
  for (int32_t i = 0; i < count; ++i) {
    WriteTokenRow(task, layer, SentToken(task, layer, i), nullptr,
                  rows.data() + i * row_bytes, &scales[i], kernels);
    WriteCopies(task, layer, i, beside.data() + int64_t{i} * copies);
  }
  const HeapLayout& heap = *layer.heap;
  const int64_t at = heap.buffers[KindOf(task).written];
  const int64_t beside_bytes = int64_t{copies} * sizeof(RowCopy);
  layer.transport->Put(owner, at + row * row_bytes, rows.data(),
                       count * row_bytes);
  layer.transport->Put(owner, heap.copies + row * beside_bytes, beside.data(),
                       count * beside_bytes);
  SendScales(task, layer, owner, row, scales);
  layer.transport->Flush(owner);
}

}  // namespace

void PutOnce(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  const int32_t owner = layer.Owner(task.expert);
  if (!layer.Holds(owner)) return SendOnce(task, layer, owner, kernels);
  const Array& to = Written(task, layer);
  const int64_t row = FirstRow(task, layer);
  std::vector<RowCopy> beside(CopiesOf(*layer.image));
  for (int32_t i = 0; i < RealRows(task, layer).count(); ++i) {
    WriteTokenRow(task, layer, SentToken(task, layer, i), nullptr,
                  to.At(owner, row + i, 0),
                  WrittenScales(task, layer, owner, row + i), kernels);
    WriteCopies(task, layer, i, beside.data());
    kernels->Copy(beside.data(), beside.size() * sizeof(RowCopy),
                  layer.CopiesAt(owner, row + i));
  }
}

void ReadHeaders(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  if (FormOf(task) == Form::kHomePut) {
    ForEachReturned(task, layer, [&](int32_t row, int32_t, int32_t) {
      kernels->ReadHeader(layer.header_slot + layer.RowAt(task.rank, row));
    });
  } else if (FormOf(task) == Form::kRelayTile) {
    const RowCopy* const copies = layer.CopiesAt(task.rank, 0);
    ForEachCopy(
        task, layer.plan, CopyRowsOf(layer, task.rank),
        [&](int64_t at, int32_t) { kernels->ReadHeader(&copies[at].row); });
  }
}

namespace {

// A relayed row of codes, and its scale, as they came.
void CopyCodes(const TaskDesc& task, const Layer& layer, int32_t from,
               int32_t to, Kernels* kernels) {
  const Array& rows = Left(task, layer);
  kernels->Copy(rows.At(task.rank, from, 0), rows.cols * rows.element_bytes,
                Written(task, layer).At(task.rank, to, 0));
  kernels->Copy(layer.RowScales(kXRelayed, task.rank, from), sizeof(float),
                layer.RowScales(kExpertIn, task.rank, to));
}

}  // namespace

void RelayRows(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  const Array& to = Written(task, layer);
  const RowCopy* const copies = layer.CopiesAt(task.rank, 0);
  const int32_t per = CopiesOf(*layer.image);
  ForEachCopy(
      task, layer.plan, CopyRowsOf(layer, task.rank),
      [&](int64_t at, int32_t row) {
        const RowCopy& copy = copies[at];
        const auto from = static_cast<int32_t>(at / per);
        const int64_t header = layer.RowAt(task.rank, row);
        if (IsQuantised(*layer.image)) {
          CopyCodes(task, layer, from, row, kernels);
        } else {
          kernels->ScaleRows(MakeSentRow(task, layer, from, &copy.weight,
                                         to.At(task.rank, row, 0)));
        }
        kernels->WriteHeader(copy.slot, copy.weight, layer.header_slot + header,
                             layer.header_weight + header);
      });
}

namespace {

// Consecutive rows of an expert that land on consecutive slots of a source.
struct HomeRun {
  int32_t row, source, slot, count;

  bool Continues(int32_t next_row, int32_t next_source,
                 int32_t next_slot) const {
    return next_row == row + count && next_source == source &&
           next_slot == slot + count;
  }
};

// What some rows of sums mean, as it is stored.
void Dequantise(const TaskDesc& task, const Layer& layer, int32_t row,
                int32_t count, void* out, Kernels* kernels) {
  const Array& sums = Left(task, layer);
  DequantiseRowsTile tile{};
  tile.sums = SumsAt(sums, task.rank, row, 0);
  tile.row_scales = layer.RowScales(kActivation, task.rank, row);
  tile.col_scales = layer.ColScales(kWDown, task.expert, 0);
  tile.out = out;
  tile.ld_sums = tile.ld_out = sums.cols;
  tile.rows = count;
  tile.cols = static_cast<int32_t>(sums.cols);
  tile.dtype = StoredAs(layer);
  kernels->DequantiseRows(tile);
}

// Rows that a put sends and does not have as they are stored: they stay until
// it is flushed.
using StoredRows = std::vector<std::vector<char>>;

// To another address space, from where the rows stay.
void SendHome(const TaskDesc& task, const Layer& layer, const HomeRun& run,
              Kernels* kernels, StoredRows* made) {
  if (run.count == 0) return;
  const Array& rows = Left(task, layer);
  const Array& home = Written(task, layer);
  const int64_t row_bytes = home.cols * home.element_bytes;
  const char* from = rows.At(task.rank, run.row, 0);
  if (IsQuantised(*layer.image)) {
    made->emplace_back(run.count * row_bytes);
    Dequantise(task, layer, run.row, run.count, made->back().data(), kernels);
    from = made->back().data();
  }
  const HeapLayout& heap = *layer.heap;
  const int64_t at = heap.buffers[KindOf(task).written];
  layer.transport->Put(run.source, at + run.slot * row_bytes, from,
                       run.count * row_bytes);
  if (layer.d_slot_weight == nullptr) return;
  layer.transport->Put(run.source, heap.d_slot_weight + int64_t{run.slot} * 4,
                       layer.d_row_weight + layer.RowAt(task.rank, run.row),
                       run.count * 4);
}

void SendRowsHome(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  StoredRows made;
  HomeRun run = {0, task.rank, 0, 0};
  std::vector<bool> reached(layer.image->num_ranks, false);
  ForEachReturned(task, layer, [&](int32_t row, int32_t source, int32_t slot) {
    if (layer.Holds(source)) return;
    if (run.Continues(row, source, slot)) {
      ++run.count;
      return;
    }
    SendHome(task, layer, run, kernels, &made);
    run = {row, source, slot, 1};
    reached[source] = true;
  });
  SendHome(task, layer, run, kernels, &made);
  for (int32_t rank = 0; rank < layer.image->num_ranks; ++rank) {
    if (reached[rank]) layer.transport->Flush(rank);
  }
}

}  // namespace

void PutHome(const TaskDesc& task, const Layer& layer, Kernels* kernels) {
  const Array& rows = Left(task, layer);
  const Array& home = Written(task, layer);
  const size_t row_bytes = rows.cols * rows.element_bytes;
  ForEachReturned(task, layer, [&](int32_t row, int32_t source, int32_t slot) {
    if (!layer.Holds(source)) return;
    if (IsQuantised(*layer.image)) {
      return Dequantise(task, layer, row, 1, home.At(source, slot, 0), kernels);
    }
    const int64_t at = layer.RowAt(task.rank, row);
    kernels->Copy(rows.At(task.rank, row, 0), row_bytes,
                  home.At(source, slot, 0));
    if (layer.d_slot_weight == nullptr) return;
    kernels->Copy(layer.d_row_weight + at, sizeof(float),
                  layer.d_slot_weight + layer.SlotAt(source, slot));
  });
  if (layer.transport != nullptr) SendRowsHome(task, layer, kernels);
}

}  // namespace hpmoe
