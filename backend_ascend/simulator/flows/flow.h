// A flow of tasks and messages in modelled time, over a fabric that may copy,
// merge, add and place what passes it.
//
// Tasks of a pool start in its order, each on the first free of its servers,
// which waits for the task's events.  A task takes its time, sends its messages
// and signals; one that holds ends when they have arrived, a part of a sum at a
// switch.  A message waits for the links of its way in turn, whole: what is
// small beside its way costs nothing.

#ifndef BACKEND_ASCEND_SIMULATOR_FLOWS_FLOW_H_
#define BACKEND_ASCEND_SIMULATOR_FLOWS_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/simulator/flows/fabric.h"
#include "backend_ascend/simulator/flows/sessions.h"

namespace hpmoe::sim {

// kPut: up once, down once to each peer.  kGet: a request to the one peer, its
// answer home.  kReduceGet: a request to each peer, each answer up, their sum
// home.  kReducePut: a part of a sum for the one peer.
enum MessageOp : int32_t { kPut, kGet, kReduceGet, kReducePut, kNumOps };

// An array of the caller's.
template <class T>
struct Column {
  const T* first = nullptr;
  size_t count = 0;

  const T* begin() const { return first; }
  const T* end() const { return first + count; }
  size_t size() const { return count; }
  const T& operator[](size_t i) const { return first[i]; }
};

// X(type, name): flat tables, which Python fills; what is CSR has one more
// `begin` than rows.  A region gives rows addresses as they come.
#define HPMOE_FLOW_TABLES(X)                                                   \
  X(double, up)             /* [R] B/s */                                      \
  X(double, down)           /* [R] B/s */                                      \
  X(double, pool_start)     /* s */                                            \
  X(int32_t, pool_servers)  /* at least 0 */                                   \
  X(int32_t, pool_begin)    /* of each pool */                                 \
  X(int32_t, pool_tasks)    /* in its order */                                 \
  X(double, own)            /* [tasks] s */                                    \
  X(int32_t, holds)         /* until all has arrived */                        \
  X(int32_t, wait_begin)    /* [tasks + 1] */                                  \
  X(int32_t, wait_event)    /* that it waits for */                            \
  X(int32_t, signal_begin)  /* [tasks + 1] */                                  \
  X(int32_t, signal_event)  /* that it adds to */                              \
  X(int32_t, signal_amount) /* what it adds */                                 \
  X(int32_t, message_begin) /* [tasks + 1] */                                  \
  X(int32_t, op)            /* [messages] */                                   \
  X(int32_t, rank)          /* that sends */                                   \
  X(int32_t, channel)       /* of links */                                     \
  X(int32_t, expected)      /* of its key */                                   \
  X(int32_t, amount)        /* that an arrival counts */                       \
  X(double, bytes)          /* to one peer */                                  \
  X(int64_t, key)           /* -1: no session */                               \
  X(int32_t, peer_begin)    /* [messages + 1] */                               \
  X(int32_t, peer)          /* rank */                                         \
  X(int32_t, ids)           /* of targets */                                   \
  X(int32_t, event)         /* of a get at home; -1: none, -2 - i: region i */ \
  X(int32_t, region_event)  /* of its first block */                           \
  X(int32_t, region_block)  /* rows */                                         \
  X(int32_t, region_rows)   /* that have room */                               \
  X(double, release)        /* [events] s from a threshold until work */       \
  X(int32_t, threshold)     /* [events] */

struct FlowTables {
  int32_t ranks = 0;
#define HPMOE_FIELD(type, name) Column<type> name;
  HPMOE_FLOW_TABLES(HPMOE_FIELD)
#undef HPMOE_FIELD
};

// X(type, name): what Python is told.
#define HPMOE_FLOW_TIMES(X)                                          \
  X(double, start)      /* [tasks] s */                              \
  X(double, end)        /* [tasks] s */                              \
  X(double, arrived)    /* [messages] s, the last of its arrivals */ \
  X(int32_t, row)       /* [peers] first row given, or -1 */         \
  X(double, up_bytes)   /* [R] */                                    \
  X(double, up_busy)    /* [R] s */                                  \
  X(double, down_bytes) /* [R] */                                    \
  X(double, down_busy)  /* [R] s */                                  \
  X(double, delivered)  /* [R] B of payload, once a part */

struct FlowTotals {
  double total = 0;
#define HPMOE_FIELD(type, name) std::vector<type> name;
  HPMOE_FLOW_TIMES(HPMOE_FIELD)
#undef HPMOE_FIELD
  SessionTotals sessions;
};

// Refuses tables that do not fit each other, and a flow that waits for ever.
Status SimulateFlow(const FlowTables& flow, const Switch& of,
                    FlowTotals* totals);

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_FLOWS_FLOW_H_
