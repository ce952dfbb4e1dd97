#include "backend_ascend/compiler/orders/list_schedule.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace hpmoe::schedule {
namespace {

template <class T>
using Least = std::priority_queue<T, std::vector<T>, std::greater<T>>;

class Lister {
 public:
  Lister(const ImageView& view, const ListProblem& problem)
      : view_(view),
        problem_(problem),
        signallers_(view_.num_events, 0),
        pending_(view_.num_tasks, 0),
        waiters_(view_.num_events),
        place_(view_.num_tasks, 0),
        core_of_(view_.num_tasks, 0),
        ready_(problem.num_pools),
        idle_(problem.num_pools) {
    FindUrgency();
    for (int64_t p = 0; p < problem.num_pools; ++p) {
      for (int32_t c = 0; c < problem.cores[p]; ++c) {
        idle_[p].push(problem.first[p] + c);
      }
    }
    for (int64_t i = 0; i < view_.num_tasks; ++i) {
      const int32_t t = problem.sequence[i];
      place_[t] = static_cast<int32_t>(i);
      const TaskDesc& task = view_.tasks[t];
      for (uint32_t w = 0; w < task.wait_count; ++w) {
        waiters_[view_.waits[task.wait_begin + w].event].push_back(t);
        ++pending_[t];
      }
      ForEachSignalled(task, [&](int32_t event) { ++signallers_[event]; });
    }
  }

  int64_t Run(int64_t* core, int64_t* order) {
    for (int64_t t = 0; t < view_.num_tasks; ++t) {
      if (pending_[t] == 0) Offer(static_cast<int32_t>(t));
    }
    int64_t started = Start(core, order, 0);
    while (!running_.empty()) {
      now_ = running_.top().first;
      while (!running_.empty() && running_.top().first == now_) {
        const int32_t t = running_.top().second;
        running_.pop();
        idle_[problem_.pool[t]].push(core_of_[t]);
        ForEachSignalled(view_.tasks[t], [&](int32_t event) {
          if (--signallers_[event] > 0) return;
          for (const int32_t waiter : waiters_[event]) {
            if (--pending_[waiter] == 0) Offer(waiter);
          }
        });
      }
      started = Start(core, order, started);
    }
    return started;
  }

 private:
  template <class Visit>
  void ForEachSignalled(const TaskDesc& task, Visit visit) const {
    for (uint32_t s = 0; s < task.signal_count; ++s) {
      const SignalDesc& signal = view_.signals[task.signal_begin + s];
      for (int32_t e = 0; e < signal.span; ++e) visit(signal.event + e);
    }
  }

  // The longest way from a task of each kind to the end, itself included.
  void FindUrgency() {
    std::vector<double> behind(view_.num_events, 0.0);
    for (int64_t i = view_.num_tasks - 1; i >= 0; --i) {
      const int32_t t = problem_.sequence[i];
      const TaskDesc& task = view_.tasks[t];
      double way = 0;
      ForEachSignalled(
          task, [&](int32_t event) { way = std::max(way, behind[event]); });
      way += problem_.seconds[t];
      urgency_[task.kind] = std::max(urgency_[task.kind], way);
      for (uint32_t w = 0; w < task.wait_count; ++w) {
        double& event = behind[view_.waits[task.wait_begin + w].event];
        event = std::max(event, way);
      }
    }
  }

  void Offer(int32_t t) {
    ready_[problem_.pool[t]].push({-urgency_[view_.tasks[t].kind], place_[t]});
  }

  int64_t Start(int64_t* core, int64_t* order, int64_t started) {
    for (int64_t p = 0; p < problem_.num_pools; ++p) {
      while (!ready_[p].empty() && !idle_[p].empty()) {
        const int32_t t = problem_.sequence[ready_[p].top().second];
        ready_[p].pop();
        core[t] = core_of_[t] = idle_[p].top();
        idle_[p].pop();
        order[started++] = t;
        running_.push({now_ + problem_.seconds[t], t});
      }
    }
    return started;
  }

  const ImageView& view_;
  const ListProblem& problem_;
  double now_ = 0;
  std::vector<int32_t> signallers_;  // of an event, that have not ended
  std::vector<int32_t> pending_;     // events that a task waits for
  std::vector<std::vector<int32_t>> waiters_;
  double urgency_[kNumTaskKinds] = {};
  std::vector<int32_t> place_, core_of_;
  std::vector<Least<std::pair<double, int32_t>>> ready_;
  std::vector<Least<int32_t>> idle_;
  Least<std::pair<double, int32_t>> running_;
};

}  // namespace

int64_t ListSchedule(const ImageView& view, const ListProblem& problem,
                     int64_t* core, int64_t* order) {
  return Lister(view, problem).Run(core, order);
}

}  // namespace hpmoe::schedule
