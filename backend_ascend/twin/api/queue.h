// TPipe, TQue and TBuf: who hands out on-chip memory and sets its flags.

#ifndef BACKEND_ASCEND_TWIN_API_QUEUE_H_
#define BACKEND_ASCEND_TWIN_API_QUEUE_H_

#include <cstdint>

#include "backend_ascend/twin/api/flags_and_barriers.h"
#include "backend_ascend/twin/api/tensor.h"
#include "backend_ascend/twin/api/types.h"
#include "backend_ascend/twin/engine/local_pipe.h"

namespace AscendC {

using TEventID = int32_t;
using QuePosition = TPosition;

class TPipe {
 public:
  TPipe() { Init(); }
  // Waits for all pipes and for flags of buffers that are free again.
  ~TPipe() noexcept(false) {
    if (!destroyed_) Destroy();
  }
  TPipe(const TPipe&) = delete;
  TPipe& operator=(const TPipe&) = delete;

  void Init() { ascend_twin::SetPipeObject(this); }
  void Destroy(Site site = Site::Here()) {
    destroyed_ = true;
    pipe_.Destroy(site);
  }
  void Reset(Site site = Site::Here()) { pipe_.Reset(site); }

  template <typename Queue>
  bool InitBuffer(Queue& queue, uint8_t count, uint32_t bytes,
                  Site site = Site::Here()) {
    queue.Init(&pipe_, count, bytes, site);
    return true;
  }
  template <typename Buffer>
  bool InitBuffer(Buffer& buffer, uint32_t bytes, Site site = Site::Here()) {
    buffer.Init(&pipe_, bytes, site);
    return true;
  }

  // Reserves an id of an event, until it is released.
  template <HardEvent event>
  TEventID AllocEventID(Site site = Site::Here()) {
    return pipe_.AllocId(twin::EventOf(event), site);
  }
  template <HardEvent event>
  void ReleaseEventID(TEventID id, Site site = Site::Here()) {
    pipe_.ReleaseId(twin::EventOf(event), id, site);
  }
  // The next free id, not reserved: two fetches may be equal.
  template <HardEvent event>
  TEventID FetchEventID(Site site = Site::Here()) {
    return FetchEventID(event, site);
  }
  TEventID FetchEventID(HardEvent event, Site site = Site::Here()) {
    return pipe_.FetchId(twin::EventOf(event), site);
  }

 private:
  ascend_twin::LocalPipe pipe_;
  bool destroyed_ = false;
};

inline TPipe* GetTPipePtr() {
  return static_cast<TPipe*>(ascend_twin::PipeObject());
}

namespace twin {

// Events of a queue that lies at `position`: its buffer is filled, it is free.
constexpr HardEvent FilledEvent(TPosition from, TPosition to) {
  if (from == TPosition::VECIN && to == TPosition::VECOUT) {
    return HardEvent::MTE2_MTE3;
  }
  switch (to) {
    case TPosition::VECIN:
    case TPosition::VECCALC:
      return HardEvent::MTE2_V;
    case TPosition::VECOUT:
      return HardEvent::V_MTE3;
    case TPosition::A1:
    case TPosition::B1:
    case TPosition::C1:
      return HardEvent::MTE2_MTE1;
    case TPosition::A2:
    case TPosition::B2:
    case TPosition::C2:
      return HardEvent::MTE1_M;
    case TPosition::CO1:
      return HardEvent::M_FIX;
    default:
      return HardEvent::MAX;
  }
}

}  // namespace twin

// A ring of buffers between the pipe that fills them and the pipe that reads
// them.
template <TPosition from, TPosition to, int32_t depth, int mask = 0>
class TQueBind {
 public:
  static constexpr HardEvent kFilled = twin::FilledEvent(from, to);
  static_assert(kFilled != HardEvent::MAX, "a position that has a queue");

  template <typename T>
  LocalTensor<T> AllocTensor(Site site = Site::Here()) {
    return Tensor<T>(queue_.Alloc(site));
  }
  template <typename T>
  void AllocTensor(LocalTensor<T>& tensor, Site site = Site::Here()) {
    tensor = AllocTensor<T>(site);
  }
  template <typename T>
  bool EnQue(const LocalTensor<T>& tensor, Site site = Site::Here()) {
    queue_.EnQue(tensor.begin(), site);
    return true;
  }
  template <typename T>
  LocalTensor<T> DeQue(Site site = Site::Here()) {
    return Tensor<T>(queue_.DeQue(site));
  }
  template <typename T>
  void DeQue(LocalTensor<T>& tensor, Site site = Site::Here()) {
    tensor = DeQue<T>(site);
  }
  template <typename T>
  void FreeTensor(LocalTensor<T>& tensor, Site site = Site::Here()) {
    queue_.Free(tensor.begin(), site);
  }
  bool HasIdleBuffer() const { return queue_.idle() > 0; }
  bool HasTensorInQue() const { return queue_.filled() > 0; }
  int32_t GetTensorCountInQue() const { return queue_.filled(); }
  bool VacantInQue() const { return queue_.filled() < depth; }

  // The twin's own.
  void Init(ascend_twin::LocalPipe* pipe, uint8_t count, uint32_t bytes,
            Site site) {
    queue_.Init(pipe, MemoryOf(to), count, bytes, twin::EventOf(kFilled), site);
  }

 private:
  template <typename T>
  LocalTensor<T> Tensor(uint32_t begin) const {
    return LocalTensor<T>(to, begin,
                          queue_.bytes() / static_cast<uint32_t>(sizeof(T)));
  }

  ascend_twin::LocalQueue queue_;
};

template <TPosition position, int32_t depth, int mask = 0>
class TQue : public TQueBind<position, position, depth, mask> {};

// Memory without flags.
template <TPosition position = TPosition::VECCALC>
class TBuf {
 public:
  template <typename T>
  LocalTensor<T> Get() const {
    return Get<T>(bytes_ / static_cast<uint32_t>(sizeof(T)));
  }
  template <typename T>
  LocalTensor<T> Get(uint32_t count) const {
    return LocalTensor<T>(position, begin_, count);
  }
  template <typename T>
  LocalTensor<T> GetWithOffset(uint32_t count, uint32_t offset) const {
    return LocalTensor<T>(position, begin_ + offset, count);
  }
  uint32_t GetBufLen() const { return bytes_; }

  // The twin's own.
  void Init(ascend_twin::LocalPipe* pipe, uint32_t bytes, Site site) {
    begin_ = pipe->Take(MemoryOf(position), bytes, site);
    bytes_ = bytes;
  }

 private:
  uint32_t begin_ = 0;
  uint32_t bytes_ = 0;
};

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_API_QUEUE_H_
