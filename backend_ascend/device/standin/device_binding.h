// The devices of a rehearsal, for Python.

#ifndef BACKEND_ASCEND_DEVICE_STANDIN_DEVICE_BINDING_H_
#define BACKEND_ASCEND_DEVICE_STANDIN_DEVICE_BINDING_H_

#include <nanobind/nanobind.h>

namespace hpmoe {

void BindDevice(nanobind::module_& m);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_STANDIN_DEVICE_BINDING_H_
