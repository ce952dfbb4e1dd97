#include "backend_ascend/host/load/worker_order.h"

#include <algorithm>
#include <numeric>

namespace hpmoe {

std::vector<int64_t> CountWork(const ImageView& view, const PlanView& plan,
                               const std::function<bool(int)>& is_made) {
  const auto is_needed = [&](int buffer) {
    return is_made == nullptr || is_made(buffer);
  };
  std::vector<int64_t> work(view.num_tasks, 0);
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    const TaskDesc& task = view.tasks[t];
    const KindInfo& kind = KindOf(task);
    if (!is_needed(kind.written)) continue;
    const int64_t rows = RealRows(task, plan).count();
    const int64_t cols = task.col_end - task.col_begin;
    switch (kind.work) {
      case Work::kGemm:
      case Work::kGemmTransposed:
      case Work::kActivationGrad:
        work[t] = rows * view.header->d_model;
        break;
      case Work::kActivation:
        work[t] = is_needed(kGateUpBuffer) ? 0 : rows * cols;
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

std::vector<uint32_t> OrderWorkers(const ImageView& view,
                                   const std::vector<int64_t>& work) {
  std::vector<uint32_t> order(view.header->queues.count);
  std::iota(order.begin(), order.end(), 0);
  std::vector<int64_t> queue_work(order.size(), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    const QueueDesc& queue = view.queues[i];
    for (uint32_t t = 0; t < queue.count; ++t) {
      queue_work[i] += work[view.queue_tasks[queue.begin + t]];
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return queue_work[a] > queue_work[b];
  });
  return order;
}

}  // namespace hpmoe
