#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "backend_ascend/kernels/host/launch.h"

namespace nb = nanobind;

namespace hpmoe {
namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ConstArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

ImageView Load(const ConstArray& image) {
  ImageView view;
  const Status status = LoadImage(image.data(), image.nbytes(), &view);
  if (status.code != 0) throw nb::value_error(status.message);
  return view;
}

// The last line of defence: Python checks shapes, this checks sizes.
void CheckBytes(const char* name, int64_t expected, int64_t got) {
  if (expected == got) return;
  const std::string message = std::string(name) + ": expected " +
                              std::to_string(expected) + " bytes, got " +
                              std::to_string(got);
  throw nb::value_error(message.c_str());
}

void CheckCount(const char* name, size_t expected, size_t got) {
  if (expected == got) return;
  const std::string message = std::string(name) + ": expected " +
                              std::to_string(expected) + " arrays, got " +
                              std::to_string(got);
  throw nb::value_error(message.c_str());
}

struct Sizes {
  int64_t r, t, e, k, d, f, n, bytes;
  explicit Sizes(const ImageHeader& h)
      : r(h.num_ranks),
        t(h.num_tokens),
        e(h.num_experts),
        k(h.top_k),
        d(h.d_model),
        f(h.d_ff),
        n(h.num_rows),
        bytes(h.dtype == kBFloat16 ? 2 : 4) {}
};

LaunchInputs Inputs(const ImageHeader& header,
                    const std::vector<ConstArray>& arrays) {
  CheckCount("inputs", 5, arrays.size());
  const Sizes s(header);
  CheckBytes("x", s.r * s.t * s.d * s.bytes, arrays[0].nbytes());
  CheckBytes("topk_ids", s.r * s.t * s.k * 4, arrays[1].nbytes());
  CheckBytes("topk_weights", s.r * s.t * s.k * 4, arrays[2].nbytes());
  CheckBytes("w_gate_up", s.e * s.d * 2 * s.f * s.bytes, arrays[3].nbytes());
  CheckBytes("w_down", s.e * s.f * s.d * s.bytes, arrays[4].nbytes());
  return {arrays[0].data(), static_cast<const int32_t*>(arrays[1].data()),
          static_cast<const float*>(arrays[2].data()), arrays[3].data(),
          arrays[4].data()};
}

LaunchOutputs Outputs(const ImageHeader& header,
                      const std::vector<Array>& arrays) {
  CheckCount("outputs", 9, arrays.size());
  const Sizes s(header);
  CheckBytes("counts", s.r * s.e * 4, arrays[0].nbytes());
  CheckBytes("row_base", s.r * s.e * 4, arrays[1].nbytes());
  CheckBytes("row_of_slot", s.r * s.t * s.k * 4, arrays[2].nbytes());
  CheckBytes("expert_in", s.r * s.n * s.d * s.bytes, arrays[3].nbytes());
  CheckBytes("gate_up", s.r * s.n * 2 * s.f * s.bytes, arrays[4].nbytes());
  CheckBytes("activation", s.r * s.n * s.f * s.bytes, arrays[5].nbytes());
  CheckBytes("expert_out", s.r * s.n * s.d * s.bytes, arrays[6].nbytes());
  CheckBytes("returned", s.r * s.t * s.k * s.d * s.bytes, arrays[7].nbytes());
  CheckBytes("y", s.r * s.t * s.d * s.bytes, arrays[8].nbytes());
  const auto ints = [&](int i) {
    return static_cast<int32_t*>(arrays[i].data());
  };
  return {ints(0),          ints(1),          ints(2),
          arrays[3].data(), arrays[4].data(), arrays[5].data(),
          arrays[6].data(), arrays[7].data(), arrays[8].data()};
}

FaultSpec Fault(const ImageView& view, const std::string& name, int64_t task) {
  if (name.empty()) return {FaultKind::kNone, -1};
  const FaultKind kind = FaultByName(name.c_str());
  if (kind == FaultKind::kNone) {
    throw nb::value_error(
        ("fault: expected a known fault, got '" + name + "'").c_str());
  }
  if (task < 0 || task >= view.num_tasks) {
    throw nb::value_error(("fault.task: expected a task in [0, " +
                           std::to_string(view.num_tasks) + "), got " +
                           std::to_string(task))
                              .c_str());
  }
  return {kind, task};
}

Isa IsaByName(const std::string& name) {
  if (name.empty()) return BestIsa();
  for (const Isa isa : kAllIsas) {
    if (IsaSupported(isa) && name == IsaName(isa)) return isa;
  }
  throw nb::value_error(
      ("isa: expected one that this CPU runs, got '" + name + "'").c_str());
}

// (reason, task, event, expected, actual, suspects), and whether the fault
// changed anything.
nb::tuple Report(const LaunchReport& report) {
  const Diagnosis& d = report.diagnosis;
  const std::vector<int64_t> suspects(d.suspects, d.suspects + d.num_suspects);
  return nb::make_tuple(nb::make_tuple(static_cast<int>(d.reason), d.task,
                                       d.event, d.expected, d.actual, suspects),
                        report.fault_changed);
}

nb::tuple LaunchPy(const ConstArray& image,
                   const std::vector<ConstArray>& inputs,
                   const std::vector<Array>& outputs, int32_t threads,
                   double deadline_s, const std::string& isa,
                   const std::string& fault, int64_t fault_task) {
  const ImageView view = Load(image);
  const LaunchInputs in = Inputs(*view.header, inputs);
  const LaunchOutputs out = Outputs(*view.header, outputs);
  const LaunchOptions options = {threads, deadline_s, IsaByName(isa),
                                 Fault(view, fault, fault_task)};
  LaunchReport report;
  Status status;
  {
    nb::gil_scoped_release release;
    status = Launch(view, in, options, out, &report);
  }
  if (status.code != 0) throw nb::value_error(status.message);
  return Report(report);
}

void LaunchSerialPy(const ConstArray& image,
                    const std::vector<ConstArray>& inputs,
                    const std::vector<Array>& outputs,
                    const std::string& isa_name) {
  const ImageView view = Load(image);
  const LaunchInputs in = Inputs(*view.header, inputs);
  const LaunchOutputs out = Outputs(*view.header, outputs);
  const Isa isa = IsaByName(isa_name);
  Status status;
  {
    nb::gil_scoped_release release;
    status = LaunchSerial(view, in, isa, out);
  }
  if (status.code != 0) throw nb::value_error(status.message);
}

// Fills counts, row_base and row_of_slot.
void MakePlanPy(const ConstArray& image, const ConstArray& topk_ids,
                const std::vector<Array>& outputs) {
  const ImageView view = Load(image);
  const Sizes s(*view.header);
  CheckCount("outputs", 3, outputs.size());
  CheckBytes("topk_ids", s.r * s.t * s.k * 4, topk_ids.nbytes());
  CheckBytes("counts", s.r * s.e * 4, outputs[0].nbytes());
  CheckBytes("row_base", s.r * s.e * 4, outputs[1].nbytes());
  CheckBytes("row_of_slot", s.r * s.t * s.k * 4, outputs[2].nbytes());
  Plan plan;
  const Status status = MakePlan(
      *view.header, static_cast<const int32_t*>(topk_ids.data()), &plan);
  if (status.code != 0) throw nb::value_error(status.message);
  const std::vector<int32_t>* tables[] = {&plan.counts, &plan.row_base,
                                          &plan.row_of_slot};
  for (int i = 0; i < 3; ++i) {
    std::copy(tables[i]->begin(), tables[i]->end(),
              static_cast<int32_t*>(outputs[i].data()));
  }
}

// Index of the first element whose exponent bits are all ones, or -1.
template <typename T>
int64_t FirstNonFinite(const T* x, int64_t count, T exponent) {
  // Adding the exponent's lowest bit carries into the sign bit just then, so a
  // chunk is tested without branches.
  constexpr int64_t kChunk = 1024;
  const T sign = static_cast<T>(~(static_cast<T>(~T{0}) >> 1));
  const T lowest = static_cast<T>(exponent & (0 - exponent));
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t end = std::min(count, begin + kChunk);
    T carried = 0;
    for (int64_t i = begin; i < end; ++i) {
      carried |= static_cast<T>((x[i] & exponent) + lowest);
    }
    if ((carried & sign) == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if ((x[i] & exponent) == exponent) return i;
    }
  }
  return -1;
}

int64_t FirstNonFinitePy(const ConstArray& array) {
  nb::gil_scoped_release release;
  const auto count = static_cast<int64_t>(array.size());
  if (array.itemsize() == 2) {
    return FirstNonFinite(static_cast<const uint16_t*>(array.data()), count,
                          uint16_t{0x7F80});
  }
  return FirstNonFinite(static_cast<const uint32_t*>(array.data()), count,
                        uint32_t{0x7F800000});
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
  m.def("check_image", [](const ConstArray& image) { Load(image); });
  m.def("launch", &LaunchPy);
  m.def("launch_serial", &LaunchSerialPy);
  m.def("make_plan", &MakePlanPy);
  m.def("first_non_finite", &FirstNonFinitePy);
  m.def("fault_names", &FaultNames);
}

}  // namespace hpmoe
