// An image in modelled time, from Python; and, for tests, one shared resource
// and one cache by themselves.

#include <algorithm>
#include <array>
#include <limits>

#include "backend_ascend/host/binding.h"
#include "backend_ascend/simulator/cache.h"
#include "backend_ascend/simulator/core/fair_share.h"
#include "backend_ascend/simulator/cost.h"
#include "backend_ascend/simulator/engine.h"

namespace hpmoe {
namespace {

using Doubles = nb::ndarray<double, nb::c_contig, nb::device::cpu>;
using Numbers = std::map<std::string, double>;

sim::Pricing PricingOf(double cube, double cube_depth,
                       const std::vector<double>& element_bytes,
                       const std::vector<bool>& skipped) {
  sim::Pricing pricing = {};
  pricing.cube = cube;
  pricing.cube_depth = cube_depth;
  std::copy_n(element_bytes.begin(), int{kNumBuffers}, pricing.element_bytes);
  std::copy_n(skipped.begin(), int{kNumTaskKinds}, pricing.skipped);
  return pricing;
}

// What a machine and a launch are, once for simulations and costs.
class Model {
 public:
  Model(const LoadedImage& image, const Ints& topk_ids, const Numbers& figures,
        std::vector<double> capacity, std::vector<double> factor,
        std::vector<int32_t> route_begin, std::vector<int32_t> route_links,
        std::vector<double> latency, double cube, double cube_depth,
        const std::vector<double>& element_bytes,
        const std::vector<bool>& skipped)
      : view_(image.view()),
        figures_(sim::FiguresOf(figures)),
        fabric_{std::move(capacity), std::move(factor), std::move(route_begin),
                std::move(route_links), std::move(latency)},
        pricing_(PricingOf(cube, cube_depth, element_bytes, skipped)) {
    const ImageHeader& h = image.header();
    CheckBytes("topk_ids", int64_t{h.num_ranks} * h.num_tokens * h.top_k * 4,
               topk_ids.nbytes());
    Check(MakePlan(h, topk_ids.data(), &plan_));
    launch_ = sim::MakeLaunch(view_, plan_);
  }
  Model(const Model&) = delete;

  // `into`: sim::TaskTime of each task, `[tasks, 8]`.
  nb::dict Simulate(const Doubles& into, bool barriers, bool sharing) const {
    CheckBytes("into", int64_t{sizeof(sim::TaskTime)} * view_.num_tasks,
               into.nbytes());
    auto* const times = reinterpret_cast<sim::TaskTime*>(into.data());
    sim::SimTotals totals;
    Status status;
    {
      const nb::gil_scoped_release release;
      status = sim::Simulate(launch_, figures_, fabric_, pricing_,
                             {barriers, sharing}, times, &totals);
    }
    Check(status);
    nb::dict told;
    told["total"] = totals.total;
    told["busy"] = totals.busy;
    told["hbm"] = Pairs(totals.hbm);
    told["l2"] = Pairs(totals.l2);
    told["links"] = Pairs(totals.links);
    return told;
  }

  // `into`: sim::Cost of each task, `[tasks, 7]`, as they are numbered, were L2
  // endless.  Returns each link's bytes, and those that arrive at each rank.
  nb::dict Costs(const Doubles& into) const {
    CheckBytes("into", int64_t{sizeof(sim::Cost)} * view_.num_tasks,
               into.nbytes());
    auto* const costs = reinterpret_cast<sim::Cost*>(into.data());
    const int64_t ranks = view_.header->num_ranks;
    std::vector<double> links(fabric_.capacity.size(), 0.0);
    std::vector<double> arrives(ranks, 0.0);
    {
      const nb::gil_scoped_release release;
      sim::CostModel model(launch_, figures_, fabric_, pricing_,
                           std::numeric_limits<double>::infinity());
      for (int32_t t = 0; t < view_.num_tasks; ++t) {
        const TaskDesc& task = view_.tasks[t];
        costs[t] = model.Of(task);
        for (const sim::Sent& sent : model.sent()) {
          if (sent.rank == task.rank) continue;
          arrives[sent.rank] += sent.bytes;
          const int64_t pair = task.rank * ranks + sent.rank;
          for (int32_t i = fabric_.route_begin[pair];
               i < fabric_.route_begin[pair + 1]; ++i) {
            const int32_t link = fabric_.route_links[i];
            links[link] += sent.bytes * fabric_.factor[link];
          }
        }
      }
    }
    nb::dict told;
    told["links"] = links;
    told["arrives"] = arrives;
    return told;
  }

 private:
  static nb::list Pairs(const std::vector<sim::Used>& used) {
    nb::list pairs;
    for (const sim::Used& u : used)
      pairs.append(nb::make_tuple(u.bytes, u.busy));
    return pairs;
  }

