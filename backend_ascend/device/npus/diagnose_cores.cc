#include "backend_ascend/device/npus/diagnose_cores.h"

#include <algorithm>
#include <set>
#include <string>

#include "backend_ascend/host/launch/task_signals.h"

namespace hpmoe {
namespace {

CoresEnd WithoutTask(const std::string& text, int32_t rank) {
  CoresEnd end{};
  end.diagnosis.reason = StopReason::kDeadline;
  end.diagnosis.task = end.diagnosis.event = -1;
  end.diagnosis.text = text;
  end.ranks = {rank};
  return end;
}

class Ranks {
 public:
  Ranks(const ImageView& view, int32_t first,
        const std::vector<std::vector<CoreDiagnosis>>& cores)
      : view_(view),
        header_(*view.header),
        first_(first),
        cores_(cores),
        ran_(view.num_tasks, false) {
    for (int32_t q = 0; q < view.num_queues; ++q) {
      const QueueDesc& queue = view.queues[q];
      if (!Knows(queue.rank)) continue;
      const int32_t core =
          queue.core + (queue.unit == kAic ? 0 : header_.num_aic);
      const int32_t said = cores[queue.rank - first][core].tasks_run;
      const auto count = std::min<uint32_t>(
          static_cast<uint32_t>(std::max(0, said)), queue.count);
      for (uint32_t i = 0; i < count; ++i) {
        ran_[view.queue_tasks[queue.begin + i]] = true;
      }
    }
  }

  // A rank that the first vector core did not hear: the others wait for that.
  std::optional<CoresEnd> MissingRank() const {
    return FirstOf([&](int32_t rank, int32_t,
                       const CoreDiagnosis& core) -> std::optional<CoresEnd> {
      if (core.reason != kReadyDeadline || core.event == kAllReady) return {};
      const int64_t ranks = header_.num_ranks;
      const int64_t behind = (int64_t{1} << (core.event & 31)) % ranks;
      const auto peer = static_cast<int32_t>((rank - behind + ranks) % ranks);
      return WithoutTask("rank " + std::to_string(rank) +
                             ": deadline: waited for rank " +
                             std::to_string(peer) + " to start its kernel",
                         peer);
    });
  }

  std::optional<CoresEnd> BlockedTask() const {
    std::optional<CoresEnd> best;
    const auto key = [this](const Diagnosis& found) {
      return std::make_pair(IsConsequence(found), found.task);
    };
    FirstOf([&](int32_t rank, int32_t,
                const CoreDiagnosis& core) -> std::optional<CoresEnd> {
      const bool waits = core.reason == kEventDeadline && core.task >= 0 &&
                         core.task < view_.num_tasks && core.event >= 0 &&
                         core.event < view_.num_events;
      if (!waits) return {};
      const Diagnosis found = Describe(core);
      if (!best || key(found) < key(best->diagnosis)) {
        best = {found, OwnersOf(found, rank)};
      }
      return {};
    });
    if (best) best->diagnosis.text = TextOf(view_, best->diagnosis);
    return best;
  }

  // The first core that says something else than kEnded.
  std::optional<CoresEnd> OtherEnd() const {
    return FirstOf([&](int32_t rank, int32_t core,
                       const CoreDiagnosis& end) -> std::optional<CoresEnd> {
      if (end.reason == kEnded) return {};
      const bool aic = core < header_.num_aic;
      return WithoutTask(
          std::string(UnitName(aic ? kAic : kAiv)) + " " +
              std::to_string(aic ? core : core - header_.num_aic) +
              " of rank " + std::to_string(rank) +
              ": expected it to end, got no word of it",
          rank);
    });
  }

 private:
  bool Knows(int32_t rank) const {
    return rank >= first_ && rank - first_ < int64_t(cores_.size());
  }
  bool HasYetToRun(int64_t task) const {
    return Knows(view_.tasks[task].rank) && !ran_[task];
  }
  bool IsConsequence(const Diagnosis& blocked) const {
    return !blocked.suspects.empty() && HasYetToRun(blocked.suspects[0]);
  }

  // What `find` returns for the first core for which it returns something.
  template <class Find>
  std::optional<CoresEnd> FirstOf(Find find) const {
    for (size_t r = 0; r < cores_.size(); ++r) {
      for (size_t core = 0; core < cores_[r].size(); ++core) {
        auto found = find(first_ + static_cast<int32_t>(r),
                          static_cast<int32_t>(core), cores_[r][core]);
        if (found) return found;
      }
    }
    return {};
  }

  // A wait, and who may owe it: known tasks that have yet to run first, for
  // then it is a consequence; who ran only where there is nobody else.
  Diagnosis Describe(const CoreDiagnosis& end) const {
    Diagnosis found{};
    found.reason = StopReason::kDeadline;
    found.task = end.task;
    found.event = end.event;
    found.expected = end.expected;
    found.actual = end.actual;
    for (int kind = 0; kind < 3; ++kind) {
      if (kind == 2 && !found.suspects.empty()) break;
      for (int32_t t = 0; t < view_.num_tasks; ++t) {
        if (found.suspects.size() == HPMOE_NPUS_SUSPECTS) return found;
        const int of = HasYetToRun(t) ? 0 : ran_[t] ? 2 : 1;
        if (of == kind && MaySignal(view_, view_.tasks[t], end.event)) {
          found.suspects.push_back(t);
        }
      }
    }
    return found;
  }

  std::vector<int32_t> OwnersOf(const Diagnosis& found, int32_t rank) const {
    std::set<int32_t> owners;
    for (const int64_t task : found.suspects) {
      owners.insert(view_.tasks[task].rank);
    }
    owners.erase(rank);
    return {owners.begin(), owners.end()};
  }

  const ImageView& view_;
  const ImageHeader& header_;
  const int32_t first_;
  const std::vector<std::vector<CoreDiagnosis>>& cores_;
  std::vector<bool> ran_;
};

}  // namespace

std::optional<CoresEnd> DiagnoseCores(
    const ImageView& view, int32_t first,
    const std::vector<std::vector<CoreDiagnosis>>& cores) {
  const Ranks ranks(view, first, cores);
  if (auto end = ranks.MissingRank()) return end;
  if (auto end = ranks.BlockedTask()) return end;
  return ranks.OtherEnd();
}

End EndOf(const ImageView& view, int32_t rank,
          const std::vector<CoreDiagnosis>& cores) {
  const std::optional<CoresEnd> told = DiagnoseCores(view, rank, {cores});
  if (!told) return {};
  const Diagnosis& found = told->diagnosis;
  const bool waits = found.task >= 0;
  End end(HPMOE_NPUS_DEADLINE,
          (waits ? "rank " + std::to_string(rank) + ": " : "") + found.text,
          told->ranks);
  if (!waits) return end;
  end.task = static_cast<int32_t>(found.task);
  end.event = found.event;
  end.expected = found.expected;
  end.actual = found.actual;
  for (const int64_t task : found.suspects) {
    end.suspects[end.num_suspects++] = static_cast<int32_t>(task);
  }
  return end;
}

}  // namespace hpmoe
