// What one task does on the host: logical tiles to addresses, then a kernel.

#ifndef BACKEND_ASCEND_KERNELS_HOST_RUNTIME_TASKS_H_
#define BACKEND_ASCEND_KERNELS_HOST_RUNTIME_TASKS_H_

#include <cstdint>

#include "backend_ascend/kernels/host/gemm.h"
#include "backend_ascend/kernels/host/plan.h"
#include "backend_ascend/kernels/host/tile_kernels.h"
#include "backend_ascend/kernels/image.h"

namespace hpmoe {

// Dense row-major arrays with the leading rank axis, shapes as in
// reference/tensors.py; storage type as the image says.
struct LaunchInputs {
  const void* x;
  const int32_t* topk_ids;
  const float* topk_weights;
  const void* w_gate_up;
  const void* w_down;
};

// The symmetric heap: rank r's part is slice r of each array.
struct LaunchOutputs {
  int32_t* counts;
  int32_t* row_base;
  int32_t* row_of_slot;
  void* expert_in;
  void* gate_up;
  void* activation;
  void* expert_out;
  void* returned;
  void* y;
};

// All that a task reads and writes.
struct Layer {
  const ImageHeader* image;
  const Plan* plan;
  LaunchInputs in;
  LaunchOutputs out;
  int32_t* header_slot;  // [R, N] row headers: token * K + slot, or -1
  float* header_weight;  // [R, N]
  Isa isa;

  int64_t ElementBytes() const { return image->dtype == kBFloat16 ? 2 : 4; }
  // Element (row, col) of rank `rank` in an array of `rows` x `cols` per rank.
  char* At(const void* base, int64_t rank, int64_t rows, int64_t row,
           int64_t cols, int64_t col) const {
    return static_cast<char*>(const_cast<void*>(base)) +
           ((rank * rows + row) * cols + col) * ElementBytes();
  }
};

// Rows of the task that exist in this launch: slice rows, rows of the expert,
// or tokens.  Empty where begin == end.
struct RowRange {
  int32_t begin, end;
  int32_t count() const { return end - begin; }
};
RowRange RealRows(const TaskDesc& task, const Layer& layer);

// Row on the owner of the task's first real row.
int32_t FirstRow(const TaskDesc& task, const Layer& layer);

// The kernel arguments of a task with real rows; `expert` owns the weights.
GemmTile MakeGemmTile(const TaskDesc& task, int32_t expert, const Layer& layer);
SwigluTile MakeSwigluTile(const TaskDesc& task, const Layer& layer);
CombineTile MakeCombineTile(const TaskDesc& task, const Layer& layer);

// Calls visit(row on the owner, source rank, token * K + slot) for every row
// that a kReturn task sends.  Destinations come from the row headers; a row
// without one (its dispatch was lost) goes nowhere.
template <class Visit>
void ForEachReturned(const TaskDesc& task, const Layer& layer, Visit visit) {
  const ImageHeader& image = *layer.image;
  const Plan& plan = *layer.plan;
  const RowRange rows = RealRows(task, layer);
  const int32_t first = FirstRow(task, layer);
  const bool whole_expert = task.peer == kRowBlockRange;
  int32_t source = whole_expert ? 0 : task.peer;
  for (int32_t row = first; row < first + rows.count(); ++row) {
    const auto slice_end = [&] {
      const int64_t at = int64_t{source} * image.num_experts + task.expert;
      return plan.row_base[at] + plan.counts[at];
    };
    while (whole_expert && row >= slice_end()) ++source;
    const int32_t slot =
        layer.header_slot[int64_t{task.rank} * image.num_rows + row];
    if (slot < 0) continue;
    visit(row, source, slot);
  }
}

// Does the task's work, once.  Tasks without real rows do nothing.
void RunTask(const TaskDesc& task, const Layer& layer, GemmScratch* scratch);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_RUNTIME_TASKS_H_
