// The extension module of the JAX front end, the one that knows XLA's headers.

#include <xla/ffi/api/c_api.h>

#include "backend_ascend/frontends/jax_ffi.h"
#include "backend_ascend/frontends/register_binding.h"

namespace nb = nanobind;

NB_MODULE(_jax_ffi, m) {
  m.doc() = "Native part of backend_ascend.frontends.jax_layer.";
  m.attr("api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  hpmoe::BindRegister(m);
  m.def("handler",
        [] { return nb::capsule(reinterpret_cast<void*>(&hpmoe::JaxLaunch)); });
}
