// What the extension modules of the front ends share.

#ifndef BACKEND_ASCEND_FRONTENDS_REGISTER_BINDING_H_
#define BACKEND_ASCEND_FRONTENDS_REGISTER_BINDING_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "backend_ascend/frontends/image_registry.h"
#include "backend_ascend/frontends/operands.h"

namespace hpmoe {

// Names of operands, of results, and of all that a launch knows.
inline std::vector<std::vector<std::string>> Register(
    const std::string& digest,
    const nanobind::ndarray<nanobind::ro, nanobind::c_contig,
                            nanobind::device::cpu>& image) {
  const Status status = RegisterImage(digest, image.data(), image.nbytes());
  if (status.code != 0) throw nanobind::value_error(status.message);
  const ImageHeader& header = FindLaunch(digest)->image();
  std::vector<std::vector<std::string>> names(3);
  for (const Operand& operand : KnownOperands(header)) {
    if (operand.used) names[operand.made].emplace_back(operand.name);
    names[2].emplace_back(operand.name);
  }
  return names;
}

inline void BindRegister(nanobind::module_& m) {
  m.def("register", &Register, nanobind::arg("digest"), nanobind::arg("image"),
        "Keeps an image; returns the names of operands and results, in order,\n"
        "and of what a launch knows, by bit.");
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_FRONTENDS_REGISTER_BINDING_H_
