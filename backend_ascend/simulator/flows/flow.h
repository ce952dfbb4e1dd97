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

#include "backend_ascend/kernels/host/load/image_loader.h"
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

// Flat tables; what is CSR has one more `begin` than rows.
struct FlowTables {
  int32_t ranks = 0;
  Column<double> up, down;  // [R] B/s
  // Pools.
  Column<double> pool_start;  // s
  Column<int32_t> pool_servers, pool_begin, pool_tasks;
  // Tasks.
  Column<double> own;  // s
  Column<int32_t> holds;
  Column<int32_t> wait_begin, wait_event;
  Column<int32_t> signal_begin, signal_event, signal_amount;
  Column<int32_t> message_begin;  // [tasks + 1]
  // Messages.
  Column<int32_t> op, rank, channel, expected, amount;
  Column<double> bytes;
  Column<int64_t> key;  // -1: no session
  Column<int32_t> peer_begin;
  // Of a message's peers: `event`, of a get at home, counts `amount`; -1: none,
  // -2 - i: region i takes `amount` rows.
  Column<int32_t> peer, ids, event;
  // Regions that give rows addresses as they come.
  Column<int32_t> region_event, region_block, region_rows;
  Column<double> release;     // [events] s from a threshold until work
  Column<int32_t> threshold;  // [events]
};

struct FlowTotals {
  double total = 0;
  std::vector<double> start, end;  // [tasks] s
  std::vector<double> arrived;     // [messages] s, the last of its arrivals
  std::vector<int32_t> row;        // [peers] first row given, or -1
  std::vector<double> up_bytes, up_busy, down_bytes, down_busy;  // [R]
  std::vector<double> delivered;  // [R] B of payload, once a part
  SessionTotals sessions;
};

// Refuses tables that do not fit each other, and a flow that waits for ever.
Status SimulateFlow(const FlowTables& flow, const Switch& of,
                    FlowTotals* totals);

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_FLOWS_FLOW_H_
