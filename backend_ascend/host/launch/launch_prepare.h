// What every launch does before its first task: plan, buffers, workspace.

#ifndef BACKEND_ASCEND_HOST_LAUNCH_LAUNCH_PREPARE_H_
#define BACKEND_ASCEND_HOST_LAUNCH_LAUNCH_PREPARE_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "backend_ascend/host/checks/faults.h"
#include "backend_ascend/host/checks/modes.h"
#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/load/plan.h"

namespace hpmoe {

struct LaunchOptions {
  int32_t threads = 0;     // 0: one per core, no more than there are workers
  double deadline_s = 60;  // without any task ending
  Isa isa = BestIsa();
  FaultSpec fault = {FaultKind::kNone, -1};
  Modes modes;
};

// The routing of a launch.  `ids` are its own: another thread of the caller's
// may write to the given ones after they were checked.
struct Routed {
  std::vector<int32_t> ids;  // [R, T, K]
  Plan made;                 // where none is given
  const Plan* plan = nullptr;
};

// Memory that grows and is not cleared.
class Arena {
 public:
  // `bytes`, aligned to cache lines, contents undefined.  Throws bad_alloc.
  char* Reserve(int64_t bytes);
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data_;
  int64_t bytes_ = 0;
};

// What a launch needs beside its tensors, kept for the next one.
struct Held {
  Arena arena;
  Routed routed;
  std::vector<GemmScratch> scratch;  // by thread
};

// Routes and points the layer at what is given and at `held`, which must
// outlive it.  Of what tasks write, a buffer is there if it is asked for, or if
// tasks that cannot do without it read it; whatever the modes and the fault.
// What travels beside rows is carried where they are put; else it is there
// already.
Status Prepare(const ImageView& view, const LaunchTensors& tensors,
               const LaunchOptions& options, Held* held, Layer* layer);

// Poisons what tasks of a form will write in an array, and in the scales beside
// its rows, or null; `slices` are of its rows where they are packed.
void Poison(const Slices& slices, Form form, const Array& array, float* scales);

// Beside a relayed row that has yet to arrive.
constexpr RowCopy kNoCopy = {-1, -1, 0.0f};

// The first rows past a rank's last valid one, of what tasks write: poisons
// them, and makes zeros of them again.  What was written there meanwhile stays,
// but for zeros, which become NaN.
void PoisonPadding(const Plan& plan, const Layer& layer);
void ClearPadding(const Plan& plan, const Layer& layer);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LAUNCH_LAUNCH_PREPARE_H_
