// Tells who watches a launch what orders and what is ordered.

#include <algorithm>

#include "backend_ascend/twin/engine/machine.h"

namespace ascend_twin {

void Machine::TellAs(Event::Kind kind, Pipe other, int32_t id, int32_t mode,
                     const Instruction& work) {
  spec_.on_event({kind, current_->name, current_->block, work.pipe, other, id,
                  mode, &work});
}

bool Machine::IsPolled(const Span& span) {
  if (span.memory != Memory::kGm || span.rows * span.bytes == 0) return false;
  const Global* const global =
      globals_.Find(span.begin, span.begin + span.bytes);
  return global != nullptr && global->range.kind == GlobalKind::kFlags;
}

void Machine::Tell(const Queued& queued) {
  if (!spec_.on_event) return;
  constexpr Event::Kind kKinds[] = {Event::kWork, Event::kSet, Event::kWait,
                                    Event::kBarrier, Event::kCrossSet};
  Event::Kind kind = kKinds[queued.kind];
  const auto polled = [this](const Span& span) { return IsPolled(span); };
  const Instruction& work = queued.work;
  if (std::any_of(work.reads.begin(), work.reads.end(), polled) ||
      std::any_of(work.writes.begin(), work.writes.end(), polled)) {
    kind = Event::kPolled;
  }
  const Pipe other =
      queued.kind == Queued::kWait ? queued.event.from : queued.event.to;
  TellAs(kind, other, queued.id, queued.mode, work);
}

// Of the scalar unit.
void Machine::TellFlag(Event::Kind kind, PipeEvent event, int32_t id,
                       Site site) {
  if (!spec_.on_event) return;
  Instruction work{};
  work.name = kind == Event::kSet ? "SetFlag" : "WaitFlag";
  work.pipe = Pipe::kS;
  work.site = site;
  TellAs(kind, kind == Event::kSet ? event.to : event.from, id, 0, work);
}

void Machine::Tell(Event::Kind kind, Site site, int32_t id) {
  if (!spec_.on_event) return;
  Instruction work{};
  work.name = current_->waiting.call;
  work.pipe = Pipe::kS;
  work.site = site;
  TellAs(kind, Pipe::kS, id, 0, work);
}

void Machine::TellAccess(Event::Kind kind, const Place& at, const Span& span) {
  if (!spec_.on_event) return;
  Instruction work{};
  work.name = at.call;
  work.pipe = Pipe::kS;
  work.site = at.site;
  const bool writes = kind == Event::kStore || kind == Event::kWriteBack;
  (writes ? work.writes : work.reads).push_back(span);
  TellAs(IsPolled(span) ? Event::kPolled : kind, Pipe::kS, 0, 0, work);
}

}  // namespace ascend_twin
