// The twin's launches, for Python.

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "backend_ascend/device/standin/device_binding.h"
#include "backend_ascend/device/twin_launch/twin_launch.h"
#include "backend_ascend/host/binding.h"
#include "backend_ascend/host/launch/tensors_binding.h"

namespace hpmoe {
namespace {

using ascend_twin::CoreType;
using ascend_twin::Counts;
using ascend_twin::Error;

// In the order of ascend_twin's enums.
constexpr const char* kModes[] = {"in_order", "seeded", "late"};
constexpr const char* kMmadOrders[] = {"ascending", "blocks_of_16", "reversed",
                                       "even_odd"};
constexpr const char* kExpModes[] = {"nearest", "up", "down"};

template <class Enum, size_t kSize>
Enum Named(const char* what, const std::string& name,
           const char* const (&names)[kSize]) {
  std::string all;
  for (size_t i = 0; i < kSize; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
    all += (i == 0 ? "" : ", ") + std::string(names[i]);
  }
  Refuse(what, "one of " + all, "'" + name + "'");
}

ascend_twin::Rates RatesOf(const std::map<std::string, double>& numbers) {
  ascend_twin::Rates rates;
#define HPMOE_TWIN_RATE(name) rates.name = numbers.at(#name);
  HPMOE_TWIN_RATES(HPMOE_TWIN_RATE)
#undef HPMOE_TWIN_RATE
  return rates;
}

std::vector<std::string> RateNames() {
#define HPMOE_TWIN_RATE(name) #name,
  return {HPMOE_TWIN_RATES(HPMOE_TWIN_RATE)};
#undef HPMOE_TWIN_RATE
}

void InitOptions(TwinOptions* self, const std::string& mode, uint64_t seed,
                 bool hazards, const std::string& mmad_order,
                 const std::string& exp, bool flush_subnormals, bool saturate,
                 bool auto_sync, double deadline_s,
                 const std::optional<std::string>& fault, int64_t fault_task,
                 const std::optional<std::map<std::string, double>>& rates,
                 const std::string& vector, const std::string& cube) {
  if (!(deadline_s > 0 && deadline_s <= 1e6)) {
    Refuse("deadline_s", "seconds in (0, 1e6]", std::to_string(deadline_s));
  }
  TwinOptions options;
  options.mode = Named<ascend_twin::Mode>("mode", mode, kModes);
  options.seed = seed;
  options.hazards = hazards;
  options.auto_sync = auto_sync;
  options.numerics.mmad_order =
      Named<ascend_twin::MmadOrder>("mmad_order", mmad_order, kMmadOrders);
  options.numerics.exp = Named<ascend_twin::ExpMode>("exp", exp, kExpModes);
  options.numerics.flush_subnormals = flush_subnormals;
  options.numerics.saturate = saturate;
  options.deadline_us = static_cast<uint64_t>(deadline_s * 1e6);
  if (fault) options.fault = {FaultByName(fault->c_str()), fault_task};
  if (fault && options.fault.kind == FaultKind::kNone) {
    Refuse("fault", "a known fault", "'" + *fault + "'");
  }
  if (rates) options.rates = RatesOf(*rates);
  options.vector = vector;
  options.cube = cube;
  new (self) TwinOptions(options);
}

LoadedImage Load(const ConstArray& bytes) {
  LoadedImage image;
  const Status status = image.Load(bytes.data(), bytes.nbytes());
  if (status.code != 0) Check(status);
  return image;
}

using LaunchFunction = Status (*)(const ImageView&, const LaunchTensors&,
                                  const TwinOptions&, TwinReport*);

template <LaunchFunction kLaunch>
TwinReport LaunchPy(const ConstArray& bytes, const ConstArrays& inputs,
                    const Arrays& outputs, const TwinOptions& options) {
  // The engine runs one launch at a time.
  static std::mutex mutex;
  const LoadedImage image = Load(bytes);
  if (options.fault.task >= image.view().num_tasks) {
    Refuse("fault.task",
           "a task in [0, " + std::to_string(image.view().num_tasks) + ")",
           std::to_string(options.fault.task));
  }
  const LaunchTensors tensors =
      TensorsOf(image.header(), nullptr, inputs, outputs);
  TwinReport report;
  Status status;
  {
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex);
    status = kLaunch(image.view(), tensors, options, &report);
  }
  Check(status);
  return report;
}

using Row = std::vector<int64_t>;
constexpr size_t kCountColumns = 4 + 3 * ascend_twin::kNumPipes + 6;

int64_t NsOf(double seconds) { return std::llround(seconds * 1e9); }

Row RowOf(const Counts& counts) {
  const ascend_twin::CoreName& core = counts.core;
  Row row = {core.rank, core.type == CoreType::kAiv ? 1 : 0, core.index,
             counts.tag};
  row.insert(row.end(), std::begin(counts.instructions),
             std::end(counts.instructions));
  row.insert(row.end(), std::begin(counts.bytes), std::end(counts.bytes));
  for (const uint64_t each : {counts.cube_steps, counts.vector_steps,
                              counts.waits, counts.barriers, counts.polls}) {
    row.push_back(static_cast<int64_t>(each));
  }
  for (const double seconds : counts.busy) row.push_back(NsOf(seconds));
  row.push_back(NsOf(counts.ended));
  return row;
}

nb::ndarray<nb::numpy, int64_t> CountsOf(const TwinReport& report) {
  auto* const values = new Row;
  for (const Counts& each : report.counts) {
    const Row row = RowOf(each);
    values->insert(values->end(), row.begin(), row.end());
  }
  const nb::capsule owner(
      values, [](void* p) noexcept { delete static_cast<Row*>(p); });
  return {values->data(), {report.counts.size(), kCountColumns}, owner};
}

std::vector<int64_t> TasksOf(const Error& error) {
  std::vector<int64_t> tasks = {error.at.tag};
  for (const ascend_twin::Place& place : error.others) {
    tasks.push_back(place.tag);
  }
  return tasks;
}

void Bind(nb::module_& m) {
  nb::class_<TwinOptions>(m, "Options", "How a launch is to go.")
      .def("__init__", &InitOptions, nb::kw_only(), "mode"_a = "in_order",
           "seed"_a = 0, "hazards"_a = true, "mmad_order"_a = "ascending",
           "exp"_a = "nearest", "flush_subnormals"_a = false,
           "saturate"_a = false, "auto_sync"_a = false, "deadline_s"_a = 1.0,
           "fault"_a = nb::none(), "fault_task"_a = -1, "rates"_a = nb::none(),
           "vector"_a = "", "cube"_a = "",
           "As twin_runtime.Modes; deadline_s modelled.");
  nb::class_<Error>(m, "Error", "What the kernel did wrong.")
      .def_prop_ro("kind",
                   [](const Error& e) {
                     return std::string(ascend_twin::NameOf(e.kind));
                   })
      .def_prop_ro("tasks", &TasksOf,
                   "Of the place, then of the others; -1: none.")
      .def_prop_ro("line", [](const Error& e) { return e.at.site.line; })
      .def_prop_ro("file",
                   [](const Error& e) { return std::string(e.at.site.file); })
      .def_ro("text", &Error::text);
  nb::class_<TwinReport>(m, "Report", "How a launch went.")
      .def_ro("errors", &TwinReport::errors)
      .def_ro("cycles", &TwinReport::cycles)
      .def_ro("fault_changed", &TwinReport::fault_changed)
      .def("counts", &CountsOf,
           "`[n, 31]`: rank, unit, core, task; of each pipe of "
           "twin_runtime.PIPES\ninstructions, then bytes; cube steps, "
           "vector steps, waits, barriers, polls;\nns of each pipe, and from "
           "the start to its last instruction.")
      .def_prop_ro(
          "diagnosis",
          [](const TwinReport& r) -> nb::object {
            return r.diagnosis ? nb::cast(*r.diagnosis) : nb::none();
          },
          "Of _native: why cores gave up waiting; or None.");
  m.def("launch", &LaunchPy<LaunchTwin>, "image"_a, "inputs"_a, "outputs"_a,
        "options"_a, "Runs an image; outputs must be zeros.");
  m.def("launch_serial", &LaunchPy<LaunchTwinSerial>, "image"_a, "inputs"_a,
        "outputs"_a, "options"_a, "The same tasks, kind by kind.");
  m.def(
      "pipes",
      [] {
        std::vector<std::string> names;
        for (int p = 0; p < ascend_twin::kNumPipes; ++p) {
          names.emplace_back(
              ascend_twin::NameOf(static_cast<ascend_twin::Pipe>(p)));
        }
        return names;
      },
      "Names of the pipes, in order.");
  m.def("rates", &RateNames, "Figures that a core's times are made of.");
}

}  // namespace
}  // namespace hpmoe

NB_MODULE(_ascend_twin, m) {
  m.doc() = "Native part of backend_ascend.device.twin_launch.";
  nanobind::set_leak_warnings(false);
  hpmoe::Bind(m);
  hpmoe::BindDevice(m);
}
