// Flags and barriers: of a core's pipes, of cores, of the scalar cache.

#ifndef BACKEND_ASCEND_TWIN_API_FLAGS_AND_BARRIERS_H_
#define BACKEND_ASCEND_TWIN_API_FLAGS_AND_BARRIERS_H_

#include <cstdint>

#include "backend_ascend/twin/api/tensor.h"
#include "backend_ascend/twin/api/types.h"
#include "backend_ascend/twin/engine/scalar.h"
#include "backend_ascend/twin/engine/sync.h"

// Without a namespace, as the compiler has them.
enum pipe_t {
  PIPE_S,
  PIPE_V,
  PIPE_M,
  PIPE_MTE1,
  PIPE_MTE2,
  PIPE_MTE3,
  PIPE_ALL,
  PIPE_FIX
};

enum event_t {
  EVENT_ID0,
  EVENT_ID1,
  EVENT_ID2,
  EVENT_ID3,
  EVENT_ID4,
  EVENT_ID5,
  EVENT_ID6,
  EVENT_ID7
};

// What stands for a pipe and for an event in names of Ascend C.
#define ASCEND_TWIN_EVENTS(X) \
  X(MTE2, MTE1)               \
  X(MTE1, MTE2)               \
  X(MTE1, M)                  \
  X(M, MTE1)                  \
  X(MTE2, V)                  \
  X(V, MTE2)                  \
  X(MTE3, V)                  \
  X(V, MTE3)                  \
  X(M, V)                     \
  X(V, M)                     \
  X(V, V)                     \
  X(MTE3, MTE1)               \
  X(MTE1, MTE3)               \
  X(MTE1, V)                  \
  X(MTE2, M)                  \
  X(M, MTE2)                  \
  X(V, MTE1)                  \
  X(M, FIX)                   \
  X(FIX, M)                   \
  X(MTE3, MTE2)               \
  X(MTE2, MTE3)               \
  X(S, V)                     \
  X(V, S)                     \
  X(S, MTE2)                  \
  X(MTE2, S)                  \
  X(S, MTE3)                  \
  X(MTE3, S)                  \
  X(MTE2, FIX)                \
  X(FIX, MTE2)                \
  X(FIX, S)                   \
  X(M, S)                     \
  X(FIX, MTE3)                \
  X(MTE1, FIX)                \
  X(FIX, MTE1)                \
  X(FIX, FIX)

namespace AscendC {

#define ASCEND_TWIN_NAME(from, to) from##_##to,
enum class HardEvent : uint8_t { ASCEND_TWIN_EVENTS(ASCEND_TWIN_NAME) MAX };
#undef ASCEND_TWIN_NAME

namespace twin {

constexpr ascend_twin::Pipe S = ascend_twin::Pipe::kS;
constexpr ascend_twin::Pipe V = ascend_twin::Pipe::kV;
constexpr ascend_twin::Pipe M = ascend_twin::Pipe::kM;
constexpr ascend_twin::Pipe MTE1 = ascend_twin::Pipe::kMte1;
constexpr ascend_twin::Pipe MTE2 = ascend_twin::Pipe::kMte2;
constexpr ascend_twin::Pipe MTE3 = ascend_twin::Pipe::kMte3;
constexpr ascend_twin::Pipe FIX = ascend_twin::Pipe::kFix;

#define ASCEND_TWIN_PAIR(from, to) {from, to},
constexpr ascend_twin::PipeEvent kEvents[] = {
    ASCEND_TWIN_EVENTS(ASCEND_TWIN_PAIR)};
#undef ASCEND_TWIN_PAIR

constexpr ascend_twin::PipeEvent EventOf(HardEvent event) {
  return kEvents[static_cast<int>(event)];
}

constexpr ascend_twin::Pipe PipeOf(pipe_t pipe) {
  constexpr ascend_twin::Pipe kPipes[] = {S, V, M, MTE1, MTE2, MTE3, S, FIX};
  return kPipes[pipe];
}

}  // namespace twin

template <HardEvent event>
void SetFlag(int32_t id, Site site = Site::Here()) {
  ascend_twin::SetFlag(twin::EventOf(event), id, site);
}

template <HardEvent event>
void WaitFlag(int32_t id, Site site = Site::Here()) {
  ascend_twin::WaitFlag(twin::EventOf(event), id, site);
}

template <pipe_t pipe>
void PipeBarrier(Site site = Site::Here()) {
  if (pipe == PIPE_ALL) return ascend_twin::BarrierAll(site);
  ascend_twin::Barrier(twin::PipeOf(pipe), site);
}

template <uint8_t mode, pipe_t pipe>
void CrossCoreSetFlag(uint16_t id, Site site = Site::Here()) {
  static_assert(pipe != PIPE_S && pipe != PIPE_ALL, "a queue of the core");
  ascend_twin::CrossSet(mode, twin::PipeOf(pipe), id, site);
}

template <uint8_t mode = 0, pipe_t pipe = PIPE_S>
void CrossCoreWaitFlag(uint16_t id, Site site = Site::Here()) {
  ascend_twin::CrossWait(id, site);
}

template <bool is_aiv_only = true>
void SyncAll(Site site = Site::Here()) {
  ascend_twin::SyncCores(is_aiv_only, site);
}

enum class CacheLine : uint64_t { SINGLE_CACHE_LINE, ENTIRE_DATA_CACHE };
enum class DcciDst : uint64_t {
  CACHELINE_ALL,
  CACHELINE_UB,
  CACHELINE_OUT,
  CACHELINE_ATOMIC
};
enum class MemDsbT : uint8_t { ALL, DDR, UB, SEQ };

template <typename T, CacheLine lines, DcciDst dst = DcciDst::CACHELINE_OUT>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& tensor,
                              Site site = Site::Here()) {
  static_assert(dst == DcciDst::CACHELINE_OUT, "global memory");
  if (lines == CacheLine::ENTIRE_DATA_CACHE) {
    return ascend_twin::CleanAndInvalidateAll(site);
  }
  ascend_twin::CleanAndInvalidateLine(tensor.begin(), site);
}

template <MemDsbT what>
void DataSyncBarrier() {
  if (what == MemDsbT::ALL || what == MemDsbT::DDR) {
    ascend_twin::WriteBacksDone();
  }
}

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_API_FLAGS_AND_BARRIERS_H_
