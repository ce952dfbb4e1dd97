#include "backend_ascend/kernels/ascendc/twin/engine/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

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
  self->body_();
  self->done_ = true;
}

void Fiber::Resume() { swapcontext(&outside_, &inside_); }

void Fiber::Stop() { swapcontext(&inside_, &outside_); }

}  // namespace ascend_twin
