#include "backend_ascend/kernels/host/runtime_tasks.h"

#include <algorithm>
#include <cstring>

namespace hpmoe {
namespace {

int64_t SliceOf(const TaskDesc& task, int32_t source, const Layer& layer) {
  return int64_t{source} * layer.image->num_experts + task.expert;
}

int32_t RealEnd(const TaskDesc& task, const Layer& layer) {
  const Plan& plan = *layer.plan;
  if (task.kind == kCombine) return layer.image->num_tokens;
  if (task.kind == kDispatch) {
    return plan.counts[SliceOf(task, task.rank, layer)];
  }
  if (task.kind == kReturn && task.peer != kRowBlockRange) {
    return plan.counts[SliceOf(task, task.peer, layer)];
  }
  return plan.expert_rows[task.expert];
}

void Dispatch(const TaskDesc& task, const Layer& layer) {
  const ImageHeader& image = *layer.image;
  const RowRange rows = RealRows(task, layer);
  const int64_t slice = SliceOf(task, task.rank, layer);
  const int32_t owner = task.expert / (image.num_experts / image.num_ranks);
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  const int64_t row_bytes = image.d_model * layer.ElementBytes();
  int64_t row = FirstRow(task, layer);
  for (int32_t j = rows.begin; j < rows.end; ++j, ++row) {
    const int32_t slot =
        layer.plan->slice_slots[layer.plan->slice_begin[slice] + j];
    std::memcpy(layer.At(layer.out.expert_in, owner, image.num_rows, row,
                         image.d_model, 0),
                layer.At(layer.in.x, task.rank, image.num_tokens,
                         slot / image.top_k, image.d_model, 0),
                row_bytes);
    const int64_t header = int64_t{owner} * image.num_rows + row;
    layer.header_slot[header] = slot;
    layer.header_weight[header] =
        layer.in.topk_weights[task.rank * slots + slot];
  }
}

void Return(const TaskDesc& task, const Layer& layer) {
  const ImageHeader& image = *layer.image;
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  const int64_t row_bytes = image.d_model * layer.ElementBytes();
  ForEachReturned(task, layer, [&](int32_t row, int32_t source, int32_t slot) {
    std::memcpy(
        layer.At(layer.out.returned, source, slots, slot, image.d_model, 0),
        layer.At(layer.out.expert_out, task.rank, image.num_rows, row,
                 image.d_model, 0),
        row_bytes);
  });
}

}  // namespace

RowRange RealRows(const TaskDesc& task, const Layer& layer) {
  const int32_t end = std::min(task.row_end, RealEnd(task, layer));
  return {task.row_begin, std::max(task.row_begin, end)};
}

int32_t FirstRow(const TaskDesc& task, const Layer& layer) {
  if (task.kind == kCombine) return task.row_begin;
  int32_t source = 0;
  if (task.kind == kDispatch) source = task.rank;
  if (task.kind == kReturn && task.peer != kRowBlockRange) source = task.peer;
  return layer.plan->row_base[SliceOf(task, source, layer)] + task.row_begin;
}

GemmTile MakeGemmTile(const TaskDesc& task, int32_t expert,
                      const Layer& layer) {
  const ImageHeader& image = *layer.image;
  const bool up = task.kind == kGateUp;
  const int32_t depth = up ? image.d_model : image.d_ff;
  const int32_t width = up ? 2 * image.d_ff : image.d_model;
  const int32_t row = FirstRow(task, layer);
  // Weights [R, L, depth, width] are [E, depth, width]: experts are dealt to
  // ranks in order.
  return {layer.At(up ? layer.out.expert_in : layer.out.activation, task.rank,
                   image.num_rows, row, depth, 0),
          layer.At(up ? layer.in.w_gate_up : layer.in.w_down, expert, depth, 0,
                   width, task.col_begin),
          layer.At(up ? layer.out.gate_up : layer.out.expert_out, task.rank,
                   image.num_rows, row, width, task.col_begin),
          depth,
          width,
          width,
          RealRows(task, layer).count(),
          task.col_end - task.col_begin,
          depth,
          static_cast<DType>(image.dtype)};
}

SwigluTile MakeSwigluTile(const TaskDesc& task, const Layer& layer) {
  const ImageHeader& image = *layer.image;
  const int32_t row = FirstRow(task, layer);
  const int64_t width = 2 * int64_t{image.d_ff};
  const bool weighted = image.placement == kBeforeDown;
  return {layer.At(layer.out.gate_up, task.rank, image.num_rows, row, width,
                   task.col_begin),
          layer.At(layer.out.gate_up, task.rank, image.num_rows, row, width,
                   image.d_ff + task.col_begin),
          layer.At(layer.out.activation, task.rank, image.num_rows, row,
                   image.d_ff, task.col_begin),
          width,
          image.d_ff,
          RealRows(task, layer).count(),
          task.col_end - task.col_begin,
          weighted
              ? layer.header_weight + int64_t{task.rank} * image.num_rows + row
              : nullptr,
          static_cast<DType>(image.dtype),
          static_cast<ActivationKind>(image.activation),
          false};
}

CombineTile MakeCombineTile(const TaskDesc& task, const Layer& layer) {
  const ImageHeader& image = *layer.image;
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  const int64_t slot = int64_t{task.row_begin} * image.top_k;
  const bool weighted = image.placement == kAtCombine;
  return {layer.At(layer.out.returned, task.rank, slots, slot, image.d_model,
                   task.col_begin),
          weighted ? layer.in.topk_weights + task.rank * slots + slot : nullptr,
          layer.At(layer.out.y, task.rank, image.num_tokens, task.row_begin,
                   image.d_model, task.col_begin),
          image.d_model,
          image.d_model,
          RealRows(task, layer).count(),
          image.top_k,
          task.col_end - task.col_begin,
          static_cast<DType>(image.dtype)};
}

void RunTask(const TaskDesc& task, const Layer& layer, GemmScratch* scratch) {
  if (RealRows(task, layer).count() == 0) return;
  switch (task.kind) {
    case kDispatch:
      return Dispatch(task, layer);
    case kGateUp:
    case kDown:
      return RunGemmTile(MakeGemmTile(task, task.expert, layer), layer.isa,
                         scratch);
    case kSwiglu:
      return RunSwigluTile(MakeSwigluTile(task, layer), layer.isa);
    case kReturn:
      return Return(task, layer);
    case kCombine:
      return RunCombineTile(MakeCombineTile(task, layer), layer.isa);
  }
}

}  // namespace hpmoe
