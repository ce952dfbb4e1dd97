// What one task is told to read and write in a launch: its work is done once
// more with kernels that keep the addresses that they are given and touch
// nothing.  The image's region table has no part in it.  What a kernel does
// beyond the addresses that it is given is found by guards.h.

#ifndef BACKEND_ASCEND_HOST_CHECKS_RUNTIME_ACCESSES_H_
#define BACKEND_ASCEND_HOST_CHECKS_RUNTIME_ACCESSES_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/image/image.h"

namespace hpmoe {

// A rectangle of an Array.  As in image.h, what travels beside a buffer's rows
// is one more column: the row header, the gradient of the row's or slot's
// weight.  The float32 sums of a weight gradient are as many columns again as
// it has.
struct Access {
  uint16_t buffer;
  bool write;
  int32_t slab;
  int32_t row_begin, row_end, col_begin, col_end;
};

// Whose rows a launch puts where, from its plan: what row headers hold, and
// what travels beside relayed rows.
struct SentRows {
  std::vector<int32_t> source;  // [R, N] rank, or -1
  std::vector<int32_t> slot;    // [R, N] token * K + slot, or -1
  std::vector<RowCopy> copies;  // [R, N, CopiesOf] with relay
  explicit SentRows(const Layer& layer);
};

// Accesses of a task in a launch in which every put before it did its work.
std::vector<Access> AccessesOf(const TaskDesc& task, const Layer& layer,
                               const SentRows& sent);

// The buffer whose rows have headers.
BufferId HeaderBuffer(const ImageHeader& image);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_CHECKS_RUNTIME_ACCESSES_H_
