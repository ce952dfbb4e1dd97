// A vector core (AIV): runs its tasks and adds to events.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_WORKER_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_WORKER_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/rank_tensors.h"
#include "backend_ascend/device/megakernel/symmetric_memory.h"
#include "backend_ascend/device/megakernel/vector_memory.h"
#include "backend_ascend/device/megakernel/vector_puts.h"
#include "backend_ascend/device/megakernel/vector_swiglu.h"
#include "backend_ascend/device/megakernel/vector_tokens.h"

namespace hpmoe {

// `T` is the storage: float or bfloat16_t.
template <typename T>
class VectorWorker {
 public:
  static constexpr Unit kUnit = kAiv;

  HPMOE_FUNCTION explicit VectorWorker(const RankTensors& rank) : rank_(rank) {}

  // Before the first task, and after the last.
  HPMOE_FUNCTION void Start() { sets_.Open(); }
  HPMOE_FUNCTION void Finish() { sets_.Close(); }

  // A task with real rows.  When it returns, all that the task wrote is there.
  HPMOE_FUNCTION void Run(const TaskDesc& task) {
    switch (KindRowOf(task).work) {
      case Work::kPutRows:
        return RowPut<T>(task, rank_, &sets_).Run();
      case Work::kActivation:
        return SwigluTileOnUb<T>(task, rank_, &sets_).Run();
      case Work::kActivationGrad:
        return SwigluGradOnUb<T>(task, rank_, &sets_).Run();
      case Work::kPutHome:
        return PutHome<T>(task, rank_, &sets_);
      case Work::kSumSlots:
        return SlotSum<T>(task, rank_, &sets_).Run();
      case Work::kWeightDots:
        return WeightDots<T>(task, rank_, &sets_).Run();
      case Work::kPutOnce:
        return OncePut<T>(task, rank_, &sets_).Run();
      case Work::kRelayRows:
        return RowRelay<T>(task, rank_, &sets_).Run();
      default:  // a cube core's
        return;
    }
  }

  HPMOE_FUNCTION void Add(HPMOE_GM CounterLine* line, int32_t amount) const {
    SignalAdd(line, amount);
  }

 private:
  const RankTensors& rank_;
  Sets sets_;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_WORKER_H_
