// See call_binding.cc.

#ifndef BACKEND_ASCEND_DEVICE_OPERATOR_CALL_BINDING_H_
#define BACKEND_ASCEND_DEVICE_OPERATOR_CALL_BINDING_H_

#include <nanobind/nanobind.h>

namespace hpmoe {

void BindNpuCall(nanobind::module_& m);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_OPERATOR_CALL_BINDING_H_
