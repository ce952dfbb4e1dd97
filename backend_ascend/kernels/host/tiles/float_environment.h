// The bits of a launch do not depend on the thread that asks for it.

#ifndef BACKEND_ASCEND_KERNELS_HOST_FLOAT_ENVIRONMENT_H_
#define BACKEND_ASCEND_KERNELS_HOST_FLOAT_ENVIRONMENT_H_

#include <cfenv>

namespace hpmoe {

// Rounds to nearest and keeps subnormal numbers while it lives, whatever the
// caller's thread does: XLA's flush them to zero, and so does what they call
// back.  Threads started meanwhile inherit this.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_FLOAT_ENVIRONMENT_H_
