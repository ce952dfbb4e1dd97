#include "backend_ascend/kernels/host/checks/faults_writes.h"

#include <algorithm>
#include <cstring>

namespace hpmoe {
namespace {

std::vector<Bytes> Rows(void* data, int64_t count, int64_t stride,
                        int64_t size) {
  std::vector<Bytes> rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back(
        {static_cast<char*>(data) + i * stride, static_cast<size_t>(size)});
  }
  return rows;
}

std::vector<Bytes> GradRows(const GemmTile& tile) {
  if (tile.carry_out) {
    return Rows(tile.carry, tile.m, tile.ld_carry * 4, tile.n * 4);
  }
  const int64_t bytes = BytesOf(tile.dtype);
  return Rows(tile.c, tile.m, tile.ldc * bytes, tile.n * bytes);
}

// Of a task that writes consecutive rows of its buffer; columns that are no
// tensor's (row headers, gradients of weights) are cut off.
std::vector<Bytes> TileRows(const TaskDesc& task, const Layer& layer) {
  const Array& out = layer.buffers[KindOf(task).written];
  const bool put = FormOf(task) == Form::kSlicePut;
  const int64_t begin = put ? 0 : task.col_begin;
  const int64_t end =
      put ? out.cols : std::min<int64_t>(task.col_end, out.cols);
  const int32_t rank = put ? layer.Owner(task.expert) : task.rank;
  return Rows(out.At(rank, FirstRow(task, layer), begin),
              RealRows(task, layer).count(), out.cols * out.element_bytes,
              std::max<int64_t>(end - begin, 0) * out.element_bytes);
}

}  // namespace

Writes WritesOf(const TaskDesc& task, const Layer& layer) {
  Writes writes;
  const auto add_weight = [&](float* weight) {
    writes.weights.push_back({reinterpret_cast<char*>(weight), sizeof(float)});
  };
  const Work work = KindOf(task).work;
  if (work == Work::kWeightGrad) {
    writes.rows = GradRows(MakeWeightGradTile(task, layer));
  } else if (work == Work::kPutHome) {
    const Array& home = layer.buffers[KindOf(task).written];
    const size_t bytes = home.cols * home.element_bytes;
    ForEachReturned(task, layer, [&](int32_t, int32_t source, int32_t slot) {
      writes.rows.push_back({home.At(source, slot, 0), bytes});
      if (layer.d_slot_weight == nullptr) return;
      add_weight(layer.d_slot_weight + source * layer.Slots() + slot);
    });
  } else if (work == Work::kRelayRows) {
    const Array& to = layer.buffers[KindOf(task).written];
    const size_t bytes = to.cols * to.element_bytes;
    ForEachCopy(task, layer.plan, CopyRowsOf(layer, task.rank),
                [&](int64_t, int32_t row) {
                  writes.rows.push_back({to.At(task.rank, row, 0), bytes});
                });
  } else {
    writes.rows = TileRows(task, layer);
  }
  if (work == Work::kActivationGrad && layer.d_row_weight != nullptr) {
    const SwigluGradTile tile = MakeSwigluGradTile(task, layer);
    for (int32_t i = 0; i < tile.rows; ++i) add_weight(tile.d_row_weight + i);
  }
  return writes;
}

std::vector<char> Gather(const std::vector<Bytes>& rows) {
  std::vector<char> bytes;
  for (const Bytes& row : rows) {
    bytes.insert(bytes.end(), row.data, row.data + row.size);
  }
  return bytes;
}

std::vector<char> Gather(const Writes& writes) {
  std::vector<char> bytes = Gather(writes.rows);
  const std::vector<char> weights = Gather(writes.weights);
  bytes.insert(bytes.end(), weights.begin(), weights.end());
  return bytes;
}

void Scatter(const char* bytes, const std::vector<Bytes>& rows) {
  for (const Bytes& row : rows) {
    std::memcpy(row.data, bytes, row.size);
    bytes += row.size;
  }
}

}  // namespace hpmoe
