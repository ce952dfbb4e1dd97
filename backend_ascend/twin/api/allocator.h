// LocalMemAllocator: on-chip memory one piece after the other, without TPipe.

#ifndef BACKEND_ASCEND_TWIN_API_ALLOCATOR_H_
#define BACKEND_ASCEND_TWIN_API_ALLOCATOR_H_

#include <cstdint>

#include "backend_ascend/twin/api/tensor.h"
#include "backend_ascend/twin/api/types.h"

namespace AscendC {

enum class Hardware : uint8_t { GM, UB, L1, L0A, L0B, L0C, BIAS, FIXBUF, MAX };

constexpr TPosition PositionOf(Hardware memory) {
  switch (memory) {
    case Hardware::L1:
      return TPosition::A1;
    case Hardware::L0A:
      return TPosition::A2;
    case Hardware::L0B:
      return TPosition::B2;
    case Hardware::L0C:
      return TPosition::CO1;
    case Hardware::BIAS:
      return TPosition::C2;
    default:
      return TPosition::VECCALC;
  }
}

// What lies beyond the memory is refused when an instruction touches it.
template <Hardware memory = Hardware::UB>
class LocalMemAllocator {
 public:
  template <TPosition position, class T>
  LocalTensor<T> Alloc(uint32_t count) {
    static_assert(MemoryOf(position) == MemoryOf(PositionOf(memory)),
                  "a position of this memory");
    const LocalTensor<T> tensor(position, head_, count);
    const uint32_t bytes = count * static_cast<uint32_t>(sizeof(T));
    head_ += (bytes + kAlign - 1) / kAlign * kAlign;
    return tensor;
  }
  template <TPosition position, class T, uint32_t count>
  LocalTensor<T> Alloc() {
    return Alloc<position, T>(count);
  }
  template <class T>
  LocalTensor<T> Alloc(uint32_t count) {
    return Alloc<PositionOf(memory), T>(count);
  }
  template <class T, uint32_t count>
  LocalTensor<T> Alloc() {
    return Alloc<T>(count);
  }
  uint32_t GetCurAddr() const { return head_; }

 private:
  // Of starts: blocks of UB and L1, fractals of L0A and L0B, tiles of L0C.
  static constexpr uint32_t kAlign = memory == Hardware::UB    ? 32
                                     : memory == Hardware::L1  ? 32
                                     : memory == Hardware::L0C ? 1024
                                                               : 512;
  uint32_t head_ = 0;
};

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_API_ALLOCATOR_H_
