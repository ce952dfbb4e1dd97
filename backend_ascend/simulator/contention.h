// Memories and links: how tasks that run at once share the bandwidth of each,
// and which of them a task's bytes pass.

#ifndef BACKEND_ASCEND_SIMULATOR_CONTENTION_H_
#define BACKEND_ASCEND_SIMULATOR_CONTENTION_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/simulator/core/fair_share.h"
#include "backend_ascend/simulator/core/server.h"
#include "backend_ascend/simulator/cost.h"
#include "backend_ascend/simulator/figures.h"

namespace hpmoe::sim {

struct Used {
  double bytes, busy;  // B; s with a demand
};

class Contention {
 public:
  // `link_share`: of each link's capacity.  Without `sharing` each demand is
  // alone.  `fabric` must outlive this.
  Contention(const Figures& figures, const FabricTables& fabric, int32_t ranks,
             double link_share, bool sharing);

  // Enters what a task of a worker asks for, and what it sends.  Returns how
  // many demands Leave will end; `*end` is at least when those that are alone
  // end.
  uint32_t Enter(double now, uint32_t worker, const TaskDesc& task,
                 const Cost& cost, const std::vector<Sent>& sent, double* end);

  // When the first demand ends; kNoTime: there is none.
  double next() const { return servers_.next(); }
  // At that time: the workers of the demands that end.
  const std::vector<uint32_t>& Leave();

  void Report(std::vector<Used>* hbm, std::vector<Used>* l2,
              std::vector<Used>* links) const;
  // Refuses a server that lost bytes, made some, or was too fast.
  Status Conserves(double total) const;

 private:
  // Of a task's demands.
  struct Entry {
    double now;
    uint32_t worker;
    double* end;
    uint32_t entered;
  };

  void Demand(int32_t server, DemandClass of, double bytes, Entry* entry);
  void Send(const TaskDesc& task, const std::vector<Sent>& sent, Entry* entry);
  int32_t MemoryOf(int32_t rank) const { return one_memory_ ? 0 : rank; }

  const FabricTables& fabric_;
  const int32_t ranks_;
  const bool one_memory_, sharing_;
  Servers<FairShare> servers_;      // HBM [R], L2 [R], links
  std::vector<double> lone_bytes_;  // without sharing
  std::vector<double> link_bytes_;  // of one put, by link
  std::vector<int32_t> used_links_;
  std::vector<uint32_t> ended_;
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_CONTENTION_H_
