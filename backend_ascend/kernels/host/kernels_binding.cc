#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hpmoe {

void BindKernels(nb::module_& m) { (void)m; }

}  // namespace hpmoe
