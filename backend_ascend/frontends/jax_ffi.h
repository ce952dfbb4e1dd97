// The XLA FFI handler that runs one launch.  It sees no Python: XLA calls it
// from threads of its own, which do not hold the interpreter's lock.

#ifndef BACKEND_ASCEND_FRONTENDS_JAX_FFI_H_
#define BACKEND_ASCEND_FRONTENDS_JAX_FFI_H_

struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;

namespace hpmoe {

// Attributes: image (digest, see image_registry.h), threads (i32, 0: as the
// runtime chooses), deadline_s (f64).  Operands and results as operands.h says.
XLA_FFI_Error* JaxLaunch(XLA_FFI_CallFrame* frame);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_FRONTENDS_JAX_FFI_H_
