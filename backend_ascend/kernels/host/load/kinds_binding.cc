// The tables of kinds.h, for Python.

#include <nanobind/nanobind.h>

#include "backend_ascend/kernels/kinds.h"

namespace nb = nanobind;

namespace hpmoe {
namespace {

nb::list Kinds() {
  nb::list kinds;
  for (int k = 0; k < kNumTaskKinds; ++k) {
    const KindInfo& info = kKinds[k];
    nb::dict kind;
    kind["name"] = info.name;
    kind["unit"] = static_cast<int>(info.info().unit);
    kind["form"] = static_cast<int>(info.form());
    kind["direction"] = static_cast<int>(DirectionOf(k));
    kind["written"] = static_cast<int>(info.written);
    kinds.append(kind);
  }
  return kinds;
}

nb::list Buffers() {
  nb::list buffers;
  for (const BufferInfo& info : kBuffers) {
    nb::dict buffer;
    buffer["name"] = info.name;
    buffers.append(buffer);
  }
  return buffers;
}

}  // namespace

void BindKinds(nb::module_& m) {
  m.def("kinds", &Kinds);
  m.def("buffers", &Buffers);
}

}  // namespace hpmoe
