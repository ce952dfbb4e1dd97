#include "backend_ascend/host/checks/replay.h"

#include <algorithm>
#include <cstring>

namespace hpmoe {
namespace {

void CopyBox(const Access& access, const Array& shape, const void* from,
             void* to) {
  Array source = shape, target = shape;
  source.data = static_cast<char*>(const_cast<void*>(from));
  target.data = static_cast<char*>(to);
  const size_t bytes =
      (access.col_end - access.col_begin) * shape.element_bytes;
  for (int32_t row = access.row_begin; row < access.row_end; ++row) {
    std::memcpy(target.At(access.slab, row, access.col_begin),
                source.At(access.slab, row, access.col_begin), bytes);
  }
}

bool IsBeside(const Access& access, const Layer& layer) {
  return access.col_begin >= layer.buffers[access.buffer].cols;
}

}  // namespace

bool Replay::Runs(const TaskDesc& task, uint8_t actions) const {
  const bool inner = FormOf(task) == Form::kWeightTile &&
                     task.peer + 1 < LinksOf(*layer_.image);
  return (actions & kActRun) != 0 || (inner && (actions & kActHeal) != 0);
}

void Replay::After(const TaskDesc& task, uint8_t actions) const {
  for (const Access& access : AccessesOf(task, layer_, sent_)) {
    if (!access.write) continue;
    if (actions & kActCapture) Capture(access);
    if (actions & kActHeal) Heal(access);
    if ((actions & kActRun) != 0 || !IsBeside(access, layer_)) continue;
    for (int32_t row = access.row_begin; row < access.row_end; ++row) {
      WriteHeader(access.buffer, access.slab, row);
    }
  }
}

bool Replay::WriteHeader(uint16_t buffer, int32_t rank, int32_t row) const {
  if (IsRelayed(buffer)) {
    const int32_t copies = CopiesOf(*layer_.image);
    std::copy_n(sent_.copies.data() + layer_.RowAt(rank, row) * copies, copies,
                layer_.CopiesAt(rank, row));
    return true;
  }
  if (buffer != HeaderBuffer(*layer_.image)) return false;
  if (!layer_.BringsHeaders()) return true;
  const int64_t at = int64_t{rank} * layer_.image->num_rows + row;
  layer_.header_slot[at] = sent_.slot[at];
  layer_.header_weight[at] =
      layer_.topk_weights[sent_.source[at] * layer_.Slots() + sent_.slot[at]];
  return true;
}

void Replay::Capture(const Access& access) const {
  const Array& live = layer_.buffers[access.buffer];
  if (!IsBeside(access, layer_)) {
    return CopyBox(access, live, live.data, modes_.captured[access.buffer]);
  }
  const int64_t first = access.slab * live.rows + access.row_begin;
  const int64_t rows = access.row_end - access.row_begin;
  if (access.buffer == kDGateUp) {
    std::copy_n(layer_.d_row_weight + first, rows,
                modes_.captured_row_weight + first);
  } else if (access.buffer == kDReturned) {
    std::copy_n(layer_.d_slot_weight + first, rows,
                modes_.captured_slot_weight + first);
  }
}

void Replay::Heal(const Access& access) const {
  const Array& live = layer_.buffers[access.buffer];
  if (!IsBeside(access, layer_)) {
    return CopyBox(access, live, modes_.given[access.buffer], live.data);
  }
  const auto* weights = static_cast<const float*>(modes_.given[kDTopkWeights]);
  for (int32_t row = access.row_begin; row < access.row_end; ++row) {
    const int64_t at = access.slab * live.rows + row;
    if (WriteHeader(access.buffer, access.slab, row)) continue;
    if (access.buffer == kDGateUp) {
      layer_.d_row_weight[at] =
          weights[sent_.source[at] * layer_.Slots() + sent_.slot[at]];
    } else if (access.buffer == kDReturned) {
      layer_.d_slot_weight[at] = weights[at];
    }
  }
}

}  // namespace hpmoe
