#include "backend_ascend/host/load/plan.h"

#include <algorithm>

namespace hpmoe {
namespace {

// The ranks whose ids are at hand.
struct Ranks {
  int32_t first, count;
};

Status CheckIds(const ImageHeader& image, const Ranks& ranks,
                const int32_t* topk_ids) {
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  for (int64_t i = 0; i < ranks.count * slots; ++i) {
    if (topk_ids[i] >= 0 && topk_ids[i] < image.num_experts) continue;
    return Refused(
        1,
        "topk_ids: expected ids in [0, %d), got %d at rank %d, token %d, "
        "slot %d",
        image.num_experts, topk_ids[i],
        static_cast<int>(ranks.first + i / slots),
        static_cast<int>(i % slots / image.top_k),
        static_cast<int>(i % image.top_k));
  }
  return Status{};
}

// A stable counting sort of each rank's slots by expert; of those that `taken`
// says.
template <class Taken>
void SortSlots(const ImageHeader& image, const Ranks& ranks,
               const int32_t* topk_ids, Taken taken, Slices* plan) {
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  const int64_t experts = image.num_experts;
  const auto slice = [&](int64_t i) {
    return (ranks.first + i / slots) * experts + topk_ids[i];
  };
  plan->counts.assign(image.num_ranks * experts, 0);
  for (int64_t i = 0; i < ranks.count * slots; ++i) {
    if (taken(i)) ++plan->counts[slice(i)];
  }
  plan->slice_begin.assign(plan->counts.size() + 1, 0);
  for (size_t s = 0; s < plan->counts.size(); ++s) {
    plan->slice_begin[s + 1] = plan->slice_begin[s] + plan->counts[s];
  }
  std::vector<int64_t> next(plan->slice_begin.begin(),
                            plan->slice_begin.end() - 1);
  plan->slice_slots.resize(plan->slice_begin.back());
  for (int64_t i = 0; i < ranks.count * slots; ++i) {
    if (!taken(i)) continue;
    plan->slice_slots[next[slice(i)]++] = static_cast<int32_t>(i % slots);
  }
}

// Those whose token has no lower expert on the same rank.
struct LowestOnRank {
  const int32_t* topk_ids;
  int32_t top_k, local;

