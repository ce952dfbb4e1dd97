// Python's view of production launches.

#include "backend_ascend/kernels/host/binding.h"
#include "backend_ascend/kernels/host/launch/launch.h"
#include "backend_ascend/kernels/host/launch/tensors_binding.h"
#include "backend_ascend/kernels/host/production/production.h"

namespace hpmoe {
namespace {

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
  const LaunchTensors tensors =
      TensorsOf(self->image(), nullptr, inputs, outputs, Given::kSome);
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
