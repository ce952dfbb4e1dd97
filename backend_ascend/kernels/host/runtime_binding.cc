#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hpmoe {

void BindRuntime(nb::module_& m) { (void)m; }

}  // namespace hpmoe
