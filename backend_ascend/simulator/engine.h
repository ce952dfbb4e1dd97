// Executes an image in modelled time: the third platform of worker.h.
//
// Each worker walks its queue through Fetch and Finish, and signals through
// SignalTask, as on host and device.  Where those do a task's work, the engine
// lets time pass: the task ends when its core has had its own time and all that
// it moves has flowed through memories and links, and its fixed time after.

#ifndef BACKEND_ASCEND_SIMULATOR_ENGINE_H_
#define BACKEND_ASCEND_SIMULATOR_ENGINE_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/simulator/contention.h"
#include "backend_ascend/simulator/cost.h"
#include "backend_ascend/simulator/figures.h"

namespace hpmoe::sim {

struct SimOptions {
  bool barriers = false;  // operator by operator
  bool sharing = true;    // false: each demand as if it were alone, and
                          // caches as the tasks are numbered
};

// Of a task, in one line of a processor's cache: tasks come in no order.
struct TaskTime {
  double start;       // s, when its core begins it
  double end;         // s, when it signals
  double waited;      // s that its core stood blocked before it
  double hbm_bytes;   // of its rank
  double l2_bytes;    // of its rank
  double link_bytes;  // payload to other ranks
  double thread;      // that ran it; -1: its own core
  double padding;
};
static_assert(sizeof(TaskTime) == 64, "TaskTime is 64 bytes");

struct SimTotals {
  double total = 0;           // s, the last end
  std::vector<double> busy;   // [queues] s
  std::vector<Used> hbm, l2;  // [R]
  std::vector<Used> links;    // [links]
};

// Fills `times`, `[tasks]`.  Refuses a flow that blocks for ever, by its first
// blocked task.
Status Simulate(const Launch& launch, const Figures& figures,
                const FabricTables& fabric, const Pricing& pricing,
                const SimOptions& options, TaskTime* times, SimTotals* totals);

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_ENGINE_H_
