// The analytical model and the list scheduler, from Python.

#include "backend_ascend/compiler/orders/list_schedule.h"
#include "backend_ascend/compiler/orders/model.h"
#include "backend_ascend/compiler/orders/positions.h"
#include "backend_ascend/host/binding.h"

namespace hpmoe {
namespace {

using Doubles = nb::ndarray<double, nb::c_contig, nb::device::cpu>;
using Numbers = std::map<std::string, double>;

std::vector<std::string> Columns() {
  std::vector<std::string> names;
#define HPMOE_COLUMN(name) names.push_back(#name);
  HPMOE_POINT(HPMOE_COLUMN)
#undef HPMOE_COLUMN
  return names;
}

ImageHeader HeaderOf(const Numbers& layer) {
  const auto number = [&](const char* name) {
    return static_cast<int32_t>(layer.at(name));
  };
  ImageHeader h = {};
  h.direction = number("direction");
  h.num_ranks = number("num_ranks");
  h.num_tokens = number("num_tokens");
  h.num_experts = number("num_experts");
  h.top_k = number("top_k");
  h.d_model = number("d_model");
  h.d_ff = number("d_ff");
  h.placement = number("placement");
  h.chain_rows = h.expert_capacity = 1;
  return h;
}

// `kModel`: `schedule::Predict` or `schedule::Floor`.
template <auto kModel>
void Model(const Numbers& layer, const Numbers& figures,
           const Numbers& elements, double latency, int32_t rank,
           std::vector<double> rows, std::vector<double> sent, double remote,
           std::vector<double> dispatch_s, std::vector<double> return_s,
           const Doubles& points, const Doubles& seconds) {
  const ImageHeader header = HeaderOf(layer);
  const sim::Figures machine = sim::FiguresOf(figures);
  const schedule::Routing routing = {
      rank,    std::move(rows),       std::move(sent),    remote,
      latency, std::move(dispatch_s), std::move(return_s)};
  const int64_t n = static_cast<int64_t>(seconds.size());
  CheckBytes("points", n * static_cast<int64_t>(sizeof(schedule::Point)),
             points.nbytes());
  const nb::gil_scoped_release release;
  kModel(header, machine,
         {elements.at("bytes"), elements.at("cube"), elements.at("cube_depth")},
         routing, reinterpret_cast<const schedule::Point*>(points.data()), n,
         seconds.data());
}

using Times = nb::ndarray<const double, nb::c_contig, nb::device::cpu>;
void Positions(const Numbers& rules, int32_t experts, const Ints& kind,
               const Times& place, const Times& part, const Doubles& at) {
  const auto n = static_cast<int64_t>(at.size());
  CheckBytes("kind", 4 * n, kind.nbytes());
  CheckBytes("place", 8 * n, place.nbytes());
  CheckBytes("part", 8 * n, part.nbytes());
  const schedule::Rules of = {rules.at("lead"), rules.at("lag"),
                              rules.at("weight_lag"),
                              rules.at("gate_weight_lag")};
  for (int64_t i = 0; i < n; ++i) {
    at.data()[i] = schedule::Position(of, experts, kind.data()[i],
                                      place.data()[i], part.data()[i]);
  }
}

using Places = nb::ndarray<int64_t, nb::c_contig, nb::device::cpu>;

int64_t ListSchedule(const LoadedImage& image, const Times& seconds,
                     const Ints& pool, const Ints& first, const Ints& cores,
                     const Ints& sequence, const Places& core,
                     const Places& order) {
  const ImageView view = image.view();
  CheckBytes("seconds", int64_t{8} * view.num_tasks, seconds.nbytes());
  CheckBytes("core", int64_t{8} * view.num_tasks, core.nbytes());
  CheckBytes("order", int64_t{8} * view.num_tasks, order.nbytes());
  CheckBytes("pool", int64_t{4} * view.num_tasks, pool.nbytes());
  CheckBytes("sequence", int64_t{4} * view.num_tasks, sequence.nbytes());
  CheckBytes("cores", static_cast<int64_t>(first.nbytes()), cores.nbytes());
  const nb::gil_scoped_release release;
  return schedule::ListSchedule(
      view,
      {seconds.data(), pool.data(), first.data(), cores.data(),
       static_cast<int64_t>(first.size()), sequence.data()},
      core.data(), order.data());
}

}  // namespace

void BindSchedule(nb::module_& m) {
  m.def("schedule_columns", &Columns,
        "What the analytical model knows of a schedule, in order.");
  const auto define = [&](const char* name, auto* model, const char* doc) {
    m.def(name, model, "layer"_a, "figures"_a, "elements"_a, "latency"_a,
          "rank"_a, "rows"_a, "sent"_a, "remote"_a, "dispatch_s"_a,
          "return_s"_a, "points"_a, "seconds"_a, doc);
  };
  define("schedule_predict", &Model<&schedule::Predict>,
         "Fills `[points]` float64 with the modelled time of a pass.");
  define("schedule_floor", &Model<&schedule::Floor>,
         "Fills `[points]` float64 with a time that the engine never ends "
         "before.");
  m.def("schedule_positions", &Positions, "rules"_a, "experts"_a, "kind"_a,
        "place"_a, "part"_a, "at"_a,
        "Fills `[tasks]` float64 with places in an order, in experts.");
  m.def("list_schedule", &ListSchedule, "image"_a, "seconds"_a, "pool"_a,
        "first"_a, "cores"_a, "sequence"_a, "core"_a, "order"_a,
        "Fills int64 `[tasks]` core and order; returns how many it placed.");
}

}  // namespace hpmoe
