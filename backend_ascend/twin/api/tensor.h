// LocalTensor and GlobalTensor: typed views of on-chip and of global memory.

#ifndef BACKEND_ASCEND_TWIN_API_TENSOR_H_
#define BACKEND_ASCEND_TWIN_API_TENSOR_H_

#include <cstdint>

#include "backend_ascend/twin/api/types.h"
#include "backend_ascend/twin/engine/scalar.h"

namespace AscendC {

using ascend_twin::Site;

template <typename T>
class LocalTensor {
 public:
  using PrimType = T;

  LocalTensor() = default;
  // `count` elements from byte `begin` of the position's memory.
  LocalTensor(TPosition position, uint32_t begin, uint32_t count)
      : position_(position), begin_(begin), count_(count) {}

  LocalTensor operator[](uint32_t offset) const {
    return LocalTensor(position_,
                       begin_ + offset * static_cast<uint32_t>(sizeof(T)),
                       offset < count_ ? count_ - offset : 0);
  }
  T GetValue(uint32_t index, Site site = Site::Here()) const {
    T value;
    ascend_twin::ScalarLoad(memory(), begin_ + uint64_t{index} * sizeof(T),
                            sizeof(T), &value, site);
    return value;
  }
  void SetValue(uint32_t index, T value, Site site = Site::Here()) const {
    ascend_twin::ScalarStore(memory(), begin_ + uint64_t{index} * sizeof(T),
                             sizeof(T), &value, site);
  }
  template <typename U>
  LocalTensor<U> ReinterpretCast() const {
    return LocalTensor<U>(
        position_, begin_,
        static_cast<uint32_t>(uint64_t{count_} * sizeof(T) / sizeof(U)));
  }
  uint32_t GetSize() const { return count_; }
  TPosition GetPosition() const { return position_; }

  // The twin's own.
  ascend_twin::Memory memory() const { return MemoryOf(position_); }
  uint64_t begin() const { return begin_; }

 private:
  TPosition position_ = TPosition::MAX;
  uint32_t begin_ = 0;
  uint32_t count_ = 0;
};

template <typename T>
class GlobalTensor {
 public:
  using PrimType = T;

  void SetGlobalBuffer(__gm__ T* data) { SetGlobalBuffer(data, ~uint64_t{0}); }
  void SetGlobalBuffer(__gm__ T* data, uint64_t count) {
    data_ = data;
    count_ = count;
  }
  GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor part;
    part.SetGlobalBuffer(data_ + offset, offset < count_ ? count_ - offset : 0);
    return part;
  }
  T GetValue(uint64_t index, Site site = Site::Here()) const {
    T value;
    ascend_twin::ScalarLoad(ascend_twin::Memory::kGm,
                            begin() + index * sizeof(T), sizeof(T), &value,
                            site);
    return value;
  }
  void SetValue(uint64_t index, T value, Site site = Site::Here()) const {
    ascend_twin::ScalarStore(ascend_twin::Memory::kGm,
                             begin() + index * sizeof(T), sizeof(T), &value,
                             site);
  }
  const __gm__ T* GetPhyAddr() const { return data_; }
  const __gm__ T* GetPhyAddr(uint64_t offset) const { return data_ + offset; }
  uint64_t GetSize() const { return count_; }

  // The twin's own.
  uint64_t begin() const { return reinterpret_cast<uint64_t>(data_); }

 private:
  __gm__ T* data_ = nullptr;
  uint64_t count_ = 0;
};

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_API_TENSOR_H_
