// What a task asks of a machine: time of its own core, and bytes of what cores
// and ranks share.

#ifndef BACKEND_ASCEND_SIMULATOR_COST_H_
#define BACKEND_ASCEND_SIMULATOR_COST_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/load/plan.h"
#include "backend_ascend/image/regions.h"
#include "backend_ascend/image/rows.h"
#include "backend_ascend/simulator/cache.h"
#include "backend_ascend/simulator/figures.h"

namespace hpmoe::sim {

// How an image is priced.
struct Pricing {
  double cube;        // flop/s of one AIC at the elements' width
  double cube_depth;  // elements of one step of the depth
  double element_bytes[kNumBuffers];  // of a buffer
  bool skipped[kNumTaskKinds];        // no work: its tasks only signal
};

struct Cost {
  double fixed = 0;    // s: fetch, signals, head and latency of puts
  double own = 0;      // s: what its core takes, were nothing shared
  double flops = 0;    // of the real rows
  double read = 0;     // bytes from L2 or HBM of its rank
  double missed = 0;   // of them, from HBM
  double written = 0;  // bytes to memory of its rank
  double linked = 0;   // bytes of payload to other ranks
};

// Bytes for one destination of a put, its own rank among them.
struct Sent {
  int32_t rank;
  double bytes;
};

// A launch: an image with a routing.
struct Launch {
  const ImageView* view;
  PlanView plan;
  std::vector<int32_t> slots;  // [R, N] of the row headers, as dispatch writes
  // [R, N, CopiesOf] where copies of relayed rows go, or -1; empty without.
  std::vector<int32_t> copies;

  const int32_t* Slots(int32_t rank) const {
    return slots.data() + int64_t{rank} * plan.image->num_rows;
  }
  const int32_t* Copies(int32_t rank) const {
    const ImageHeader& h = *plan.image;
    return copies.data() + int64_t{rank} * h.num_rows * CopiesOf(h);
  }
  // What says where the rows of a task go.
  const int32_t* Headers(const TaskDesc& task) const {
    return FormOf(task) == Form::kRelayTile ? Copies(task.rank)
                                            : Slots(task.rank);
  }
};

// `plan` must outlive the launch.
Launch MakeLaunch(const ImageView& view, const Plan& plan);

class CostModel {
 public:
  // All must outlive the model.  `l2_bytes`: of the caches.
  CostModel(const Launch& launch, const Figures& figures,
            const FabricTables& fabric, const Pricing& pricing,
            double l2_bytes);

  // The task's demands, as the caches stand; moves the caches on.
  Cost Of(const TaskDesc& task);

  // Of the last task that was asked for.
  const std::vector<Sent>& sent() const { return sent_; }

 private:
  void Cube(const TaskDesc& task, Cost* cost);
  bool StoresHome() const;  // what goes home, from accumulators
  void StoreHome(const TaskDesc& task, double cols, Cost* cost);
  void Vector(const TaskDesc& task, Cost* cost);
  void SendRows(const TaskDesc& task, Cost* cost);
  void SendHome(const TaskDesc& task, Cost* cost);
  void Relay(const TaskDesc& task, Cost* cost);
  void Send(const TaskDesc& task, Cost* cost);
  double ReadBoxes(const TaskDesc& task, Cost* cost);
  Box Clip(const TaskDesc& task, const ReadSpec& spec,
           const RegionDesc& region) const;

  const Launch& launch_;
  const ImageHeader& header_;
  const Figures& figures_;
  const FabricTables& fabric_;
  const Pricing& pricing_;
  const Touched touched_;
  Caches caches_;
  std::vector<Sent> sent_;
  std::vector<int32_t> rows_to_;  // [R]
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_COST_H_
