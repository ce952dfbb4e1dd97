// Faults of one task's work, planted where the device does it: the bytes that
// its loads see, the unit that computes, the move that writes.  What it wrote
// is never touched afterwards.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_TWIN_FAULTS_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_TWIN_FAULTS_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/kernels/ascendc/twin/engine/instruction.h"
#include "backend_ascend/kernels/ascendc/twin/launch/device_memory.h"
#include "backend_ascend/kernels/ascendc/twin/launch/twin_patches.h"
#include "backend_ascend/kernels/host/checks/faults.h"
#include "backend_ascend/kernels/host/load/image_loader.h"
#include "backend_ascend/kernels/host/load/plan.h"

namespace hpmoe {

class FaultyTask {
 public:
  FaultyTask(const ImageView& view, const Plan& plan,
             const DeviceMemory& memory, const FaultSpec& fault);

  // Called for every instruction as it is issued, with its task; spoils those
  // of the faulty one.  Must outlive them.
  void OnIssue(int64_t task, ascend_twin::Instruction* issued);

  // How many instructions did something else than they should.
  uint64_t num_changed() const { return num_changed_; }

 private:
  using Instruction = ascend_twin::Instruction;

  void PatchLoads(Instruction* issued);
  void SpoilStore(Instruction* issued);
  void SpoilQuotient(Instruction* issued);
  void NarrowOperand(Instruction* issued);
  void SpoilProduct(Instruction* issued);

  const FaultSpec fault_;
  const bool is_float_;  // storage
  const std::vector<Patch> patches_;
  uint64_t num_products_ = 0;
  uint64_t num_changed_ = 0;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_LAUNCH_TWIN_FAULTS_H_
