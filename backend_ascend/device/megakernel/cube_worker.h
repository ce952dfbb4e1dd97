// A cube core (AIC): runs its tasks and adds to events.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_WORKER_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_WORKER_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/cube_core.h"
#include "backend_ascend/device/megakernel/rank_tensors.h"
#include "backend_ascend/device/megakernel/read_counter.h"
#include "backend_ascend/device/megakernel/tile_budget.h"

namespace hpmoe {

// `T` is what is multiplied: float, bfloat16_t or int8_t.
template <typename T>
class CubeWorker {
 public:
  static constexpr Unit kUnit = kAic;

  HPMOE_FUNCTION explicit CubeWorker(const RankTensors& rank)
      : rank_(rank), core_(rank.args.constants) {}

  // Before the first task.  A cube core has no UB to store a word in: it adds
  // what lies in L1.
  HPMOE_FUNCTION void Start() {
    core_.Start();
    AscendC::DataCopy(
        one_,
        GlobalOf(reinterpret_cast<HPMOE_GM CubeCount*>(
            const_cast<HPMOE_GM int32_t*>(rank_.args.constants->one) +
            kCubeWord)),
        kWords);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE3>(0);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE3>(0);
    for (int32_t id = 0; id < kInFlight; ++id) {
      AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(id);
    }
  }
  // After the last.
  HPMOE_FUNCTION void Finish() {
    core_.Finish();
    for (int32_t id = 0; id < kInFlight; ++id) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(id);
    }
  }

  // A task with real rows.  What Add moves comes after all that it wrote.  MTE3
  // tells FIX that it has met the flag, by way of MTE2, before FIX sets it
  // again: no flag goes straight from MTE3 to FIX, and some pages give an AIC
  // none to or from its scalar unit.
  HPMOE_FUNCTION void Run(const TaskDesc& task) {
    core_.Run(MakeCubeTile<T>(task, rank_));
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(in_flight_);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_FIX>(in_flight_);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_FIX>(in_flight_);
    AscendC::SetFlag<AscendC::HardEvent::FIX_MTE3>(in_flight_);
    AscendC::WaitFlag<AscendC::HardEvent::FIX_MTE3>(in_flight_);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(in_flight_);
    in_flight_ = (in_flight_ + 1) % kInFlight;
  }

  // The seven words behind the event's get zeros.
  HPMOE_FUNCTION void Add(HPMOE_GM CounterLine* line, int32_t amount) const {
    const AscendC::GlobalTensor<CubeCount> count =
        GlobalOf(reinterpret_cast<HPMOE_GM CubeCount*>(line) + kCubeWord);
    AscendC::SetAtomicAdd<CubeCount>();
    for (int32_t i = 0; i < amount; ++i) {
      AscendC::DataCopy(count, one_, kWords);
    }
    AscendC::SetAtomicNone();
  }

 private:
  static constexpr int32_t kWords = kBlockBytes / sizeof(CubeCount);

  static constexpr int32_t kInFlight = 2;  // tasks whose flag may be set

  const RankTensors& rank_;
  CubeCore<T> core_;
  int32_t in_flight_ = 0;
  const AscendC::LocalTensor<CubeCount> one_{AscendC::TPosition::A1, kL1Signal,
                                             kWords};
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_WORKER_H_
