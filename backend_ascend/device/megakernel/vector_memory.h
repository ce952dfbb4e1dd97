// The unified buffer of a vector core: what lies where, moves to and from it,
// and two sets of buffers that work passes through in turn.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_MEMORY_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_MEMORY_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/tile_budget.h"

namespace hpmoe {

// Elements of a float in a block: where something lies for each row, it has a
// block to itself.
constexpr int32_t kBlockFloats = kBlockBytes / 4;

// What is looked after for so many rows at a time.
constexpr int32_t kWindowRows = kMaxTopK;
// Words on their way to events; one more, to the handshake.
constexpr int32_t kSignalsInFlight = 4;
constexpr uint32_t kUbSignal = 0;
constexpr uint32_t kUbSlots = (1 + kSignalsInFlight) * kBlockBytes;
constexpr uint32_t kUbWeights = kUbSlots + 4 * kWindowRows;
constexpr uint32_t kUbDots = kUbWeights + kBlockBytes * kWindowRows;
constexpr uint32_t kUbSets = kUbDots + kBlockBytes * kWindowRows;
constexpr int32_t kSetBytes =
    (kUbBytes - static_cast<int32_t>(kUbSets)) / 2 / kBlockBytes * kBlockBytes;

template <typename T>
HPMOE_FUNCTION AscendC::LocalTensor<T> UbTensor(uint32_t begin, int32_t count) {
  return AscendC::LocalTensor<T>(AscendC::TPosition::VECCALC, begin,
                                 static_cast<uint32_t>(count));
}

// Elements that a row of `cols` takes in UB: whole blocks.
template <typename T>
HPMOE_FUNCTION constexpr int32_t WidthOf(int32_t cols) {
  return RoundUp(cols, kBlockBytes / static_cast<int32_t>(sizeof(T)));
}

// Rows of cols elements, `pitch` elements from start to start in global memory.
struct Box {
  int32_t rows, cols;
  int64_t pitch;
};

// Rows in UB lie side by side, each from a block, zeros behind it.
template <typename T>
HPMOE_FUNCTION void MoveIn(const AscendC::LocalTensor<T>& to, HPMOE_GM T* from,
                           const Box& box) {
  const int32_t padding = WidthOf<T>(box.cols) - box.cols;
  const AscendC::DataCopyExtParams params(
      static_cast<uint16_t>(box.rows),
      static_cast<uint32_t>(box.cols * sizeof(T)),
      static_cast<uint32_t>((box.pitch - box.cols) * sizeof(T)), 0, 0);
  const AscendC::DataCopyPadExtParams<T> zeros(
      padding > 0, 0, static_cast<uint8_t>(padding), T{});
  AscendC::DataCopyPad(to, GlobalOf(from), params, zeros);
}

// Rows in UB are `gap` blocks apart.
template <typename T>
HPMOE_FUNCTION void MoveOut(HPMOE_GM T* to, const AscendC::LocalTensor<T>& from,
                            const Box& box, int32_t gap = 0) {
  const AscendC::DataCopyExtParams params(
      static_cast<uint16_t>(box.rows),
      static_cast<uint32_t>(box.cols * sizeof(T)), static_cast<uint32_t>(gap),
      static_cast<uint32_t>((box.pitch - box.cols) * sizeof(T)), 0);
  AscendC::DataCopyPad(GlobalOf(to), from, params);
}

// The scalar unit reads what was moved in.
HPMOE_FUNCTION void AwaitMoveIn() {
  AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(0);
  AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(0);
}

// What the scalar unit has read may be overwritten by what is moved in.
HPMOE_FUNCTION void AwaitReads() {
  AscendC::SetFlag<AscendC::HardEvent::S_MTE2>(0);
  AscendC::WaitFlag<AscendC::HardEvent::S_MTE2>(0);
}

// How a tile passes through a set: `rows` rows of `cols` columns at a time,
// where a column of a row takes `bytes` in all.
struct Pass {
  int32_t rows, cols;
};

template <typename T>
HPMOE_FUNCTION Pass PassOf(int32_t cols, int32_t bytes) {
  const int32_t unit = kBlockBytes / static_cast<int32_t>(sizeof(T));
  const int32_t fit = kSetBytes / bytes / unit * unit;
  const int32_t width = WidthOf<T>(cols);
  return width > fit ? Pass{1, fit} : Pass{fit / width, cols};
}

// Hands out a set of buffers.  Work of a pass: load, compute, store; while one
// set computes, the other loads.  A set is free again when its store is done:
// all that came before it in the pass is then done too.
class Sets {
 public:
  HPMOE_FUNCTION void Open() {
    for (int32_t set = 0; set < 2; ++set) {
      AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(set);
    }
  }
  HPMOE_FUNCTION void Close() {
    for (int32_t set = 0; set < 2; ++set) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(set);
    }
  }

  // Loads follow.  Earlier stores from the set have ended.
  HPMOE_FUNCTION void Load() {
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(set_);
    next_ = kUbSets + static_cast<uint32_t>(set_ * kSetBytes);
  }
  // Vector work follows, of what was loaded.
  HPMOE_FUNCTION void Compute() {
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(set_);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(set_);
  }
  // Stores follow, of what was computed,
  HPMOE_FUNCTION void StoreComputed() {
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(set_);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(set_);
  }
  // or of what was loaded.
  HPMOE_FUNCTION void StoreLoaded() {
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE3>(set_);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE3>(set_);
  }
  // The stores are under way.
  HPMOE_FUNCTION void End() {
    AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(set_);
    set_ = 1 - set_;
  }

  // The next `count` elements of the set that Load began; whole blocks.
  template <typename T>
  HPMOE_FUNCTION AscendC::LocalTensor<T> Take(int32_t count) {
    const uint32_t begin = next_;
    next_ += static_cast<uint32_t>(count) * sizeof(T);
    return UbTensor<T>(begin, count);
  }

 private:
  int32_t set_ = 0;
  uint32_t next_ = 0;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_VECTOR_MEMORY_H_
