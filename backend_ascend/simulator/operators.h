// An image operator by operator, as a framework runs a layer: a kind of task
// starts on a rank when all kinds before it have ended there, and one that
// sends to other ranks, or comes after such, when they have ended on all ranks.

#ifndef BACKEND_ASCEND_SIMULATOR_OPERATORS_H_
#define BACKEND_ASCEND_SIMULATOR_OPERATORS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/simulator/cost.h"

namespace hpmoe::sim {

class Operators {
 public:
  // Without barriers the queues are the image's, and nothing else is of use.
  Operators(const ImageView& view, const Pricing& pricing, bool barriers)
      : skipped_(pricing.skipped), queue_tasks_(view.queue_tasks) {
    if (!barriers) return;
    ranks_ = view.header->num_ranks;
    // In an image's queues the kinds alternate.
    sorted_.assign(view.queue_tasks, view.queue_tasks + view.num_queue_tasks);
    for (int q = 0; q < view.num_queues; ++q) {
      const auto begin = sorted_.begin() + view.queues[q].begin;
      std::stable_sort(begin, begin + view.queues[q].count,
                       [&](uint32_t a, uint32_t b) {
                         return view.tasks[a].kind < view.tasks[b].kind;
                       });
    }
    queue_tasks_ = sorted_.data();
    left_.assign(ranks_ * kNumTaskKinds, 0);
    for (int t = 0; t < view.num_tasks; ++t) {
      const TaskDesc& task = view.tasks[t];
      if (!skipped_[task.kind]) ++left_[At(task)];
    }
    opens_.assign(left_.size(), std::numeric_limits<double>::infinity());
    waiting_.assign(left_.size(), -1);
  }

  const uint32_t* tasks() const { return queue_tasks_; }

  bool IsOpen(const TaskDesc& task, double now) const {
    return skipped_[task.kind] || opens_[At(task)] <= now;
  }
  // Infinite: nobody knows yet.
  double OpensAt(const TaskDesc& task) const { return opens_[At(task)]; }
  // The workers that wait for the operator, a list.
  int32_t* Waiting(const TaskDesc& task) { return &waiting_[At(task)]; }

  // Whether it was the last of its operator on its rank.
  bool End(const TaskDesc& task) {
    return !skipped_[task.kind] && --left_[At(task)] == 0;
  }

  // Opens what may start, at `at`; calls wake(first worker of a list).
  template <class Wake>
  void Open(double at, Wake wake) {
    for (int32_t rank = 0; rank < ranks_; ++rank) {
      for (int kind = 0; kind < kNumTaskKinds; ++kind) {
        const int64_t i = rank * kNumTaskKinds + kind;
        if (left_[i] == 0 || opens_[i] <= at || !MayStart(rank, kind)) continue;
        opens_[i] = at;
        wake(waiting_[i]);
        waiting_[i] = -1;
      }
    }
  }

 private:
  static int64_t At(const TaskDesc& task) {
    return int64_t{task.rank} * kNumTaskKinds + task.kind;
  }
  bool IsOver(int32_t rank, int kind, bool everywhere) const {
    if (!everywhere) return left_[rank * kNumTaskKinds + kind] == 0;
    for (int32_t r = 0; r < ranks_; ++r) {
      if (left_[r * kNumTaskKinds + kind] != 0) return false;
    }
    return true;
  }
  bool MayStart(int32_t rank, int kind) const {
    const bool sends = IsPut(kKinds[kind].form());
    for (int before = 0; before < kind; ++before) {
      const bool everywhere = sends || IsPut(kKinds[before].form());
      if (!IsOver(rank, before, everywhere)) return false;
    }
    return true;
  }

  const bool* skipped_;
  const uint32_t* queue_tasks_;
  int32_t ranks_ = 0;
  std::vector<uint32_t> sorted_;
  std::vector<int32_t> left_;     // [R, kinds] tasks
  std::vector<double> opens_;     // [R, kinds] s
  std::vector<int32_t> waiting_;  // [R, kinds]
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_OPERATORS_H_
