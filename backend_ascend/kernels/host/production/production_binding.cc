// Python's view of production launches.

#include "backend_ascend/kernels/host/binding.h"
#include "backend_ascend/kernels/host/launch/launch.h"
#include "backend_ascend/kernels/host/launch/tensors_binding.h"
#include "backend_ascend/kernels/host/production/production.h"

namespace hpmoe {
namespace {

// Null where it is not given.
template <class Array>
auto* FindAny(const std::map<std::string, Array>& arrays,
              const std::string& name, int64_t bytes) {
  return arrays.count(name) != 0 ? Find(arrays, name, bytes) : nullptr;
}

LaunchTensors GivenOf(const ImageHeader& header, const ConstArrays& inputs,
                      const Arrays& outputs) {
  const PlanBytes bytes(header);
  const auto ints = [&](const char* name, int64_t size) {
    return static_cast<int32_t*>(FindAny(outputs, name, size));
  };
  LaunchTensors tensors{};
  tensors.topk_ids =
      static_cast<const int32_t*>(Find(inputs, "topk_ids", bytes.by_slot));
  tensors.topk_weights =
      static_cast<const float*>(Find(inputs, "topk_weights", bytes.by_slot));
  tensors.counts = ints("counts", bytes.by_expert);
  tensors.row_base = ints("row_base", bytes.by_expert);
  tensors.row_of_slot = ints("row_of_slot", bytes.by_slot);
  for (int b = 0; b < kNumBuffers; ++b) {
    const int64_t size = ShapeOf(header, static_cast<BufferId>(b)).bytes();
    if (IsWritten(header, b)) {
      tensors.buffers[b] = FindAny(outputs, kBuffers[b].name, size);
    } else {
      // Tasks only read it.
      tensors.buffers[b] =
          const_cast<void*>(FindAny(inputs, kBuffers[b].name, size));
    }
  }
  return tensors;
}

Diagnosis LaunchPy(Production* self, const ConstArrays& inputs,
                   const Arrays& outputs, std::optional<int32_t> threads,
                   double deadline_s, const std::optional<std::string>& isa) {
  if (threads && (*threads < 1 || *threads > kMaxThreads)) {
    Refuse("threads", "1 to " + std::to_string(kMaxThreads),
           std::to_string(*threads));
  }
  if (!(deadline_s > 0 && deadline_s <= kMaxDeadlineS)) {
    Refuse("deadline_s", "seconds in (0, 1e9]", std::to_string(deadline_s));
  }
  const LaunchTensors tensors = GivenOf(self->image(), inputs, outputs);
  const ProductionOptions options = {threads.value_or(0), deadline_s,
                                     IsaOf(isa)};
  Diagnosis diagnosis;
  Status status;
  {
    const nb::gil_scoped_release release;
    status = self->Launch(tensors, options, &diagnosis);
  }
  Check(status);
  return diagnosis;
}

}  // namespace

void BindProduction(nb::module_& m) {
  nb::class_<Production>(m, "Production", "An image that is launched often.")
      .def(
          "__init__",
          [](Production* self, const LoadedImage& image) {
            new (self) Production(image.view());
          },
          "image"_a, nb::keep_alive<1, 2>())
      .def("launch", &LaunchPy, "inputs"_a, "outputs"_a, nb::kw_only(),
           "threads"_a = nb::none(), "deadline_s"_a = 60.0,
           "isa"_a = nb::none(),
           "Makes the tensors of `outputs`, no others.  Raises ValueError.")
      .def_prop_ro("arena_bytes", &Production::arena_bytes,
                   "What it keeps between launches.");
}

}  // namespace hpmoe
