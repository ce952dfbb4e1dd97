// A small generator of the same numbers on every platform.

#ifndef BACKEND_ASCEND_HOST_SPLITMIX_H_
#define BACKEND_ASCEND_HOST_SPLITMIX_H_

#include <cstdint>

namespace hpmoe {

// SplitMix64: a counter that is mixed.
class SplitMix {
 public:
  // Streams of one seed are unrelated.
  SplitMix(uint64_t seed, uint64_t stream) : state_(Mix(seed) ^ Mix(~stream)) {}

  uint64_t Next() { return Mix(state_ += 0x9E3779B97F4A7C15ull); }

  // In [0, bound); the bias of so small bounds is nothing.
  uint64_t Below(uint64_t bound) { return Next() % bound; }

 private:
  static uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  }

  uint64_t state_;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_SPLITMIX_H_
