// What orders the pipes of a core, and the cores.

#ifndef BACKEND_ASCEND_TWIN_ENGINE_SYNC_H_
#define BACKEND_ASCEND_TWIN_ENGINE_SYNC_H_

#include <cstdint>
#include <functional>

#include "backend_ascend/twin/engine/instruction.h"

namespace ascend_twin {

struct PipeEvent {
  Pipe from;
  Pipe to;
};

bool HasPipe(CoreType type, Pipe pipe);

// SetFlag and WaitFlag: a bit of the core for each event and id.
void SetFlag(PipeEvent event, int32_t id, Site site);
void WaitFlag(PipeEvent event, int32_t id, Site site);

// unitFlag: locks of L0C that Mmad and Fixpipe hand each other, in their order.
// The hardware has one for 512 bytes, the twin one for all.
void UnitMmad(bool last, Site site, const std::function<void()>& issue);
void UnitResult(Site site, const std::function<void()>& issue);

// PipeBarrier of one pipe, and of all.
void Barrier(Pipe pipe, Site site);
void BarrierAll(Site site);

void CrossSet(int32_t mode, Pipe pipe, int32_t id, Site site);
void CrossWait(int32_t id, Site site);

// SyncAll: of all AIVs of a rank, or of all its cores.
void SyncCores(bool only_aiv, Site site);

// DataSyncBarrier: lines that were written back are in memory.
void WriteBacksDone();

// GetSystemCycle, 50 MHz.
int64_t Cycle(Site site);

// InitSocState, and TPipe's constructor.
void Initialise(bool tpipe);

// What GetTPipePtr gives, kept for the core.
void SetPipeObject(void* pipe);
void* PipeObject();

// Of the core that runs.
int64_t ThisBlock();
int64_t NumBlocks();
int64_t ThisSubBlock();
int64_t NumSubBlocks();

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_ENGINE_SYNC_H_
