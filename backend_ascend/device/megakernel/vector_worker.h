// A vector core (AIV): runs its tasks and adds to events.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_WORKER_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_WORKER_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/rank_tensors.h"
#include "backend_ascend/device/megakernel/symmetric_memory.h"
#include "backend_ascend/device/megakernel/vector_codes.h"
#include "backend_ascend/device/megakernel/vector_memory.h"
#include "backend_ascend/device/megakernel/vector_puts.h"
#include "backend_ascend/device/megakernel/vector_swiglu.h"
#include "backend_ascend/device/megakernel/vector_tokens.h"

namespace hpmoe {

// `T` is the storage: float or bfloat16_t; `U` what products are of: T, or
// int8_t.
template <typename T, typename U>
class VectorWorker {
 public:
  static constexpr Unit kUnit = kAiv;

  HPMOE_FUNCTION explicit VectorWorker(const RankTensors& rank) : rank_(rank) {}

  // Before the first task, and after the last.
  HPMOE_FUNCTION void Start() {
    sets_.Open();
    adds_.Open();
  }
  HPMOE_FUNCTION void Finish() {
    sets_.Close();
    adds_.Close();
  }

  // A task with real rows.  When it returns, all that the task wrote is there.
  HPMOE_FUNCTION void Run(const TaskDesc& task) {
    switch (KindRowOf(task).work) {
      case Work::kPutRows:
        return RowPut<T, U>(task, rank_, &sets_).Run();
      case Work::kActivation:
        return Activation(task);
      case Work::kPutHome:
        return ReturnRows(task);
      case Work::kSumSlots:
        return SlotSum<T>(task, rank_, &sets_).Run();
      case Work::kPutOnce:
        return OncePut<T, U>(task, rank_, &sets_).Run();
      case Work::kRelayRows:
        return RowRelay<U>(task, rank_, &sets_).Run();
      default:
        return Gradient(task);
    }
  }

  HPMOE_FUNCTION void Add(HPMOE_GM CounterLine* line, int32_t amount) {
    adds_.Add(line, amount);
  }

 private:
  HPMOE_FUNCTION void Activation(const TaskDesc& task) {
    if constexpr (kIsCode<U>) {
      CodeSwiglu<T>(task, rank_, &sets_).Run();
    } else {
      SwigluTileOnUb<T>(task, rank_, &sets_).Run();
    }
  }

  HPMOE_FUNCTION void ReturnRows(const TaskDesc& task) {
    if constexpr (kIsCode<U>) {
      PutSumsHome<T>(task, rank_, &sets_);
    } else {
      PutHome<T>(task, rank_, &sets_);
    }
  }

  // Codes have none; else it is a cube core's.
  HPMOE_FUNCTION void Gradient(const TaskDesc& task) {
    if constexpr (!kIsCode<U>) {
      const Work work = KindRowOf(task).work;
      if (work == Work::kActivationGrad) {
        SwigluGradOnUb<T>(task, rank_, &sets_).Run();
      } else if (work == Work::kWeightDots) {
        WeightDots<T>(task, rank_, &sets_).Run();
      }
    }
  }

  const RankTensors& rank_;
  Sets sets_;
  SignalAdds adds_;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_WORKER_H_
