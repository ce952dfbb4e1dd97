// The extension module of the MindSpore front end, and the library in which
// MindSpore finds HpmoeMindSporeLaunch.

#include "backend_ascend/frontends/mindspore_ffi.h"
#include "backend_ascend/frontends/register_binding.h"
#include "backend_ascend/kernels/ascendc/operator/call_binding.h"

NB_MODULE(_mindspore_ffi, m) {
  m.doc() = "Native part of backend_ascend.frontends.mindspore_layer.";
  m.attr("function") = "HpmoeMindSporeLaunch";
  hpmoe::BindRegister(m);
  hpmoe::BindNpuCall(m);
}
