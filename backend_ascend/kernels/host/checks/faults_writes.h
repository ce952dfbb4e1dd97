// What one task writes, as bytes: so that a fault can spoil it, and be seen to.

#ifndef BACKEND_ASCEND_KERNELS_HOST_FAULTS_WRITES_H_
#define BACKEND_ASCEND_KERNELS_HOST_FAULTS_WRITES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend_ascend/kernels/host/launch/runtime_tasks.h"
#include "backend_ascend/kernels/image.h"

namespace hpmoe {

struct Bytes {
  char* data;
  size_t size;
};

struct Writes {
  std::vector<Bytes> rows;     // one entry per row of the task
  std::vector<Bytes> weights;  // gradients of weights beside them, or none
};

// A link of a weight gradient's chain writes sums, the last one the gradient.
Writes WritesOf(const TaskDesc& task, const Layer& layer);

std::vector<char> Gather(const std::vector<Bytes>& rows);
std::vector<char> Gather(const Writes& writes);  // rows, then weights

// Writes `bytes`, as many as the rows hold, back into them.
void Scatter(const char* bytes, const std::vector<Bytes>& rows);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_FAULTS_WRITES_H_
