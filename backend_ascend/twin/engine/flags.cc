// The flags of a core and between cores: what is set, and what whoever waits
// learns by it.

#include <string>
#include <utility>

#include "backend_ascend/twin/engine/machine.h"

namespace ascend_twin {

void Machine::Set(Core* core, const Place& at, PipeEvent event, int32_t id) {
  Flag& flag = core->flag(event, id);
  const std::string name =
      "SetFlag<" + EventName(event) + ">(" + std::to_string(id) + ")";
  if (spec_.flags_count || id == kNumFlagIds) {
    ++progress_;
    flag.setter = at;
    const Clock known = spec_.hazards ? Complete(core, at.pipe) : Clock();
    if (flag.set) {
      flag.more.push_back(known);
    } else {
      flag.known = known;
    }
    flag.set = true;
    return;
  }
  if (flag.set) {
    FailAt(ErrorKind::kFlag, at,
           name + ": the flag is set already, at " + PlaceText(flag.setter) +
               ", and no WaitFlag has cleared it",
           {flag.setter}, EventName(event));
  }
  if (spec_.hazards) {
    const Clock known = Complete(core, at.pipe);
    const uint32_t waiter = event.to == Pipe::kS
                                ? core->first_agent + kInOrderAgent
                                : AgentOf(*core, event.to);
    if (known[waiter] < flag.wait_number) {
      const std::string back = EventName({event.to, event.from});
      FailAt(ErrorKind::kFlag, at,
             name + ": nothing orders it after the WaitFlag at " +
                 PlaceText(flag.waiter) + " of the SetFlag at " +
                 PlaceText(flag.setter) +
                 ", so it may come to a flag that is " +
                 "still set: expected SetFlag/WaitFlag<" + back + "> between",
             {flag.setter, flag.waiter}, back);
    }
    flag.known = known;
  }
  flag.set = true;
  flag.setter = at;
  ++progress_;
}

void Machine::Wait(Core* core, const Place& at, PipeEvent event, int32_t id) {
  Flag& flag = core->flag(event, id);
  flag.set = !flag.more.empty();
  flag.waiter = at;
  ++progress_;
  if (spec_.hazards) core->pipe(at.pipe).known.Join(flag.known);
  if (flag.set) {
    flag.known = std::move(flag.more.front());
    flag.more.pop_front();
  }
  if (!spec_.hazards) return;
  if (at.pipe == Pipe::kS) {
    flag.wait_number = ++core->in_order_count;
    core->scalar_known().Raise(core->first_agent + kInOrderAgent,
                               core->in_order_count);
    ScalarLearned(core);
  } else {
    flag.wait_number = ++core->pipe(at.pipe).count;
  }
}

namespace {

// The cores whose sets of a mode count together.
bool SameGroup(const Core& a, const Core& b, int mode) {
  if (a.name.rank != b.name.rank || a.name.type != b.name.type) return false;
  return mode == 0 || a.block == b.block;
}

bool IsTarget(const Core& from, const Core& to, int mode) {
  if (mode != 2) return SameGroup(from, to, mode);
  return from.name.rank == to.name.rank && from.block == to.block &&
         from.name.type != to.name.type;
}

}  // namespace

void Machine::CrossSet(Core* core, const Queued& queued) {
  const int mode = queued.mode;
  const int32_t id = queued.id;
  CrossFlag& flag = core->cross[id];
  flag.setter = PlaceOf(*core, queued);
  flag.pending[mode].push_back(Complete(core, queued.work.pipe));
  Clock known;
  for (const auto& other : cores_) {
    if (!SameGroup(*core, *other, mode)) continue;
    if (other->cross[id].pending[mode].empty()) return;
    known.Join(other->cross[id].pending[mode].front());
  }
  for (const auto& other : cores_) {
    if (SameGroup(*core, *other, mode)) {
      other->cross[id].pending[mode].pop_front();
    }
    if (IsTarget(*core, *other, mode)) {
      Deliver(other.get(), id, known, flag.setter);
    }
  }
  ++progress_;
}

void Machine::Deliver(Core* to, int32_t id, const Clock& known,
                      const Place& setter) {
  CrossFlag& flag = to->cross[id];
  if (flag.sets.size() == 15) {
    FailAt(ErrorKind::kCrossFlag, setter,
           "CrossCoreSetFlag(" + std::to_string(id) +
               "): " + CoreText(to->name) +
               " has 15 sets that it has not waited for: expected at most 15",
           {}, "a flag back");
  }
  flag.setter = setter;
  if (spec_.cross_flags_merge && !flag.sets.empty()) return;
  flag.sets.push_back(known);
}

}  // namespace ascend_twin
