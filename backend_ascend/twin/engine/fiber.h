// A function on a stack of its own, which stops and goes on where it says.

#ifndef BACKEND_ASCEND_TWIN_ENGINE_FIBER_H_
#define BACKEND_ASCEND_TWIN_ENGINE_FIBER_H_

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace ascend_twin {

class Fiber {
 public:
  // `body` must not throw.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it stops or ends.  Not from inside of it.
  void Resume();
  // From inside of the body: back to who resumed it.
  void Stop();
  // The same, for ever: what the stack holds is not let go.
  [[noreturn]] void Leave();
  bool done() const { return done_; }

 private:
  static void Enter(unsigned high, unsigned low);

  const std::function<void()> body_;
  char* stack_;
  ucontext_t inside_;
  ucontext_t outside_;
  bool done_ = false;
  // What AddressSanitizer wants to know of stacks.
  void* inside_fake_ = nullptr;
  void* outside_fake_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_bytes_ = 0;
};

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_ENGINE_FIBER_H_
