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

inline std::vector<std::string> Names(const std::vector<Operand>& operands) {
  std::vector<std::string> names;
  for (const Operand& operand : operands) names.emplace_back(operand.name);
  return names;
}

// Returns the names of the launch's operands and of its results, in order.
inline nanobind::tuple Register(
    const std::string& digest,
    const nanobind::ndarray<nanobind::ro, nanobind::c_contig,
                            nanobind::device::cpu>& image) {
  const Status status = RegisterImage(digest, image.data(), image.nbytes());
  if (status.code != 0) throw nanobind::value_error(status.message);
  const ImageHeader& header = *FindImage(digest)->header;
  return nanobind::make_tuple(Names(InputsOf(header)),
                              Names(OutputsOf(header)));
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_FRONTENDS_REGISTER_BINDING_H_
