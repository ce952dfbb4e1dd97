// One-sided communication between ranks, with the semantics of the SHMEM
// library, whose call each function stands for.  A put is a move from UB to a
// peer's address; it is complete only after Fence.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_SYMMETRIC_MEMORY_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_SYMMETRIC_MEMORY_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/device/megakernel/vector_memory.h"

namespace hpmoe {

class SymmetricMemory {
 public:
  HPMOE_FUNCTION explicit SymmetricMemory(const LaunchArgs& args)
      : heaps_(args.heaps), rank_(args.rank) {}

  // aclshmem_ptr: where a rank has what this rank has at `here`.
  template <typename T>
  HPMOE_FUNCTION HPMOE_GM T* At(HPMOE_GM T* here, int32_t rank) const {
    const uint64_t offset = reinterpret_cast<uint64_t>(here) - heaps_[rank_];
    return reinterpret_cast<HPMOE_GM T*>(heaps_[rank] + offset);
  }

 private:
  const HPMOE_GM uint64_t* const heaps_;
  const int32_t rank_;
};

// aclshmem_fence, which is aclshmem_quiet too: all that this core has moved
// has arrived, and its UB is free.
HPMOE_FUNCTION void Fence() { AscendC::PipeBarrier<PIPE_ALL>(); }

// Stores a word in UB and issues its move to a line.  `flag` is the word's own:
// MTE3 has met it before the word is stored again.
HPMOE_FUNCTION void MoveWord(HPMOE_GM CounterLine* line, int32_t value,
                             int32_t flag) {
  const AscendC::LocalTensor<int32_t> word = UbTensor<int32_t>(
      kUbSignal + static_cast<uint32_t>(flag * kBlockBytes), kBlockFloats);
  const AscendC::DataCopyExtParams one_word(1, sizeof(int32_t), 0, 0, 0);
  word.SetValue(0, value);
  // The move reads the word after it is stored.
  AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(flag);
  AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(flag);
  AscendC::DataCopyPad(GlobalOf(reinterpret_cast<HPMOE_GM int32_t*>(line)),
                       word, one_word);
}

// aclshmemx_signal_op with ACLSHMEM_SIGNAL_SET.  Fence comes before it.
HPMOE_FUNCTION void SignalSet(HPMOE_GM CounterLine* line, int32_t value) {
  MoveWord(line, value, 0);
  // The next signal stores its word after the move has read this one.
  AscendC::SetFlag<AscendC::HardEvent::MTE3_S>(0);
  AscendC::WaitFlag<AscendC::HardEvent::MTE3_S>(0);
}

// aclshmemx_signal_op with ACLSHMEM_SIGNAL_ADD.  A core goes on while added
// words are in flight: it waits for one when its place in UB is needed again.
class SignalAdds {
 public:
  // Before the first, and after the last.
  HPMOE_FUNCTION void Open() {
    for (int32_t flag = 1; flag <= kSignalsInFlight; ++flag) {
      AscendC::SetFlag<AscendC::HardEvent::MTE3_S>(flag);
    }
  }
  HPMOE_FUNCTION void Close() {
    for (int32_t flag = 1; flag <= kSignalsInFlight; ++flag) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_S>(flag);
    }
  }

  // Fence comes before it.  A move has the atomic mode that it is issued in.
  HPMOE_FUNCTION void Add(HPMOE_GM CounterLine* line, int32_t amount) {
    // The move of this place's word has ended.
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_S>(next_);
    AscendC::SetAtomicAdd<int32_t>();
    MoveWord(line, amount, next_);
    AscendC::SetAtomicNone();
    AscendC::SetFlag<AscendC::HardEvent::MTE3_S>(next_);
    next_ = next_ % kSignalsInFlight + 1;
  }

 private:
  int32_t next_ = 1;  // place and flag; 0 is what SignalSet and scales have
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_SYMMETRIC_MEMORY_H_
