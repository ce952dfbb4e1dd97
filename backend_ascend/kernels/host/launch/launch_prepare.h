// What every launch does before its first task: plan, buffers, workspace.

#ifndef BACKEND_ASCEND_KERNELS_HOST_LAUNCH_PREPARE_H_
#define BACKEND_ASCEND_KERNELS_HOST_LAUNCH_PREPARE_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/kernels/host/launch/runtime_tasks.h"
#include "backend_ascend/kernels/host/load/image_loader.h"
#include "backend_ascend/kernels/host/load/plan.h"

namespace hpmoe {

// The routing of a launch.  `ids` are its own: another thread of the caller's
// may write to the given ones after they were checked.
struct Routed {
  std::vector<int32_t> ids;  // [R, T, K]
  Plan made;                 // where none is given
  const Plan* plan = nullptr;
};

// Plans the tensors' routing, or takes the plan given, checks it and writes its
// tables where they are asked for.  `routed` must stay where it is.
Status Route(const ImageHeader& image, const LaunchTensors& tensors,
             Routed* routed);

// Owns what a launch needs beside its tensors.
struct Prepared {
  Routed routed;
  std::vector<int32_t> header_slot;
  std::vector<float> header_weight;
  std::vector<RowCopy> copies;
  std::vector<char> relayed;  // rows that the caller did not ask for
  std::vector<float> d_row_weight;
  std::vector<float> d_slot_weight;
  std::vector<float> sums[kNumBuffers];
};

// Routes, poisons what tasks write and points the layer at it all.
// `prepared` must outlive the layer.
Status Prepare(const ImageView& view, const LaunchTensors& tensors, Isa isa,
               Prepared* prepared, Layer* layer, bool poison = true);

// Poisons what tasks of a form will write in an array; `slices` are of its rows
// where they are packed.
void Poison(const Slices& slices, Form form, const Array& array);

// Beside a relayed row that has yet to arrive.
constexpr RowCopy kNoCopy = {-1, -1, 0.0f};

// The first rows past a rank's last valid one, of what tasks write: poisons
// them, and makes zeros of them again.  What was written there meanwhile stays,
// but for zeros, which become NaN.
void PoisonPadding(const Plan& plan, const Layer& layer);
void ClearPadding(const Plan& plan, const Layer& layer);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_LAUNCH_PREPARE_H_
