#include <nanobind/stl/pair.h>

#include <algorithm>
#include <utility>

#include "backend_ascend/host/binding.h"
#include "backend_ascend/host/checks/launch_inspect.h"
#include "backend_ascend/host/launch/launch.h"
#include "backend_ascend/host/launch/tensors_binding.h"
#include "backend_ascend/host/tiles/finite.h"

namespace hpmoe {
namespace {

using Actions = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;

// LaunchOptions, and the arrays that its modes point into.
struct Options {
  LaunchOptions launch;
  std::optional<Actions> actions;  // [tasks] of Action
  Arrays captured;
  ConstArrays given;
};

// The tensors of the image's tasks in `arrays`, by BufferId.
template <class Array, class Pointer>
void FindWritten(const ImageHeader& header,
                 const std::map<std::string, Array>& arrays, Pointer* buffers) {
  for (int b = 0; b < kNumBuffers; ++b) {
    if (!IsWritten(header, b)) continue;
    const int64_t size = ShapeOf(header, static_cast<BufferId>(b)).bytes();
    buffers[b] = Find(arrays, ArrayName(header, b), size);
  }
}

// Gradients of weights that travel with their rows.
void FindWeights(const ImageHeader& header, const Arrays& captured,
                 Modes* modes) {
  if (!WeightsTravel(header)) return;
  const int64_t rows = int64_t{header.num_ranks} * header.num_rows * 4;
  modes->captured_row_weight =
      static_cast<float*>(Find(captured, "d_row_weight", rows));
  modes->captured_slot_weight = static_cast<float*>(
      Find(captured, "d_slot_weight", PlanBytes(header).by_slot));
}

// What a launch of `view` is asked for.
LaunchOptions OptionsFor(const ImageView& view, const Options& options) {
  LaunchOptions launch = options.launch;
  const int64_t tasks = view.num_tasks, faulty = launch.fault.task;
  if (launch.fault.kind != FaultKind::kNone &&
      (faulty < 0 || faulty >= tasks)) {
    Refuse("fault.task", "a task in [0, " + std::to_string(tasks) + ")",
           std::to_string(faulty));
  }
  if (!options.actions) return launch;
  Modes& modes = launch.modes;
  CheckBytes("actions", tasks, options.actions->nbytes());
  modes.actions = options.actions->data();
  uint8_t any = 0;
  for (int64_t t = 0; t < tasks; ++t) any |= modes.actions[t];
  if ((any & kActCapture) != 0) {
    FindWritten(*view.header, options.captured, modes.captured);
    FindWeights(*view.header, options.captured, &modes);
  }
  if ((any & kActHeal) != 0) {
    FindWritten(*view.header, options.given, modes.given);
  }
  return launch;
}

void InitOptions(Options* self, std::optional<int32_t> threads,
                 double deadline_s, const std::optional<std::string>& isa,
                 const std::optional<std::string>& fault, int64_t fault_task,
                 const std::optional<bool>& poison,
                 std::optional<uint64_t> permute, bool late_puts, bool races,
                 bool guards, bool trace, bool times,
                 const std::optional<Actions>& actions, const Arrays& captured,
                 const ConstArrays& given) {
  if (threads && (*threads < 1 || *threads > kMaxThreads)) {
    Refuse("threads", "1 to " + std::to_string(kMaxThreads),
           std::to_string(*threads));
  }
  if (!(deadline_s > 0 && deadline_s <= kMaxDeadlineS)) {
    Refuse("deadline_s", "seconds in (0, 1e9]", std::to_string(deadline_s));
  }
  FaultSpec spec = {FaultKind::kNone, -1};
  if (fault) spec = {FaultByName(fault->c_str()), fault_task};
  if (fault && spec.kind == FaultKind::kNone) {
    Refuse("fault", "a known fault", "'" + *fault + "'");
  }
  Modes modes;
  if (poison) {
    modes.start = *poison ? Modes::Start::kPoison : Modes::Start::kZeros;
  }
  modes.permute = permute.has_value();
  modes.seed = permute.value_or(0);
  modes.late_puts = late_puts;
  modes.races = races;
  modes.guards = guards;
  modes.trace = trace;
  modes.times = times;
  new (self) Options{{threads.value_or(0), deadline_s, IsaOf(isa), spec, modes},
                     actions,
                     captured,
                     given};
}

LaunchReport RunPy(Launch* self, const ConstArrays& inputs,
                   const Arrays& outputs, const Options& options,
                   const Routing* routing) {
  const LaunchTensors tensors =
      TensorsOf(self->image(), routing == nullptr ? nullptr : &routing->plan,
                inputs, outputs);
  const LaunchOptions launch = OptionsFor(self->view(), options);
  LaunchReport report;
  Status status;
  {
    const nb::gil_scoped_release release;
    status = self->Run(tensors, launch, &report);
  }
  Check(status);
  return report;
}

void LaunchSerialPy(const LoadedImage& image, const Routing& routing,
                    const ConstArrays& inputs, const Arrays& outputs,
                    const Options& options) {
  const LaunchTensors tensors =
      TensorsOf(image.header(), &routing.plan, inputs, outputs);
  const LaunchOptions launch = OptionsFor(image.view(), options);
  Status status;
  {
    const nb::gil_scoped_release release;
    status = LaunchSerial(image.view(), tensors, launch);
  }
  Check(status);
}

nb::bytes BytesOf(const std::vector<int32_t>& words) {
  return nb::bytes(reinterpret_cast<const char*>(words.data()),
                   words.size() * sizeof(int32_t));
}

// (rows of task, buffer, write, slab, row begin, row end, column begin, column
// end; rows of task, event), all i32.
std::pair<nb::bytes, nb::bytes> InspectPy(const LoadedImage& image,
                                          const Routing& routing) {
  Inspection found;
  Check(Inspect(image.view(), routing.plan, routing.topk_ids.data(), &found));
  std::vector<int32_t> accesses, signals;
  for (const TaskAccess& each : found.accesses) {
    const Access& a = each.access;
    accesses.insert(accesses.end(),
                    {each.task, a.buffer, a.write, a.slab, a.row_begin,
                     a.row_end, a.col_begin, a.col_end});
  }
  for (const TaskSignal& each : found.signals) {
    signals.insert(signals.end(), {each.task, each.event});
  }
  return {BytesOf(accesses), BytesOf(signals)};
}

int64_t FirstNonFinitePy(const ConstArray& array) {
  const DType dtype = StoredAs(array);
  if (dtype == kNumDTypes) Refuse("array", "a storage dtype", "another");
  nb::gil_scoped_release release;
  return FirstNonFinite(array.data(), dtype, array.size());
}

std::vector<std::string> FaultNames() {
  std::vector<std::string> names;
  for (int32_t i = 1; FaultName(FaultKind{i}) != nullptr; ++i) {
    names.emplace_back(FaultName(FaultKind{i}));
  }
  return names;
}

}  // namespace

void BindRuntime(nb::module_& m) {
  nb::class_<Diagnosis>(m, "Diagnosis", "Why a launch stopped.")
      .def_prop_ro(
          "reason",
          [](const Diagnosis& d) { return static_cast<int>(d.reason); })
      .def_ro("task", &Diagnosis::task)
      .def_ro("event", &Diagnosis::event)
      .def_ro("expected", &Diagnosis::expected)
      .def_ro("actual", &Diagnosis::actual)
      .def_ro("missing", &Diagnosis::missing)
      .def_ro("suspects", &Diagnosis::suspects)
      .def_ro("adders", &Diagnosis::adders)
      .def_ro("losers", &Diagnosis::losers)
      .def_ro("text", &Diagnosis::text);
  nb::class_<Race>(m, "Race", "Two accesses that nothing orders.")
      .def_ro("first", &Race::first)
      .def_ro("second", &Race::second)
      .def_prop_ro("kind",
                   [](const Race& r) { return static_cast<int>(r.kind); })
      .def_ro("buffer", &Race::buffer)
      .def_ro("rank", &Race::rank)
      .def_ro("row_begin", &Race::row_begin)
      .def_ro("row_end", &Race::row_end)
      .def_ro("col_begin", &Race::col_begin)
      .def_ro("col_end", &Race::col_end)
      .def_prop_ro("missing",
                   [](const Race& r) { return static_cast<int>(r.missing); })
      .def_ro("event", &Race::event)
      .def_ro("threshold", &Race::threshold)
      .def_ro("total", &Race::total);
  nb::class_<LaunchReport>(m, "LaunchReport", "How a launch went.")
      .def_ro("diagnosis", &LaunchReport::diagnosis)
      .def_ro("fault_changed", &LaunchReport::fault_changed)
      .def_prop_ro("num_races",
                   [](const LaunchReport& r) { return r.races.count; })
      .def_prop_ro("races", [](const LaunchReport& r) { return r.races.first; })
      .def_prop_ro("order",
                   [](const LaunchReport& r) {
                     return ViewOfVector(r.order, {r.order.size()});
                   })
      .def_prop_ro(
          "times",
          [](const LaunchReport& r) {
            const size_t shape[] = {r.times.size(),
                                    sizeof(TaskTime) / sizeof(int64_t)};
            return nb::ndarray<nb::numpy, const int64_t>(r.times.data(), 2,
                                                         shape, nb::handle());
          },
          "`[tasks, 4]`: blocked, start, end in ns, and the thread.");
  nb::class_<Options>(m, "LaunchOptions", "How a launch is to go.")
      .def("__init__", &InitOptions, nb::kw_only(), "threads"_a = nb::none(),
           "deadline_s"_a = LaunchOptions().deadline_s, "isa"_a = nb::none(),
           "fault"_a = nb::none(), "fault_task"_a = -1, "poison"_a = nb::none(),
           "permute"_a = nb::none(), "late_puts"_a = false, "races"_a = false,
           "guards"_a = false, "trace"_a = false, "times"_a = false,
           "actions"_a = nb::none(), "captured"_a = Arrays(),
           "given"_a = ConstArrays(),
           "threads: None for one per core.  isa: None for the best.\n"
           "poison: None to fill nothing.  The rest as modes.Modes;\n"
           "actions: `[tasks] u8`.");
  nb::class_<Launch>(m, "Launch", "An image that is launched often.")
      .def(
          "__init__",
          [](Launch* self, const LoadedImage& image) {
            new (self) Launch(image.view());
          },
          "image"_a, nb::keep_alive<1, 2>())
      .def("run", &RunPy, "inputs"_a, "outputs"_a, "options"_a,
           "routing"_a.none() = nb::none(),
           "Makes the tensors of `outputs`, no others.  Raises ValueError.")
      .def_prop_ro("arena_bytes", &Launch::arena_bytes,
                   "What it keeps between launches.");
  m.attr("MAX_THREADS") = kMaxThreads;
  m.attr("MAX_DEADLINE_S") = kMaxDeadlineS;
  m.def("launch_serial", &LaunchSerialPy, "image"_a, "routing"_a, "inputs"_a,
        "outputs"_a, "options"_a,
        "The same tasks on one thread, kind by kind.");
  m.def("inspect", &InspectPy, "image"_a, "routing"_a,
        "What tasks would access and signal; see runtime.inspect.");
  m.def("first_non_finite", &FirstNonFinitePy, "array"_a,
        "Index of the first value that is not finite, or -1.");
  m.def("fault_names", &FaultNames, "All faults, in order.");
}

}  // namespace hpmoe
