#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "backend_ascend/kernels/host/checks/launch_inspect.h"
#include "backend_ascend/kernels/host/launch/binding.h"
#include "backend_ascend/kernels/host/launch/launch.h"
#include "backend_ascend/kernels/host/tiles/finite.h"

namespace hpmoe {
namespace {

struct PlanBytes {
  int64_t by_expert, by_slot;  // of [R, E] and [R, T, K], four bytes each
  explicit PlanBytes(const ImageHeader& h)
      : by_expert(int64_t{h.num_ranks} * h.num_experts * 4),
        by_slot(int64_t{h.num_ranks} * h.num_tokens * h.top_k * 4) {}
};

LaunchTensors Tensors(const ImageHeader& header, const Plan* plan,
                      const ConstArrays& inputs, const Arrays& outputs) {
  const PlanBytes bytes(header);
  const auto ints = [&](const char* name, int64_t size) {
    return static_cast<int32_t*>(Find(outputs, name, size));
  };
  LaunchTensors tensors{};
  tensors.plan = plan;
  tensors.topk_ids =
      static_cast<const int32_t*>(Find(inputs, "topk_ids", bytes.by_slot));
  tensors.topk_weights =
      static_cast<const float*>(Find(inputs, "topk_weights", bytes.by_slot));
  tensors.counts = ints("counts", bytes.by_expert);
  tensors.row_base = ints("row_base", bytes.by_expert);
  tensors.row_of_slot = ints("row_of_slot", bytes.by_slot);
  for (int b = 0; b < kNumBuffers; ++b) {
    const BufferInfo& info = kBuffers[b];
    const Use use = UseOf(header, b);
    const int64_t size = ShapeOf(header, static_cast<BufferId>(b)).bytes();
    if (use == Use::kInput) {
      // Tasks only read it.
      tensors.buffers[b] = const_cast<void*>(Find(inputs, info.name, size));
    } else if (use == Use::kWritten) {
      tensors.buffers[b] = Find(outputs, info.name, size);
    }
  }
  return tensors;
}

FaultSpec Fault(const ImageView& view, const std::string& name, int64_t task) {
  if (name.empty()) return {FaultKind::kNone, -1};
  const FaultKind kind = FaultByName(name.c_str());
  if (kind == FaultKind::kNone) {
    Refuse("fault: expected a known fault, got '" + name + "'");
  }
  if (task < 0 || task >= view.num_tasks) {
    Refuse("fault.task: expected a task in [0, " +
           std::to_string(view.num_tasks) + "), got " + std::to_string(task));
  }
  return {kind, task};
}

// The tensors of the image's tasks in `arrays`, by BufferId.
template <class Array, class Pointer>
void FindWritten(const ImageHeader& header,
                 const std::map<std::string, Array>& arrays, Pointer* buffers) {
  for (int b = 0; b < kNumBuffers; ++b) {
    if (kBuffers[b].use[header.direction] != Use::kWritten) continue;
    const int64_t size = ShapeOf(header, static_cast<BufferId>(b)).bytes();
    buffers[b] = Find(arrays, kBuffers[b].name, size);
  }
}

// Gradients of weights that travel with their rows.
void FindWeights(const ImageHeader& header, const Arrays& captured,
                 Modes* modes) {
  if (header.direction != kBackward || header.placement != kBeforeDown) return;
  const int64_t rows = int64_t{header.num_ranks} * header.num_rows * 4;
  modes->captured_row_weight =
      static_cast<float*>(Find(captured, "d_row_weight", rows));
  modes->captured_slot_weight = static_cast<float*>(
      Find(captured, "d_slot_weight", PlanBytes(header).by_slot));
}

// `tables`: order [tasks] u32 and actions [tasks] u8, if any.
Modes ModesOf(const ImageView& view, const std::map<std::string, bool>& flags,
              uint64_t seed, const Arrays& tables, const Arrays& captured,
              const ConstArrays& given) {
  Modes modes;
  modes.poison = flags.at("poison");
  modes.permute = flags.at("permute");
  modes.late_puts = flags.at("late_puts");
  modes.races = flags.at("races");
  modes.seed = seed;
  const int64_t tasks = view.num_tasks;
  if (tables.count("order") != 0) {
    modes.order = static_cast<uint32_t*>(Find(tables, "order", tasks * 4));
  }
  if (tables.count("actions") == 0) return modes;
  modes.actions = static_cast<const uint8_t*>(Find(tables, "actions", tasks));
  uint8_t any = 0;
  for (int64_t t = 0; t < tasks; ++t) any |= modes.actions[t];
  if ((any & kActCapture) != 0) {
    FindWritten(*view.header, captured, modes.captured);
    FindWeights(*view.header, captured, &modes);
  }
  if ((any & kActHeal) != 0) FindWritten(*view.header, given, modes.given);
  return modes;
}

nb::tuple RaceTuple(const Race& race) {
  return nb::make_tuple(race.first, race.second, static_cast<int>(race.kind),
                        race.buffer,
                        nb::make_tuple(race.rank, race.row_begin, race.row_end,
                                       race.col_begin, race.col_end),
                        nb::make_tuple(static_cast<int>(race.missing),
                                       race.event, race.threshold, race.total));
}

// What stopped the launch, whether the fault changed anything, and the races.
nb::tuple Report(const LaunchReport& report) {
  std::vector<nb::tuple> races;
  for (const Race& race : report.races.first) races.push_back(RaceTuple(race));
  return nb::make_tuple(report.diagnosis, report.fault_changed,
                        nb::make_tuple(report.races.count, races));
}

nb::tuple LaunchPy(const ConstArray& image, const Plan& plan,
                   const ConstArrays& inputs, const Arrays& outputs,
                   int32_t threads, double deadline_s, const std::string& isa,
                   const std::string& fault, int64_t fault_task,
                   const std::map<std::string, bool>& flags, uint64_t seed,
                   const Arrays& tables, const Arrays& captured,
                   const ConstArrays& given) {
  const ImageView view = Load(image);
  const LaunchTensors tensors = Tensors(*view.header, &plan, inputs, outputs);
  const LaunchOptions options = {
      threads, deadline_s, IsaByName(isa), Fault(view, fault, fault_task),
      ModesOf(view, flags, seed, tables, captured, given)};
  LaunchReport report;
  Status status;
  {
    nb::gil_scoped_release release;
    status = Launch(view, tensors, options, &report);
  }
  Check(status);
  return Report(report);
}

void LaunchSerialPy(const ConstArray& image, const Plan& plan,
                    const ConstArrays& inputs, const Arrays& outputs,
                    const std::string& isa_name) {
  const ImageView view = Load(image);
  const LaunchTensors tensors = Tensors(*view.header, &plan, inputs, outputs);
  const Isa isa = IsaByName(isa_name);
  Status status;
  {
    nb::gil_scoped_release release;
    status = LaunchSerial(view, tensors, isa);
  }
  Check(status);
}

Plan MakePlanPy(const ConstArray& image, const ConstArray& topk_ids) {
  const ImageView view = Load(image);
  CheckBytes("topk_ids", PlanBytes(*view.header).by_slot, topk_ids.nbytes());
  Plan plan;
  Check(MakePlan(*view.header, static_cast<const int32_t*>(topk_ids.data()),
                 &plan));
  return plan;
}

// One of the plan's tables, flat, in place.
template <std::vector<int32_t> Plan::* table>
auto TableOf(Plan& plan) {
  return nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>(
      (plan.*table).data(), {(plan.*table).size()}, nb::handle());
}

nb::bytes BytesOf(const std::vector<int32_t>& words) {
  return nb::bytes(reinterpret_cast<const char*>(words.data()),
                   words.size() * sizeof(int32_t));
}

// (rows of task, buffer, write, slab, row begin, row end, column begin, column
// end; rows of task, event), all i32.
nb::tuple InspectPy(const ConstArray& image, const ConstArray& topk_ids) {
  const ImageView view = Load(image);
  CheckBytes("topk_ids", PlanBytes(*view.header).by_slot, topk_ids.nbytes());
  Inspection found;
  const Status status =
      Inspect(view, static_cast<const int32_t*>(topk_ids.data()), &found);
  Check(status);
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
  return nb::make_tuple(BytesOf(accesses), BytesOf(signals));
}

int64_t FirstNonFinitePy(const ConstArray& array) {
  nb::gil_scoped_release release;
  return FirstNonFinite(array.data(), array.itemsize(), array.size());
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
  nb::exception<BrokenError>(m, "BrokenError", PyExc_RuntimeError);
  nb::exception<ImageError>(m, "ImageError", PyExc_ValueError);
  nb::class_<Diagnosis>(m, "Diagnosis")
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
  m.def("check_image", [](const ConstArray& image) { Load(image); });
  m.def("launch", &LaunchPy);
  m.def("launch_serial", &LaunchSerialPy);
  nb::class_<Plan> plan(m, "Plan");
  const auto in_place = nb::rv_policy::reference_internal;
  plan.def_prop_ro("counts", &TableOf<&Plan::counts>, in_place);
  plan.def_prop_ro("row_base", &TableOf<&Plan::row_base>, in_place);
  plan.def_prop_ro("row_of_slot", &TableOf<&Plan::row_of_slot>, in_place);
  plan.def_prop_ro("slice_slots", &TableOf<&Plan::slice_slots>, in_place);
  m.def("make_plan", &MakePlanPy);
  m.def("inspect", &InspectPy);
  m.def("first_non_finite", &FirstNonFinitePy);
  m.def("fault_names", &FaultNames);
}

}  // namespace hpmoe
