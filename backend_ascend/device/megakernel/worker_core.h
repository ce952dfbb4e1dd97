// A core walks its queue of the image: the device's side of worker.h.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_WORKER_CORE_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_WORKER_CORE_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/device/megakernel/rank_tensors.h"
#include "backend_ascend/device/megakernel/vector_puts.h"
#include "backend_ascend/device/megakernel/waits.h"
#include "backend_ascend/image/rows.h"
#include "backend_ascend/image/worker.h"

namespace hpmoe {

// What Step calls; `Core` is VectorWorker or CubeWorker.
template <class Core>
class DevicePlatform {
 public:
  HPMOE_FUNCTION DevicePlatform(const RankTensors& rank, Core* core)
      : rank_(rank), core_(*core) {}

  HPMOE_FUNCTION TaskDesc Task(uint32_t index) const {
    TaskDesc task;
    CopyConstant(rank_.Table<TaskDesc>(rank_.image.tasks) + index, &task);
    return task;
  }
  HPMOE_FUNCTION WaitDesc Wait(uint32_t index) const {
    WaitDesc wait;
    CopyConstant(rank_.Table<WaitDesc>(rank_.image.waits) + index, &wait);
    return wait;
  }
  HPMOE_FUNCTION bool Reached(const WaitDesc& wait) {
    waited_.event = wait.event;
    waited_.expected = wait.threshold;
    waited_.actual = ReadCounter(rank_.args.events + wait.event);
    return waited_.actual >= wait.threshold;
  }
  HPMOE_FUNCTION void Run(uint32_t index) {
    HPMOE_ON_TASK(index);
    const TaskDesc task = Task(index);
    if (RealRows(task, rank_.plan).count() > 0) core_.Run(task);
  }
  HPMOE_FUNCTION void Signal(uint32_t index) {
    const TaskDesc task = Task(index);
    SignalTask(*this, task, rank_.Table<SignalDesc>(rank_.image.signals),
               rank_.Table<EventDesc>(rank_.image.events), rank_.plan,
               SlotsOf(task, rank_));
    ++waited_.tasks_run;
    HPMOE_ON_TASK(-1);
  }
  HPMOE_FUNCTION void Add(const SignalDesc& signal, int32_t event,
                          int32_t amount) {
    core_.Add(rank_.heap.At(rank_.args.events + event, signal.rank), amount);
  }

  // Of the last wait; the rest is for the walk to fill in.
  HPMOE_FUNCTION const CoreDiagnosis& waited() const { return waited_; }

 private:
  const RankTensors& rank_;
  Core& core_;
  CoreDiagnosis waited_ = {};
};

// The core's queue: queues are sorted by rank, unit and core.  No tasks where
// the image has none for it.
HPMOE_FUNCTION Cursor FindQueue(const RankTensors& rank, Unit unit,
                                int32_t core) {
  const HPMOE_GM QueueDesc* const queues =
      rank.Table<QueueDesc>(rank.image.queues);
  uint64_t begin = 0, end = rank.image.queues.count;
  while (begin < end) {
    const uint64_t middle = (begin + end) / 2;
    const HPMOE_GM QueueDesc& queue = queues[middle];
    const int32_t order = queue.rank != rank.args.rank
                              ? queue.rank - rank.args.rank
                          : queue.unit != unit ? queue.unit - unit
                                               : queue.core - core;
    if (order == 0) {
      return {rank.Table<uint32_t>(rank.image.queue_tasks) + queue.begin,
              queue.count, 0, 0};
    }
    (order < 0 ? begin : end) = order < 0 ? middle + 1 : middle;
  }
  return {nullptr, 0, 0, 0};
}

// Runs a queue to its end, or until one wait takes too long.
template <class Core>
HPMOE_FUNCTION CoreDiagnosis WalkQueue(const RankTensors& rank, int32_t index,
                                       Core* core) {
  Cursor cursor = FindQueue(rank, Core::kUnit, index);
  DevicePlatform<Core> platform(rank, core);
  Deadline deadline(rank.args.deadline_us);
  StepResult result = Step(&cursor, platform);
  while (result != StepResult::kDone) {
    if (result == StepResult::kRan) {
      deadline.Restart();
    } else if (deadline.PauseAndCheck()) {
      break;
    }
    result = Step(&cursor, platform);
  }
  CoreDiagnosis ended = platform.waited();
  ended.reason = result == StepResult::kDone ? kEnded : kEventDeadline;
  ended.task = result == StepResult::kDone
                   ? -1
                   : static_cast<int32_t>(cursor.tasks[cursor.next]);
  return ended;
}

// Leaves it in the core's line of global memory.
HPMOE_FUNCTION void WriteDiagnosis(const CoreDiagnosis& diagnosis,
                                   HPMOE_GM CoreDiagnosis* line) {
  AscendC::GlobalTensor<int32_t> words =
      GlobalOf(reinterpret_cast<HPMOE_GM int32_t*>(line));
  words.SetValue(1, diagnosis.task);
  words.SetValue(2, diagnosis.event);
  words.SetValue(3, diagnosis.expected);
  words.SetValue(4, diagnosis.actual);
  words.SetValue(5, diagnosis.tasks_run);
  words.SetValue(0, diagnosis.reason);
  AscendC::DataCacheCleanAndInvalid<int32_t,
                                    AscendC::CacheLine::SINGLE_CACHE_LINE,
                                    AscendC::DcciDst::CACHELINE_OUT>(words);
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_WORKER_CORE_H_
