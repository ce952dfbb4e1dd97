#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hpmoe {

void BindProofs(nb::module_& m) { (void)m; }

}  // namespace hpmoe