  const ImageView view_;
  const sim::Figures figures_;
  const sim::FabricTables fabric_;
  const sim::Pricing pricing_;
  Plan plan_;
  sim::Launch launch_;
};

std::map<std::string, std::string> FigureUnits() {
  std::map<std::string, std::string> units;
#define HPMOE_FIGURE(name, unit) units[#name] = unit;
  HPMOE_FIGURES(HPMOE_FIGURE)
#undef HPMOE_FIGURE
  return units;
}

using Caps = std::array<double, sim::kNumDemandClasses>;

// When each demand ends.  `times` ascend; without `trips` no order is kept.
std::vector<double> FluidEnds(double capacity, const std::vector<double>& caps,
                              const std::vector<double>& trips,
                              const std::vector<double>& times,
                              const std::vector<int32_t>& classes,
                              const std::vector<double>& bytes) {
  Caps of{}, trip{};
  std::copy_n(caps.begin(), of.size(), of.begin());
  if (!trips.empty()) std::copy_n(trips.begin(), trip.size(), trip.begin());
  sim::Server<sim::FairShare> server(sim::FairShare(
      capacity, of.data(), trips.empty() ? nullptr : trip.data()));
  std::vector<double> ends(times.size());
  size_t next = 0;
  double total = 0;
  while (next < times.size() || server.next() != sim::kNoTime) {
    if (next < times.size() && times[next] < server.next()) {
      server.Enter(times[next], classes[next], bytes[next],
                   static_cast<uint32_t>(next));
      ++next;
      continue;
    }
    const double now = server.next();
    server.Leave([&](uint32_t demand) { ends[demand] = now; });
    total = now;
  }
  Check(sim::CheckAccount(server.account(), total, "server", 0));
  return ends;
}

// Which of the touches of parts of a cache, each of `bytes[part]`, miss.
std::vector<bool> CacheMisses(double l2_bytes, const std::vector<double>& bytes,
                              const std::vector<int32_t>& touched) {
  sim::Clock clock(l2_bytes);
  std::vector<double> last(bytes.size(), sim::Clock::kNever);
  std::vector<bool> misses;
  for (const int32_t part : touched) {
    misses.push_back(clock.Touch(bytes[part], &last[part]));
    clock.Tick();
  }
  return misses;
}

// What the end of a run says of a server.
void CheckServer(double offered, double served, double busy, double capacity,
                 int entered, int left, double total) {
  const sim::Account account = {offered,
                                served,
                                busy,
                                capacity,
                                static_cast<uint64_t>(entered),
                                static_cast<uint64_t>(left),
                                1};
  Check(sim::CheckAccount(account, total, "server", 3));
}

// What the end of a run says of tasks that began (t) and ended (-1 - t).
void CheckTasks(int tasks, const std::vector<int32_t>& moves) {
  sim::Ledger ledger(static_cast<size_t>(tasks));
  for (const int32_t move : moves) {
    const int32_t task = move < 0 ? -1 - move : move;
    if (task >= tasks) throw nb::value_error("moves: expected tasks");
    move < 0 ? ledger.End(static_cast<uint32_t>(task))
             : ledger.Begin(static_cast<uint32_t>(task));
  }
  Check(ledger.Conserves());
}

}  // namespace

void BindSimulator(nb::module_& m) {
  m.def("figure_units", &FigureUnits,
        "The figures of a machine that the engine knows, and their units.");
  nb::class_<Model>(m, "SimModel", "An image, a routing and a machine.")
      .def(nb::init<const LoadedImage&, const Ints&, const Numbers&,
                    std::vector<double>, std::vector<double>,
                    std::vector<int32_t>, std::vector<int32_t>,
                    std::vector<double>, double, double,
                    const std::vector<double>&, const std::vector<bool>&>(),
           "image"_a, "topk_ids"_a, "figures"_a, "capacity"_a, "factor"_a,
           "route_begin"_a, "route_links"_a, "latency"_a, "cube"_a,
           "cube_depth"_a, "element_bytes"_a, "skipped"_a,
           nb::keep_alive<1, 2>())
      .def("simulate", &Model::Simulate, "into"_a, nb::kw_only(), "barriers"_a,
           "sharing"_a,
           "Fills a float64 array `[tasks, 8]`; returns totals.  Raises\n"
           "ValueError.")
      .def("costs", &Model::Costs, "into"_a,
           "Fills a float64 array `[tasks, 7]`; returns bytes of links.");
  m.def("fluid_ends", &FluidEnds, "capacity"_a, "caps"_a, "trips"_a, "times"_a,
        "classes"_a, "bytes"_a,
        "When each demand on one shared resource ends; `times` ascend.");
  m.def("check_server", &CheckServer, nb::kw_only(), "offered"_a, "served"_a,
        "busy"_a, "capacity"_a, "entered"_a, "left"_a, "total"_a,
        "Raises ValueError where server 3 did not serve what it was offered.");
  m.def("check_tasks", &CheckTasks, "tasks"_a, "moves"_a,
        "Raises ValueError where a task did not begin (t) and end (-1 - t)\n"
        "once.");
  m.def("cache_misses", &CacheMisses, "l2_bytes"_a, "bytes"_a, "touched"_a,
        "Which touches of a cache's parts miss; `bytes` are of each part.");
}

}  // namespace hpmoe
