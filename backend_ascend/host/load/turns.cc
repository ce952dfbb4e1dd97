#include "backend_ascend/host/load/turns.h"

#include <algorithm>
#include <numeric>

namespace hpmoe {

std::vector<int64_t> WorkOf(const ImageView& view, const PlanView& plan,
                            const std::function<bool(int)>& made) {
  const auto makes = [&](int buffer) {
    return made == nullptr || made(buffer);
  };
  std::vector<int64_t> work(view.num_tasks, 0);
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    const TaskDesc& task = view.tasks[t];
    const KindInfo& kind = KindOf(task);
    if (!makes(kind.written)) continue;
    const int64_t rows = RealRows(task, plan).count();
    const int64_t cols = task.col_end - task.col_begin;
    switch (kind.work) {
      case Work::kGemm:
      case Work::kGemmTransposed:
      case Work::kActivationGrad:
        work[t] = rows * view.header->d_model;
        break;
      case Work::kActivation:
        work[t] = makes(kGateUpBuffer) ? 0 : rows * cols;
        break;
      case Work::kWeightGrad:
        work[t] =
            rows * cols / view.header->d_ff * SummedRows(task, plan).count();
        break;
      default:
        break;
    }
  }
  return work;
}

std::vector<uint32_t> TurnsOf(const ImageView& view,
                              const std::vector<int64_t>& work) {
  std::vector<uint32_t> turns(view.header->queues.count);
  std::iota(turns.begin(), turns.end(), 0);
  std::vector<int64_t> of_queue(turns.size(), 0);
  for (size_t i = 0; i < turns.size(); ++i) {
    const QueueDesc& queue = view.queues[i];
    for (uint32_t t = 0; t < queue.count; ++t) {
      of_queue[i] += work[view.queue_tasks[queue.begin + t]];
    }
  }
  std::stable_sort(turns.begin(), turns.end(), [&](uint32_t a, uint32_t b) {
    return of_queue[a] > of_queue[b];
  });
  return turns;
}

}  // namespace hpmoe
