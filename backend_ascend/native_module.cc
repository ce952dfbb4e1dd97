// The one extension module: every native part binds its functions here.

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hpmoe {
void BindKernels(nb::module_& m);
void BindKinds(nb::module_& m);
void BindProofs(nb::module_& m);
void BindRanks(nb::module_& m);
void BindRuntime(nb::module_& m);
}  // namespace hpmoe

NB_MODULE(_native, m) {
  m.doc() = "Native part of backend_ascend.";
  hpmoe::BindKernels(m);
  hpmoe::BindKinds(m);
  hpmoe::BindProofs(m);
  hpmoe::BindRanks(m);
  hpmoe::BindRuntime(m);
}
