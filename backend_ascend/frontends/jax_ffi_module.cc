// The extension module of the JAX front end, the one that knows XLA's headers.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <xla/ffi/api/c_api.h>

#include <string>
#include <vector>

#include "backend_ascend/frontends/image_registry.h"
#include "backend_ascend/frontends/jax_ffi.h"
#include "backend_ascend/frontends/operands.h"

namespace nb = nanobind;

namespace hpmoe {
namespace {

std::vector<std::string> Names(const std::vector<Operand>& operands) {
  std::vector<std::string> names;
  for (const Operand& operand : operands) names.emplace_back(operand.name);
  return names;
}

// Returns the names of the launch's operands and of its results, in order.
nb::tuple Register(
    const std::string& digest,
    const nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>& image) {
  const Status status = RegisterImage(digest, image.data(), image.nbytes());
  if (status.code != 0) throw nb::value_error(status.message);
  const ImageHeader& header = *FindImage(digest)->header;
  return nb::make_tuple(Names(InputsOf(header)), Names(OutputsOf(header)));
}

}  // namespace
}  // namespace hpmoe

NB_MODULE(_jax_ffi, m) {
  m.doc() = "Native part of backend_ascend.frontends.jax_layer.";
  m.attr("api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  m.def("register", &hpmoe::Register);
  m.def("handler",
        [] { return nb::capsule(reinterpret_cast<void*>(&hpmoe::JaxLaunch)); });
}
