// How long a layer takes under a schedule, by formula: a pipeline of stages.
//
// A stage is one kind of task on one part of one local expert, of the rank that
// has the most rows.  Stages take the rank's pools of cores in the order of the
// schedule; a stage starts when its pool is free and what it reads is there.
// What the simulator has and this has not: single tasks, caches, relay, ranks
// that differ, and memories that several units share at a time.

#ifndef BACKEND_ASCEND_COMPILER_ORDERS_MODEL_H_
#define BACKEND_ASCEND_COMPILER_ORDERS_MODEL_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/image/image.h"
#include "backend_ascend/simulator/figures.h"

namespace hpmoe::schedule {

// What a schedule says, one column of the points each; Python reads the names.
#define HPMOE_POINT(X)                                        \
  X(by_row)    /* 1: events are row blocks; 0: experts */     \
  X(row_block) /* as flow.Options */                          \
  X(col_block)                                                \
  X(put_rows)                                                 \
  X(token_block)                                              \
  X(vector_rows)                                              \
  X(chain_rows)                                               \
  X(weight_rows)                                              \
  X(expert_capacity)                                          \
  X(num_aic)                                                  \
  X(num_aiv)                                                  \
  X(put_aiv) /* AIVs that only do puts; 0: all do all */      \
  X(swizzle) /* as flow.Order; numbers of experts for None */ \
  X(lead)    /* this and the three below as Rules */          \
  X(lag)                                                      \
  X(weight_lag)                                               \
  X(gate_weight_lag)                                          \
  X(row_order)    /* 0 ascending, 1 rotated, 2 interleaved */ \
  X(expert_order) /* 0 ascending, 1 descending, 2 rotated */

struct Point {
#define HPMOE_COLUMN(name) double name;
  HPMOE_POINT(HPMOE_COLUMN)
#undef HPMOE_COLUMN
};

// A routing, as the busiest rank sees it; by local expert.
struct Routing {
  int32_t rank;              // the busiest
  std::vector<double> rows;  // that it receives
  std::vector<double> sent;  // rows that the busiest sender sends
  double remote;             // share of rows that leave their rank
  double latency;            // s of its longest route
  std::vector<double> dispatch_s, return_s;  // s a byte of each row, on links
};

struct Elements {
  double bytes;       // of one that is stored
  double cube;        // flop/s of one AIC
  double cube_depth;  // elements of one step of the depth
};

// `seconds`: [points] of the pass that `header` names, from its sizes, policy
// and direction alone.
void Predict(const ImageHeader& header, const sim::Figures& figures,
             const Elements& elements, const Routing& routing,
             const Point* points, int64_t num_points, double* seconds);

// `seconds`: [points] that the engine takes at least, whatever the order.
// The busiest rank's tasks take the time of their own cores as the engine
// prices it, were nothing shared, and its cores of a unit are all busy to the
// end.  Sharing, waits, caches, latencies and signals only add to that.  It
// holds for rows that are stored as the policy says and are not relayed.
void Floor(const ImageHeader& header, const sim::Figures& figures,
           const Elements& elements, const Routing& routing,
           const Point* points, int64_t num_points, double* seconds);

}  // namespace hpmoe::schedule

#endif  // BACKEND_ASCEND_COMPILER_ORDERS_MODEL_H_
