// A flow over a fabric that computes, from Python.

#include <numeric>

#include "backend_ascend/host/binding.h"
#include "backend_ascend/simulator/flows/flow.h"

namespace hpmoe {
namespace {

// What the tables of a flow lie in.
using Held = std::vector<nb::object>;

template <class T>
void Take(const nb::dict& tables, const char* name, sim::Column<T>* to,
          Held* held) {
  using Array =
      nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  if (!tables.contains(name))
    Refuse("flow", std::string("a table ") + name, "none");
  const auto column = nb::cast<Array>(tables[name]);
  *to = {column.data(), column.size()};
  held->push_back(nb::cast(column));
}

sim::FlowTables TablesOf(int32_t ranks, const nb::dict& tables, Held* held) {
  sim::FlowTables flow;
  flow.ranks = ranks;
#define HPMOE_TAKE(type, name) Take(tables, #name, &flow.name, held);
  HPMOE_FLOW_TABLES(HPMOE_TAKE)
#undef HPMOE_TAKE
  return flow;
}

nb::dict SimulateFlow(int32_t ranks, const nb::dict& tables,
                      const std::map<std::string, double>& numbers) {
  Held held;
  const sim::FlowTables flow = TablesOf(ranks, tables, &held);
  const sim::Switch of = sim::SwitchOf(numbers);
  auto* const totals = new sim::FlowTotals;
  const nb::capsule owner(totals, [](void* p) noexcept {
    delete static_cast<sim::FlowTotals*>(p);
  });
  Status status;
  {
    const nb::gil_scoped_release release;
    status = sim::SimulateFlow(flow, of, totals);
  }
  Check(status);
  nb::dict told;
  told["total"] = totals->total;
#define HPMOE_TELL(type, name) \
  told[#name] = ViewOfVector(totals->name, {totals->name.size()}, owner);
  HPMOE_FLOW_TIMES(HPMOE_TELL)
#undef HPMOE_TELL
  nb::dict sessions;
#define HPMOE_TELL(type, name) sessions[#name] = totals->sessions.name;
  HPMOE_SESSIONS(HPMOE_TELL)
#undef HPMOE_TELL
  told["sessions"] = sessions;
  return told;
}

// Rows by parent, in their order: where each parent's begin, which row lies at
// each place, and at which place each row lies.
nb::tuple Grouped(const Ints& parent, int32_t rows) {
  auto* const found = new std::vector<int32_t>[3];
  const nb::capsule owner(found, [](void* p) noexcept {
    delete[] static_cast<std::vector<int32_t>*>(p);
  });
  const size_t size = parent.size();
  std::vector<int32_t>&begin = found[0], &order = found[1], &place = found[2];
  begin.assign(rows + 1, 0);
  order.resize(size);
  place.resize(size);
  for (size_t i = 0; i < size; ++i) {
    const int32_t of = parent.data()[i];
    if (of < 0 || of >= rows) {
      Refuse("flow", "a row of " + std::to_string(rows), std::to_string(of));
    }
    ++begin[of + 1];
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<int32_t> next = begin;
  for (size_t i = 0; i < size; ++i) {
    place[i] = next[parent.data()[i]]++;
    order[place[i]] = static_cast<int32_t>(i);
  }
  return nb::make_tuple(ViewOfVector(begin, {begin.size()}, owner),
                        ViewOfVector(order, {size}, owner),
                        ViewOfVector(place, {size}, owner));
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
  m.def("grouped", &Grouped, "parent"_a, "rows"_a,
        "Where each parent's rows begin, rows by place and places by row.");
  m.def("simulate_flow", &SimulateFlow, "ranks"_a, "tables"_a, "of"_a,
        "Times of tasks and messages, bytes of links.  Raises ValueError.");
}

}  // namespace hpmoe
