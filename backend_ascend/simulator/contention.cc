#include "backend_ascend/simulator/contention.h"

#include <algorithm>

namespace hpmoe::sim {

Contention::Contention(const Figures& figures, const FabricTables& fabric,
                       int32_t ranks, double link_share, bool sharing)
    : fabric_(fabric),
      ranks_(ranks),
      one_memory_(figures.threads > 0),
      sharing_(sharing),
      link_bytes_(fabric.capacity.size(), 0.0) {
  const double home =
      figures.aic_home > 0 ? figures.aic_home : figures.aiv_link;
  const double memory[kNumDemandClasses] = {
      figures.aic_read, figures.aiv_read + figures.aiv_write, figures.aiv_link,
      home};
  const double link[kNumDemandClasses] = {figures.aiv_link, figures.aiv_link,
                                          figures.aiv_link, home};
  const double trip[kNumDemandClasses] = {figures.put_trip, figures.put_trip,
                                          figures.put_trip, figures.home_trip};
  const bool ordered = figures.put_trip > 0 && figures.home_trip > 0;
  for (const double capacity : {figures.hbm, figures.l2}) {
    for (int32_t r = 0; r < ranks; ++r) {
      servers_.Add(FairShare(capacity, memory));
    }
  }
  for (const double capacity : fabric.capacity) {
    servers_.Add(
        FairShare(link_share * capacity, link, ordered ? trip : nullptr));
  }
  servers_.Open();
  lone_bytes_.assign(servers_.size(), 0.0);
}

uint32_t Contention::Enter(double now, uint32_t worker, const TaskDesc& task,
                           const Cost& cost, const std::vector<Sent>& sent,
                           double* end) {
  Entry entry = {now, worker, end, 0};
  const DemandClass of = task.unit == kAic ? kAicDemand : kAivDemand;
  const int32_t memory = MemoryOf(task.rank);
  Demand(memory, of, cost.missed + cost.written, &entry);
  Demand(ranks_ + memory, of, cost.read + cost.written, &entry);
  if (cost.linked > 0) Send(task, sent, &entry);
  return entry.entered;
}

// What ranks get in memory, and what passes each link once for all of them.
void Contention::Send(const TaskDesc& task, const std::vector<Sent>& sent,
                      Entry* entry) {
  const bool home = KindOf(task).form() != Form::kSlicePut;
  const DemandClass of = home ? kHomeDemand : kPutDemand;
  for (const Sent& to : sent) {
    if (to.rank == task.rank) continue;
    Demand(MemoryOf(to.rank), of, to.bytes, entry);
    const int64_t pair = int64_t{task.rank} * ranks_ + to.rank;
    for (int32_t i = fabric_.route_begin[pair];
         i < fabric_.route_begin[pair + 1]; ++i) {
      const int32_t link = fabric_.route_links[i];
      if (link_bytes_[link] == 0) used_links_.push_back(link);
      link_bytes_[link] += to.bytes * fabric_.factor[link];
    }
  }
  for (const int32_t link : used_links_) {
    Demand(2 * ranks_ + link, of, link_bytes_[link], entry);
    link_bytes_[link] = 0;
  }
  used_links_.clear();
}

void Contention::Demand(int32_t server, DemandClass of, double bytes,
                        Entry* entry) {
  if (bytes == 0) return;
  if (!sharing_) {
    lone_bytes_[server] += bytes;
    const double rate = servers_[server].discipline().LoneRate(of);
    *entry->end = std::max(*entry->end, entry->now + bytes / rate);
    return;
  }
  servers_.Enter(entry->now, server, of, bytes, entry->worker);
  ++entry->entered;
}

const std::vector<uint32_t>& Contention::Leave() {
  ended_.clear();
  servers_.Leave([&](uint32_t worker) { ended_.push_back(worker); });
  return ended_;
}

void Contention::Report(std::vector<Used>* hbm, std::vector<Used>* l2,
                        std::vector<Used>* links) const {
  for (size_t i = 0; i < servers_.size(); ++i) {
    const auto& server = servers_[i];
    const auto ranks = static_cast<size_t>(ranks_);
    std::vector<Used>* const to = i < ranks ? hbm : i < 2 * ranks ? l2 : links;
    to->push_back(
        sharing_ ? Used{server.offered(), server.busy()}
                 : Used{lone_bytes_[i], lone_bytes_[i] / server.capacity()});
  }
}

Status Contention::Conserves(double total) const {
  for (size_t i = 0; i < servers_.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    const bool memory = at < ranks_, link = at >= 2 * ranks_;
    const Status status = CheckAccount(servers_[i].account(), total,
                                       memory ? "memory of rank"
                                       : link ? "link"
                                              : "L2 of rank",
                                       memory ? at
                                       : link ? at - 2 * ranks_
                                              : at - ranks_);
    if (status.code != 0) return status;
  }
  return Status{};
}

}  // namespace hpmoe::sim
