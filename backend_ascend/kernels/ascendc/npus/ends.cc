#include "backend_ascend/kernels/ascendc/npus/ends.h"

#include <algorithm>
#include <set>
#include <string>

#include "backend_ascend/kernels/host/launch/diagnosis.h"
#include "backend_ascend/kernels/host/launch/task_signals.h"

namespace hpmoe {
namespace {

std::string CoreText(const ImageHeader& header, int32_t rank, int32_t core) {
  const bool aic = core < header.num_aic;
  return std::string(UnitName(aic ? kAic : kAiv)) + " " +
         std::to_string(aic ? core : core - header.num_aic) + " of rank " +
         std::to_string(rank);
}

// What the rank's cores say that they ran.
std::vector<bool> Ran(const ImageView& view, int32_t rank,
                      const std::vector<CoreDiagnosis>& cores) {
  std::vector<bool> ran(view.num_tasks, false);
  for (int32_t q = 0; q < view.num_queues; ++q) {
    const QueueDesc& queue = view.queues[q];
    if (queue.rank != rank) continue;
    const int32_t core =
        queue.core + (queue.unit == kAic ? 0 : view.header->num_aic);
    const auto count = std::min<uint32_t>(
        static_cast<uint32_t>(std::max(0, cores[core].tasks_run)), queue.count);
    for (uint32_t i = 0; i < count; ++i) {
      ran[view.queue_tasks[queue.begin + i]] = true;
    }
  }
  return ran;
}

// A wait, and who may owe it: own tasks first, for then it is a consequence.
Diagnosis Describe(const ImageView& view, int32_t rank,
                   const std::vector<bool>& ran, const CoreDiagnosis& end) {
  Diagnosis found{};
  found.reason = StopReason::kDeadline;
  found.task = end.task;
  found.event = end.event;
  found.expected = end.expected;
  found.actual = end.actual;
  for (const bool own : {true, false}) {
    for (int32_t t = 0; t < view.num_tasks; ++t) {
      if (found.suspects.size() == HPMOE_NPUS_SUSPECTS) return found;
      const TaskDesc& task = view.tasks[t];
      if ((task.rank == rank) == own && !ran[t] &&
          MaySignal(view, task, end.event)) {
        found.suspects.push_back(t);
      }
    }
  }
  return found;
}

End EndOf(const ImageView& view, const Diagnosis& found, int32_t rank) {
  std::set<int32_t> owners;
  for (const int64_t task : found.suspects)
    owners.insert(view.tasks[task].rank);
  owners.erase(rank);
  End end(HPMOE_NPUS_WAITED,
          "rank " + std::to_string(rank) + ": " + TextOf(view, found),
          {owners.begin(), owners.end()});
  end.task = static_cast<int32_t>(found.task);
  end.event = found.event;
  end.expected = found.expected;
  end.actual = found.actual;
  for (const int64_t task : found.suspects) {
    end.suspects[end.num_suspects++] = static_cast<int32_t>(task);
  }
  return end;
}

// A rank that the first vector core did not hear: the others wait for that.
End MissingRank(const ImageHeader& header, int32_t rank,
                const std::vector<CoreDiagnosis>& cores) {
  for (const CoreDiagnosis& core : cores) {
    if (core.reason != kReadyDeadline || core.event == kAllReady) continue;
    const int64_t ranks = header.num_ranks;
    const int64_t behind = (int64_t{1} << (core.event & 31)) % ranks;
    const auto peer = static_cast<int32_t>((rank - behind + ranks) % ranks);
    return {HPMOE_NPUS_WAITED,
            "rank " + std::to_string(rank) + ": deadline: waited for rank " +
                std::to_string(peer) + " to start its kernel",
            {peer}};
  }
  return {};
}

// The first core that says something else than kEnded.
End OtherEnd(const ImageHeader& header, int32_t rank,
             const std::vector<CoreDiagnosis>& cores) {
  for (size_t core = 0; core < cores.size(); ++core) {
    if (cores[core].reason == kEnded) continue;
    return {HPMOE_NPUS_WAITED,
            CoreText(header, rank, static_cast<int32_t>(core)) +
                ": expected it to end, got no word of it",
            {rank}};
  }
  return {};
}

}  // namespace

End EndOf(const ImageView& view, int32_t rank,
          const std::vector<CoreDiagnosis>& cores) {
  if (const End end = MissingRank(*view.header, rank, cores); !end.ok()) {
    return end;
  }
  const std::vector<bool> ran = Ran(view, rank, cores);
  const auto consequence = [&](const Diagnosis& blocked) {
    return !blocked.suspects.empty() &&
           view.tasks[blocked.suspects[0]].rank == rank;
  };
  Diagnosis best{};
  best.task = -1;
  for (const CoreDiagnosis& core : cores) {
    const bool waits = core.reason == kEventDeadline && core.task >= 0 &&
                       core.task < view.num_tasks && core.event >= 0 &&
                       core.event < view.num_events;
    if (!waits) continue;
    const Diagnosis found = Describe(view, rank, ran, core);
    const bool better =
        best.task < 0 ||
        (consequence(found) != consequence(best) ? consequence(best)
                                                 : found.task < best.task);
    if (better) best = found;
  }
  if (best.task >= 0) return EndOf(view, best, rank);
  return OtherEnd(*view.header, rank, cores);
}

}  // namespace hpmoe
