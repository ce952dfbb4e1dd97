#include "backend_ascend/twin/engine/sync.h"

#include <string>
#include <utility>

#include "backend_ascend/twin/engine/machine.h"

namespace ascend_twin {
namespace {

constexpr const char* kAivEvents[] = {
    "MTE2_V", "V_MTE2", "MTE3_V", "V_MTE3", "V_V",    "MTE3_MTE2", "MTE2_MTE3",
    "S_V",    "V_S",    "S_MTE2", "MTE2_S", "S_MTE3", "MTE3_S"};
constexpr const char* kAicEvents[] = {
    "MTE2_MTE1", "MTE1_MTE2", "MTE1_M",   "M_MTE1",   "MTE3_MTE1", "MTE1_MTE3",
    "MTE2_M",    "M_MTE2",    "M_FIX",    "FIX_M",    "MTE3_MTE2", "MTE2_MTE3",
    "S_MTE2",    "MTE2_S",    "S_MTE3",   "MTE3_S",   "MTE2_FIX",  "FIX_MTE2",
    "FIX_S",     "M_S",       "FIX_MTE3", "MTE1_FIX", "FIX_MTE1",  "FIX_FIX"};

template <size_t kCount>
bool Lists(const char* const (&events)[kCount], const std::string& name) {
  for (const char* const event : events) {
    if (name == event) return true;
  }
  return false;
}

Core& ThisCore() { return ThisMachine()->core(); }

void CheckFlag(const char* call, PipeEvent event, int32_t id, Site site) {
  const Core& core = ThisCore();
  if (!core.initialised) {
    Refuse(call, site,
           "expected InitSocState() or a TPipe before the first flag");
  }
  const std::string name = EventName(event);
  const bool known = core.name.type == CoreType::kAiv ? Lists(kAivEvents, name)
                                                      : Lists(kAicEvents, name);
  if (!known) {
    Refuse(call, site,
           "event: expected one of an " + std::string(NameOf(core.name.type)) +
               ", got " + name);
  }
  const bool scalar = event.from == Pipe::kS || event.to == Pipe::kS;
  if (scalar && core.name.type == CoreType::kAic &&
      ThisMachine()->spec().no_aic_scalar_flags) {
    Refuse(call, site,
           "event by no_aic_scalar_flags: expected one between queues of an "
           "AIC, got " +
               name);
  }
  // 6 and 7 are the compiler's where no TPipe hands out ids.
  const int32_t end = core.uses_tpipe ? kNumFlagIds : 6;
  if (id < 0 || id >= end) {
    Refuse(call, site,
           "id: expected 0 to " + std::to_string(end - 1) + ", got " +
               std::to_string(id));
  }
}

Queued MakeQueued(Queued::Kind kind, const char* call, Pipe pipe, Site site) {
  Queued queued;
  queued.kind = kind;
  queued.work.name = call;
  queued.work.pipe = pipe;
  queued.work.site = site;
  return queued;
}

}  // namespace

bool HasPipe(CoreType type, Pipe pipe) {
  switch (pipe) {
    case Pipe::kV:
      return type == CoreType::kAiv;
    case Pipe::kMte1:
    case Pipe::kM:
    case Pipe::kFix:
      return type == CoreType::kAic;
    default:
      return true;
  }
}

void SetFlag(PipeEvent event, int32_t id, Site site) {
  CheckFlag("SetFlag", event, id, site);
  Machine& machine = *ThisMachine();
  if (event.from == Pipe::kS) return machine.SetByScalar(event, id, site);
  Queued queued = MakeQueued(Queued::kSet, "SetFlag", event.from, site);
  queued.event = event;
  queued.id = id;
  machine.Enqueue(std::move(queued));
}

void WaitFlag(PipeEvent event, int32_t id, Site site) {
  CheckFlag("WaitFlag", event, id, site);
  Machine& machine = *ThisMachine();
  ++machine.CountsNow().waits;
  if (event.to == Pipe::kS) return machine.WaitByScalar(event, id, site);
  Queued queued = MakeQueued(Queued::kWait, "WaitFlag", event.to, site);
  queued.event = event;
  queued.id = id;
  machine.Enqueue(std::move(queued));
}

namespace {

void UnitFlag(Queued::Kind kind, PipeEvent event, Site site) {
  Queued queued = MakeQueued(
      kind, "unitFlag", kind == Queued::kSet ? event.from : event.to, site);
  queued.event = event;
  queued.id = kNumFlagIds;
  ThisMachine()->Enqueue(std::move(queued));
}

void CheckQueue(const char* call, Pipe pipe, Site site) {
  const CoreType type = ThisCore().name.type;
  if (pipe != Pipe::kS && HasPipe(type, pipe)) return;
  Refuse(call, site,
         std::string("pipe: expected a queue of an ") + NameOf(type) +
             ", got " + NameOf(pipe));
}

constexpr PipeEvent kFull{Pipe::kM, Pipe::kFix};
constexpr PipeEvent kFree{Pipe::kFix, Pipe::kM};

}  // namespace

void UnitMmad(bool last, Site site, const std::function<void()>& issue) {
  Core& core = ThisMachine()->core();
  if (core.unit_free > 0) {
    --core.unit_free;
    UnitFlag(Queued::kWait, kFree, site);
  }
  issue();
  if (!last) return;
  UnitFlag(Queued::kSet, kFull, site);
  ++core.unit_full;
}

void UnitResult(Site site, const std::function<void()>& issue) {
  Core& core = ThisMachine()->core();
  if (core.unit_full == 0) {
    Refuse("Fixpipe", site,
           "unitFlag: expected a Mmad of unitFlag 3 before, for which it "
           "waits; got none");
  }
  --core.unit_full;
  UnitFlag(Queued::kWait, kFull, site);
  issue();
  UnitFlag(Queued::kSet, kFree, site);
  ++core.unit_free;
}

void Barrier(Pipe pipe, Site site) {
  Machine& machine = *ThisMachine();
  CheckQueue("PipeBarrier", pipe, site);
  ++machine.CountsNow().barriers;
  machine.Enqueue(MakeQueued(Queued::kBarrier, "PipeBarrier", pipe, site));
}

void BarrierAll(Site site) {
  Machine& machine = *ThisMachine();
  ++machine.CountsNow().barriers;
  machine.Drain(site);
}

namespace {

// Those of SyncAll, which kernels of one type of core have, too.
constexpr int32_t kFirstSyncAllId = 11;
constexpr int32_t kLastSyncAllId = 14;

void CheckCross(const char* call, int32_t id, Site site) {
  const TaskType type = ThisMachine()->spec().type;
  const bool mix =
      type == TaskType::kMixAic1Aiv1 || type == TaskType::kMixAic1Aiv2;
  if (!mix && (id < kFirstSyncAllId || id > kLastSyncAllId)) {
    Refuse(call, site, "expected a MIX kernel");
  }
  if (id < 0 || id >= kNumCrossIds) {
    Refuse(call, site, "id: expected 0 to 15, got " + std::to_string(id));
  }
}

void Send(int32_t mode, Pipe pipe, int32_t id, Site site) {
  Queued queued = MakeQueued(Queued::kCrossSet, "CrossCoreSetFlag", pipe, site);
  queued.mode = mode;
  queued.id = id;
  ThisMachine()->Enqueue(std::move(queued));
}

}  // namespace

void CrossSet(int32_t mode, Pipe pipe, int32_t id, Site site) {
  const CoreType type = ThisCore().name.type;
  CheckCross("CrossCoreSetFlag", id, site);
  if (mode < 0 || mode > 2 || (mode == 1 && type == CoreType::kAic)) {
    Refuse("CrossCoreSetFlag", site,
           std::string("mode: expected 0, 1 (AIV) or 2, got ") +
               std::to_string(mode) + " on an " + NameOf(type));
  }
  CheckQueue("CrossCoreSetFlag", pipe, site);
  Send(mode, pipe, id, site);
}

void CrossWait(int32_t id, Site site) {
  CheckCross("CrossCoreWaitFlag", id, site);
  Machine& machine = *ThisMachine();
  ++machine.CountsNow().waits;
  machine.CrossWait(id, site);
}

void SyncCores(bool only_aiv, Site site) {
  Machine& machine = *ThisMachine();
  const bool cube = machine.core().name.type == CoreType::kAic;
  if (cube && only_aiv) {
    Refuse("SyncAll<true>", site, "expected an AIV, got an AIC");
  }
  BarrierAll(site);
  // The ids that the hardware's form takes.
  const Pipe pipe = cube ? Pipe::kFix : Pipe::kMte3;
  const int32_t own = cube ? 11 : 12;
  Send(0, pipe, own, site);
  machine.CrossWait(own, site);
  if (only_aiv) return machine.Drain(site);
  Send(2, pipe, cube ? 13 : 14, site);
  machine.CrossWait(cube ? 14 : 13, site);
  machine.Drain(site);
}

void SetPipeObject(void* pipe) { ThisCore().pipe_object = pipe; }
void* PipeObject() { return ThisCore().pipe_object; }

void WriteBacksDone() { ThisMachine()->WriteBacksDone(); }

int64_t Cycle(Site site) {
  ThisMachine()->Poll("GetSystemCycle", site);
  return static_cast<int64_t>(ThisMachine()->NextCycle());
}

void Initialise(bool tpipe) {
  Core& core = ThisCore();
  core.initialised = true;
  core.uses_tpipe |= tpipe;
  core.atomic = Type::kNone;
}

int64_t ThisBlock() { return ThisCore().name.index; }
int64_t NumBlocks() { return ThisMachine()->spec().blocks; }
int64_t NumSubBlocks() {
  if (ThisCore().name.type == CoreType::kAic) return 1;
  return ThisMachine()->spec().type == TaskType::kMixAic1Aiv2 ? 2 : 1;
}
int64_t ThisSubBlock() {
  const Core& core = ThisCore();
  return core.name.type == CoreType::kAic ? 0
                                          : core.name.index % NumSubBlocks();
}

}  // namespace ascend_twin
