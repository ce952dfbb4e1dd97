// A flow over a fabric that computes, from Python.

#include "backend_ascend/kernels/host/binding.h"
#include "backend_ascend/simulator/flows/flow.h"

namespace hpmoe {
namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
void Take(const nb::dict& tables, const char* name, std::vector<T>* to) {
  if (!tables.contains(name))
    Refuse("flow", std::string("a table ") + name, "none");
  const auto column = nb::cast<Column<T>>(tables[name]);
  to->assign(column.data(), column.data() + column.size());
}

sim::FlowTables TablesOf(int32_t ranks, const nb::dict& tables) {
  sim::FlowTables flow;
  flow.ranks = ranks;
#define HPMOE_TAKE(name) Take(tables, #name, &flow.name);
  HPMOE_TAKE(pool_servers)
  HPMOE_TAKE(pool_begin)
  HPMOE_TAKE(pool_tasks)
  HPMOE_TAKE(holds)
  HPMOE_TAKE(wait_begin)
  HPMOE_TAKE(wait_event)
  HPMOE_TAKE(signal_begin)
  HPMOE_TAKE(signal_event)
  HPMOE_TAKE(signal_amount)
  HPMOE_TAKE(message_begin)
  HPMOE_TAKE(op)
  HPMOE_TAKE(rank)
  HPMOE_TAKE(channel)
  HPMOE_TAKE(expected)
  HPMOE_TAKE(amount)
  HPMOE_TAKE(peer_begin)
  HPMOE_TAKE(peer)
  HPMOE_TAKE(ids)
  HPMOE_TAKE(event)
  HPMOE_TAKE(region_event)
  HPMOE_TAKE(region_block)
  HPMOE_TAKE(region_rows)
  HPMOE_TAKE(threshold)
  HPMOE_TAKE(up)
  HPMOE_TAKE(down)
  HPMOE_TAKE(pool_start)
  HPMOE_TAKE(release)
  HPMOE_TAKE(own)
  HPMOE_TAKE(bytes)
  HPMOE_TAKE(key)
#undef HPMOE_TAKE
  return flow;
}

nb::dict SimulateFlow(int32_t ranks, const nb::dict& tables,
                      const std::map<std::string, double>& numbers) {
  const sim::FlowTables flow = TablesOf(ranks, tables);
  const sim::Switch of = sim::SwitchOf(numbers);
  sim::FlowTotals totals;
  Status status;
  {
    const nb::gil_scoped_release release;
    status = sim::SimulateFlow(flow, of, &totals);
  }
  Check(status);
  nb::dict told;
#define HPMOE_TELL(name) told[#name] = totals.name;
  HPMOE_TELL(total)
  HPMOE_TELL(start)
  HPMOE_TELL(end)
  HPMOE_TELL(arrived)
  HPMOE_TELL(row)
  HPMOE_TELL(up_bytes)
  HPMOE_TELL(up_busy)
  HPMOE_TELL(down_bytes)
  HPMOE_TELL(down_busy)
  HPMOE_TELL(delivered)
#undef HPMOE_TELL
#define HPMOE_TELL(name) told[#name] = totals.sessions.name;
  HPMOE_TELL(peak)
  HPMOE_TELL(residence)
  HPMOE_TELL(sessions)
  HPMOE_TELL(merged)
  HPMOE_TELL(evicted)
  HPMOE_TELL(timed_out)
  HPMOE_TELL(bypassed)
#undef HPMOE_TELL
  return told;
}

std::map<std::string, std::string> SwitchUnits() {
  std::map<std::string, std::string> units;
#define HPMOE_FIELD(name, unit) units[#name] = unit;
  HPMOE_SWITCH(HPMOE_FIELD)
#undef HPMOE_FIELD
  return units;
}

}  // namespace

void BindFlows(nb::module_& m) {
  m.def("switch_units", &SwitchUnits,
        "What a switch is described by, and the units.");
  m.def("simulate_flow", &SimulateFlow, "ranks"_a, "tables"_a, "of"_a,
        "Times of tasks and messages, bytes of links.  Raises ValueError.");
}

}  // namespace hpmoe
