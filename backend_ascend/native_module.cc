// The one extension module: every native part binds its functions here.

#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, m) { m.doc() = "Native part of backend_ascend."; }
