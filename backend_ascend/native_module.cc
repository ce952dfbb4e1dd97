// The one extension module: every native part binds its functions here.

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hpmoe {
void BindFlows(nb::module_& m);
void BindImage(nb::module_& m);
void BindKernels(nb::module_& m);
void BindProofs(nb::module_& m);
void BindRanks(nb::module_& m);
void BindRuntime(nb::module_& m);
void BindSchedule(nb::module_& m);
void BindSimulator(nb::module_& m);
void BindTarget(nb::module_& m);
}  // namespace hpmoe

NB_MODULE(_native, m) {
  m.doc() = "Native part of backend_ascend.";
  // Caches hold images until the process ends.
  nb::set_leak_warnings(false);
  hpmoe::BindFlows(m);
  hpmoe::BindImage(m);
  hpmoe::BindKernels(m);
  hpmoe::BindProofs(m);
  hpmoe::BindRanks(m);
  hpmoe::BindRuntime(m);
  hpmoe::BindSchedule(m);
  hpmoe::BindSimulator(m);
  hpmoe::BindTarget(m);
}
