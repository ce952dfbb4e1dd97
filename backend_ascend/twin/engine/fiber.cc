#include "backend_ascend/twin/engine/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASCEND_TWIN_ASAN
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(ASCEND_TWIN_ASAN)
#include <sanitizer/common_interface_defs.h>
#else
// Without the sanitizer nobody keeps account of stacks.
static void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
static void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#endif

namespace ascend_twin {
namespace {

constexpr size_t kStackBytes = size_t{1} << 20;
constexpr size_t kGuardBytes = size_t{1} << 16;  // a page of any machine

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  // Pages that nobody touches cost nothing.
  void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) throw std::bad_alloc();
  mprotect(stack, kGuardBytes, PROT_NONE);
  stack_ = static_cast<char*>(stack);
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_;
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = &outside_;
  const uint64_t self = reinterpret_cast<uint64_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::Enter), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
}

Fiber::~Fiber() { munmap(stack_, kStackBytes); }

void Fiber::Enter(unsigned high, unsigned low) {
  Fiber* const self = reinterpret_cast<Fiber*>((uint64_t{high} << 32) | low);
  __sanitizer_finish_switch_fiber(nullptr, &self->outside_stack_,
                                  &self->outside_bytes_);
  self->body_();
  self->done_ = true;
  __sanitizer_start_switch_fiber(nullptr, self->outside_stack_,
                                 self->outside_bytes_);
}

void Fiber::Resume() {
  __sanitizer_start_switch_fiber(&outside_fake_, stack_, kStackBytes);
  swapcontext(&outside_, &inside_);
  __sanitizer_finish_switch_fiber(outside_fake_, nullptr, nullptr);
}

void Fiber::Stop() {
  __sanitizer_start_switch_fiber(&inside_fake_, outside_stack_, outside_bytes_);
  swapcontext(&inside_, &outside_);
  __sanitizer_finish_switch_fiber(inside_fake_, &outside_stack_,
                                  &outside_bytes_);
}

void Fiber::Leave() {
  done_ = true;
  for (;;) Stop();
}

}  // namespace ascend_twin
