// What the tables of kinds.h say about one task: the arrays that it reads and
// writes, how elements are stored, and which weights its rows have.

#ifndef BACKEND_ASCEND_HOST_LAUNCH_TASK_OPERANDS_H_
#define BACKEND_ASCEND_HOST_LAUNCH_TASK_OPERANDS_H_

#include <cstdint>

#include "backend_ascend/host/launch/runtime_tasks.h"

namespace hpmoe {

inline const Array& Left(const TaskDesc& task, const Layer& layer) {
  return layer.buffers[KindOf(task).left()];
}

inline const Array& Right(const TaskDesc& task, const Layer& layer) {
  return layer.buffers[KindOf(task).right()];
}

inline const Array& Written(const TaskDesc& task, const Layer& layer) {
  return layer.buffers[KindOf(task).written];
}

inline DType StoredAs(const Layer& layer) {
  return static_cast<DType>(layer.image->dtype);
}

inline AccumulationOrder OrderOf(const Layer& layer) {
  return static_cast<AccumulationOrder>(layer.image->accumulation_order);
}

inline bool IsWeighted(const KindInfo& kind, const Layer& layer) {
  return Applies(*layer.image, kind.weighted);
}

inline bool IsWeighted(const TaskDesc& task, const Layer& layer) {
  return IsWeighted(KindOf(task), layer);
}

// The weights of the task's rows, or null where the kind does not apply them.
inline const float* RowWeights(const KindInfo& kind, const TaskDesc& task,
                               const Layer& layer) {
  if (!IsWeighted(kind, layer)) return nullptr;
  return layer.header_weight + layer.RowAt(task.rank, FirstRow(task, layer));
}

inline int8_t* CodesAt(const Array& codes, int64_t slab, int64_t row,
                       int64_t col) {
  return reinterpret_cast<int8_t*>(codes.At(slab, row, col));
}

inline int32_t* SumsAt(const Array& sums, int64_t slab, int64_t row,
                       int64_t col) {
  return reinterpret_cast<int32_t*>(sums.At(slab, row, col));
}

// Null where the launch does not have the rows.
inline const char* RowsAt(const Array& rows, int64_t slab, int64_t row,
                          int64_t col) {
  return rows.data == nullptr ? nullptr : rows.At(slab, row, col);
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LAUNCH_TASK_OPERANDS_H_
