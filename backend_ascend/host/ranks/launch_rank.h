// One rank's part of a launch whose ranks are processes of their own.

#ifndef BACKEND_ASCEND_HOST_RANKS_LAUNCH_RANK_H_
#define BACKEND_ASCEND_HOST_RANKS_LAUNCH_RANK_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "backend_ascend/host/launch/diagnosis.h"
#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/load/plan.h"
#include "backend_ascend/host/ranks/transport.h"
#include "backend_ascend/image/worker.h"

namespace hpmoe {

// What one rank holds: its own slab of every tensor.
struct RankTensors {
  int32_t rank;
  const Plan* plan;            // of topk_ids and all ranks' counts
  const int32_t* topk_ids;     // [T, K]
  const float* topk_weights;   // [T, K]
  void* buffers[kNumBuffers];  // of the image's direction; those that puts
                               // write lie in the heap
  float* scales[kNumBuffers];  // beside codes, likewise
  char* heap;                  // HeapLayout::bytes, aligned for floats
  int32_t* counters;           // [events], zero; only other ranks add
  Transport* transport;
};

// Walks the rank's queues on the caller's thread: a rank has a process, and
// there are rarely more cores than ranks.  Nothing here blocks but the
// transport's Flush.
//
// Use: Prepare on every rank; a barrier of the caller's, since others may put
// from then on; Run on every rank.
class RankLaunch {
 public:
  // The status speaks of inputs.  `view` and `tensors` must outlive the launch.
  Status Prepare(const ImageView& view, const RankTensors& tensors, Isa isa);

  // Runs up to `max_tasks` ready tasks, without waiting.  Returns kDone when
  // the rank has run all of its tasks, kBlocked when none was ready.
  StepResult RunSome(int64_t max_tasks);

  // Runs all tasks, or returns false when none ended within `deadline_s`.
  bool Run(double deadline_s);

  // The wait that tells most about why nothing runs: one that only other ranks
  // can meet, the first in dependency order.  Its suspects are tasks of any
  // rank that may not have signalled; other ranks' cannot be asked.
  Diagnosis FindBlocked() const;

 private:
  class Platform;

  void PlaceBuffers(const RankTensors& tensors);
  void PlaceWorkspace();
  int32_t Count(int32_t event) const;
  bool MayOwe(uint64_t task, int32_t event) const;
  Diagnosis Describe(uint32_t task, const WaitDesc& wait) const;

  const ImageView* view_ = nullptr;
  RankTensors tensors_{};
  HeapLayout heap_{};
  Layer layer_{};
  std::vector<float> d_row_weight_;
  std::vector<float> sums_[kNumBuffers];
  std::vector<Cursor> cursors_;  // of the rank's queues
  // Own signals never mix with remote atomics, whose hardware may differ.
  std::vector<uint32_t> own_counters_;
  std::vector<bool> signalled_;  // by task; only the rank's own
  GemmScratch scratch_;
  size_t at_ = 0;  // cursor to look at first
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_RANKS_LAUNCH_RANK_H_