  bool operator()(int64_t i) const {
    const int32_t* const ids = topk_ids + i / top_k * top_k;
    const int32_t expert = topk_ids[i];
    return std::none_of(ids, ids + top_k, [&](int32_t other) {
      return other < expert && other / local == expert / local;
    });
  }
};

Status CheckDistinct(const ImageHeader& image, const Plan& plan) {
  for (size_t s = 0; s < plan.counts.size(); ++s) {
    for (int64_t i = plan.slice_begin[s] + 1; i < plan.slice_begin[s + 1];
         ++i) {
      const int32_t token = plan.slice_slots[i] / image.top_k;
      if (token != plan.slice_slots[i - 1] / image.top_k) continue;
      return Refused(
          1,
          "topk_ids: expected distinct experts for a token, got expert %d "
          "twice at rank %d, token %d",
          static_cast<int>(s % image.num_experts),
          static_cast<int>(s / image.num_experts), token);
    }
  }
  return Status{};
}

// Packs the owners' rows: experts ascending, source ranks ascending within.
Status PlaceSlices(const ImageHeader& image, Slices* plan) {
  const int32_t experts = image.num_experts;
  const int32_t local = experts / image.num_ranks;
  plan->row_base.resize(plan->counts.size());
  plan->expert_rows.assign(experts, 0);
  plan->expert_base.assign(experts, 0);
  plan->rank_rows.assign(image.num_ranks, 0);
  // 64-bit sums: a refused routing may exceed what the outputs can hold.
  std::vector<int64_t> rank_rows(image.num_ranks, 0);
  for (int32_t e = 0; e < experts; ++e) {
    int64_t& held = rank_rows[e / local];
    const int64_t base = held;
    plan->expert_base[e] = static_cast<int32_t>(base);
    for (int32_t r = 0; r < image.num_ranks; ++r) {
      plan->row_base[int64_t{r} * experts + e] = static_cast<int32_t>(held);
      held += plan->counts[int64_t{r} * experts + e];
    }
    plan->expert_rows[e] = static_cast<int32_t>(held - base);
    if (held - base > image.expert_capacity) {
      return Refused(
          1,
          "topk_ids: expected at most expert_capacity=%d rows for expert %d, "
          "got %lld",
          image.expert_capacity, e, static_cast<long long>(held - base));
    }
    plan->rank_rows[e / local] = static_cast<int32_t>(held);
  }
  for (int32_t r = 0; r < image.num_ranks; ++r) {
    if (rank_rows[r] <= image.num_rows) continue;
    return Refused(
        1, "topk_ids: expected at most num_rows=%d rows on rank %d, got %lld",
        image.num_rows, r, static_cast<long long>(rank_rows[r]));
  }
  return Status{};
}

void PlaceSlots(const ImageHeader& image, const Ranks& ranks, Plan* plan) {
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  const int64_t experts = image.num_experts;
  plan->row_of_slot.resize(ranks.count * slots);
  for (int64_t i = 0; i < ranks.count * experts; ++i) {
    const int64_t s = ranks.first * experts + i;
    for (int32_t j = 0; j < plan->counts[s]; ++j) {
      const int32_t slot = plan->slice_slots[plan->slice_begin[s] + j];
      plan->row_of_slot[i / experts * slots + slot] = plan->row_base[s] + j;
    }
  }
}

// Where the copies of every relayed row go; PlaceSlots has been.
void PlaceCopies(const ImageHeader& image, const Ranks& ranks,
                 const int32_t* topk_ids, Plan* plan) {
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  const int32_t local = LocalExperts(image), copies = CopiesOf(image);
  plan->copy_rows.assign(plan->once.slice_slots.size() * copies, -1);
  plan->copy_slots.assign(plan->copy_rows.size(), -1);
  for (int64_t i = 0; i < int64_t{ranks.count} * image.num_experts; ++i) {
    const int64_t s = ranks.first * int64_t{image.num_experts} + i;
    const auto owner = static_cast<int32_t>(s % image.num_experts / local);
    const int64_t of_rank = i / image.num_experts * slots;
    for (int32_t j = 0; j < plan->once.counts[s]; ++j) {
      const int64_t at = plan->once.slice_begin[s] + j;
      const int32_t token = plan->once.slice_slots[at] / image.top_k;
      int64_t copy = at * copies;
      for (int32_t k = 0; k < image.top_k; ++k) {
        const int32_t slot = token * image.top_k + k;
        if (topk_ids[of_rank + slot] / local != owner) continue;
        plan->copy_rows[copy] = plan->row_of_slot[of_rank + slot];
        plan->copy_slots[copy++] = slot;
      }
    }
  }
}

// Checks the ids of the ranks, counts and sorts them.
Status Sort(const ImageHeader& image, const Ranks& ranks,
            const int32_t* topk_ids, Plan* plan) {
  if (ranks.first < 0 || ranks.first >= image.num_ranks) {
    return Refused(1, "rank: expected one in [0, %d), got %d", image.num_ranks,
                   ranks.first);
  }
  const Status status = CheckIds(image, ranks, topk_ids);
  if (status.code != 0) return status;
  SortSlots(image, ranks, topk_ids, [](int64_t) { return true; }, plan);
  if (image.relay != 0) {
    const LowestOnRank lowest = {topk_ids, image.top_k, LocalExperts(image)};
    SortSlots(image, ranks, topk_ids, lowest, &plan->once);
  }
  return CheckDistinct(image, *plan);
}

// Gives every row its address; `topk_ids` are the ranks'.
Status Place(const ImageHeader& image, const Ranks& ranks,
             const int32_t* topk_ids, Plan* plan) {
  Status status = PlaceSlices(image, plan);
  if (status.code != 0) return status;
  PlaceSlots(image, ranks, plan);
  if (image.relay == 0) return status;
  status = PlaceSlices(image, &plan->once);
  if (status.code != 0) return status;
  PlaceCopies(image, ranks, topk_ids, plan);
  return status;
}

Status Broken(const char* what, int32_t rank, int32_t expert) {
  Status status = Refused(
      1,
      "plan: expected every %s to be hit once, got another table for rank %d, "
      "expert %d",
      what, rank, expert);
  status.code = kBroken;
  return status;
}

bool HasSizes(const ImageHeader& image, const Slices& plan) {
  const size_t slices = size_t(image.num_ranks) * image.num_experts;
  return plan.counts.size() == slices && plan.row_base.size() == slices &&
         plan.slice_begin.size() == slices + 1 &&
         plan.rank_rows.size() == size_t(image.num_ranks) &&
         plan.expert_rows.size() == size_t(image.num_experts) &&
         plan.expert_base.size() == size_t(image.num_experts);
}

bool HasSizes(const ImageHeader& image, size_t ranks_held, const Plan& plan) {
  const size_t slots = ranks_held * image.num_tokens * image.top_k;
  const size_t copies = plan.once.slice_slots.size() * CopiesOf(image);
  return HasSizes(image, static_cast<const Slices&>(plan)) &&
         plan.slice_slots.size() == slots && plan.row_of_slot.size() == slots &&
         (image.relay == 0 ||
          (HasSizes(image, plan.once) && plan.copy_rows.size() == copies &&
           plan.copy_slots.size() == copies));
}

// Every valid row of every owner lies in one slice.
Status CheckRows(const ImageHeader& image, const Slices& plan) {
  const int32_t local = image.num_experts / image.num_ranks;
  std::vector<bool> hit(int64_t{image.num_ranks} * image.num_rows, false);
  std::vector<int64_t> left(plan.rank_rows.begin(), plan.rank_rows.end());
  for (size_t s = 0; s < plan.counts.size(); ++s) {
    const auto expert = static_cast<int32_t>(s % image.num_experts);
    const int32_t owner = expert / local;
    if (plan.counts[s] < 0) return Broken("row", owner, expert);
    for (int64_t i = 0; i < plan.counts[s]; ++i) {
      const int64_t row = plan.row_base[s] + i;
      const int64_t at = int64_t{owner} * image.num_rows + row;
      if (row < 0 || row >= plan.rank_rows[owner] ||
          plan.rank_rows[owner] > image.num_rows || hit[at]) {
        return Broken("row", owner, expert);
      }
      hit[at] = true;
      --left[owner];
    }
  }
  for (int32_t rank = 0; rank < image.num_ranks; ++rank) {
    if (left[rank] != 0) return Broken("row", rank, -1);
  }
  return Status{};
}

// Every slot of the ranks lies in one slice, that of its expert.
Status CheckSlots(const ImageHeader& image, const Ranks& ranks,
                  const int32_t* topk_ids, const Plan& plan) {
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  std::vector<bool> sent(ranks.count * slots, false);
  for (int64_t i = 0; i < int64_t{ranks.count} * image.num_experts; ++i) {
    const int64_t rank = i / image.num_experts;
    const auto expert = static_cast<int32_t>(i % image.num_experts);
    const int64_t slice = ranks.first * int64_t{image.num_experts} + i;
    for (int64_t j = 0; j < plan.counts[slice]; ++j) {
      const int64_t at = plan.slice_begin[slice] + j;
      const bool inside =
          at >= 0 && at < static_cast<int64_t>(plan.slice_slots.size());
      const int64_t slot = inside ? plan.slice_slots[at] : -1;
      if (slot < 0 || slot >= slots || sent[rank * slots + slot] ||
          topk_ids[rank * slots + slot] != expert) {
        return Broken("slot", static_cast<int32_t>(ranks.first + rank), expert);
      }
      sent[rank * slots + slot] = true;
    }
  }
  const auto unsent = std::find(sent.begin(), sent.end(), false);
  if (unsent == sent.end()) return Status{};
  return Broken("slot", static_cast<int32_t>((unsent - sent.begin()) / slots),
                -1);
}

// Every slot of the ranks is a copy of one relayed row of its token, that of
// its rank, and goes to its own row there.
Status CheckCopies(const ImageHeader& image, const Ranks& ranks,
                   const int32_t* topk_ids, const Plan& plan) {
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  const int32_t local = LocalExperts(image), copies = CopiesOf(image);
  std::vector<int32_t> rows(ranks.count * slots, -1);
  for (int64_t i = 0; i < ranks.count * slots; ++i) {
    const int64_t s =
        (ranks.first + i / slots) * image.num_experts + topk_ids[i];
    const int32_t* const begin = plan.slice_slots.data() + plan.slice_begin[s];
    const int32_t* const end = begin + plan.counts[s];
    const auto slot = static_cast<int32_t>(i % slots);
    const int32_t* const at = std::lower_bound(begin, end, slot);
    if (at != end && *at == slot) {
      rows[i] = plan.row_base[s] + static_cast<int32_t>(at - begin);
    }
  }
  for (int64_t i = 0; i < int64_t{ranks.count} * image.num_experts; ++i) {
    const int64_t rank = i / image.num_experts;
    const auto expert = static_cast<int32_t>(i % image.num_experts);
    const int64_t s = ranks.first * int64_t{image.num_experts} + i;
    const auto broken = [&] {
      return Broken("copy", static_cast<int32_t>(ranks.first + rank), expert);
    };
    for (int64_t j = 0; j < plan.once.counts[s]; ++j) {
      const int64_t at = plan.once.slice_begin[s] + j;
      if (at < 0 || at >= static_cast<int64_t>(plan.once.slice_slots.size())) {
        return broken();
      }
      const int32_t token = plan.once.slice_slots[at] / image.top_k;
      for (int64_t c = at * copies; c < (at + 1) * copies; ++c) {
        if (plan.copy_rows[c] < 0) continue;
        const int32_t slot = plan.copy_slots[c];
        if (slot < 0 || slot >= slots || slot / image.top_k != token) {
          return broken();
        }
        int32_t& row = rows[rank * slots + slot];
        if (row < 0 || row != plan.copy_rows[c] ||
            topk_ids[rank * slots + slot] / local != expert / local) {
          return broken();
        }
        row = -1;
      }
    }
  }
  const auto left = std::find_if(rows.begin(), rows.end(),
                                 [](int32_t row) { return row >= 0; });
  if (left == rows.end()) return Status{};
  return Broken(
      "copy", static_cast<int32_t>(ranks.first + (left - rows.begin()) / slots),
      -1);
}

// Every slot of every rank counts once, the rank's own as it counted them, and
// none is relayed twice.
Status CheckCounts(const ImageHeader& image, int32_t rank,
                   const int32_t* counts, const Plan& own) {
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  const int32_t experts = image.num_experts;
  for (int32_t r = 0; r < image.num_ranks; ++r) {
    const int32_t* const row = counts + r * CountsOf(image);
    const int64_t first = int64_t{r} * experts;
    int64_t sum = 0;
    bool valid = true;
    for (int32_t e = 0; e < experts; ++e) {
      sum += row[e];
      valid = valid && row[e] >= 0 &&
              (r != rank || row[e] == own.counts[first + e]);
      if (image.relay == 0) continue;
      const int32_t once = row[experts + e];
      valid = valid && once >= 0 && once <= row[e] &&
              (r != rank || once == own.once.counts[first + e]);
    }
    if (valid && sum == slots) continue;
    return Refused(
        1, "counts: expected the %lld slots of rank %d, got %lld others",
        static_cast<long long>(slots), r, static_cast<long long>(sum));
  }
  return Status{};
}

}  // namespace

Status MakePlan(const ImageHeader& image, const int32_t* topk_ids, Plan* plan) {
  const Ranks all = {0, image.num_ranks};
  Status status = Sort(image, all, topk_ids, plan);
  if (status.code != 0) return status;
  return Place(image, all, topk_ids, plan);
}

int64_t CountsOf(const ImageHeader& image) {
  return int64_t{image.num_experts} * (image.relay == 0 ? 1 : 2);
}

Status CheckPlan(const ImageHeader& image, int32_t first_rank,
                 int32_t ranks_held, const int32_t* topk_ids,
                 const Plan& plan) {
  if (!HasSizes(image, ranks_held, plan)) {
    return Refused(1, "plan: expected one of this image's sizes, got another");
  }
  const int32_t rows =
      *std::max_element(plan.expert_rows.begin(), plan.expert_rows.end());
  if (rows > image.expert_capacity) {
    return Refused(1, "plan: expected at most %d rows for an expert, got %d",
                   image.expert_capacity, rows);
  }
  Status status = CheckRows(image, plan);
  if (status.code != 0) return status;
  const Ranks held = {first_rank, ranks_held};
  status = CheckSlots(image, held, topk_ids, plan);
  if (status.code != 0 || image.relay == 0) return status;
  status = CheckRows(image, plan.once);
  if (status.code != 0) return status;
  return CheckCopies(image, held, topk_ids, plan);
}

Status CountSlots(const ImageHeader& image, int32_t rank,
                  const int32_t* topk_ids, int32_t* counts) {
  Plan plan;
  const Status status = Sort(image, {rank, 1}, topk_ids, &plan);
  if (status.code != 0) return status;
  const int64_t first = int64_t{rank} * image.num_experts;
  std::copy_n(plan.counts.begin() + first, image.num_experts, counts);
  if (image.relay == 0) return status;
  std::copy_n(plan.once.counts.begin() + first, image.num_experts,
              counts + image.num_experts);
  return status;
}

Status MakeRankPlan(const ImageHeader& image, int32_t rank,
                    const int32_t* topk_ids, const int32_t* counts,
                    Plan* plan) {
  const Ranks own = {rank, 1};
  Status status = Sort(image, own, topk_ids, plan);
  if (status.code != 0) return status;
  status = CheckCounts(image, rank, counts, *plan);
  if (status.code != 0) return status;
  const int32_t experts = image.num_experts;
  for (int64_t r = 0; r < image.num_ranks; ++r) {
    const int32_t* const row = counts + r * CountsOf(image);
    std::copy_n(row, experts, plan->counts.begin() + r * experts);
    if (image.relay == 0) continue;
    std::copy_n(row + experts, experts,
                plan->once.counts.begin() + r * experts);
  }
  return Place(image, own, topk_ids, plan);
}

}  // namespace hpmoe
