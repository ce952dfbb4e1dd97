// The cores of a launch, and what an instruction does to their memories.

#include "backend_ascend/twin/engine/machine.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ascend_twin {
namespace {

struct Size {
  Memory memory;
  uint64_t bytes;
};
constexpr Size kAicSizes[] = {{Memory::kL0A, 64 << 10},
                              {Memory::kL0B, 64 << 10},
                              {Memory::kL0C, 128 << 10},
                              {Memory::kBias, 1 << 10}};
constexpr uint64_t kUbBytes = 192 << 10;
constexpr uint64_t kUbBelowReserved = 184 << 10;
constexpr uint64_t kL1Bytes = 512 << 10;

Chip MakeChip(uint64_t bytes, bool hazards) {
  Chip chip;
  chip.size = bytes;
  // Nobody wrote it yet: NaN in every type.
  chip.bytes.reset(new char[bytes + kLineBytes]);
  std::memset(chip.bytes.get(), 0xff, bytes + kLineBytes);
  if (hazards) chip.shadow = std::make_unique<Shadow>(bytes, false);
  return chip;
}

}  // namespace

Machine::Machine(const LaunchSpec& spec)
    : spec_(spec), globals_(spec.globals, spec.hazards), random_(spec.seed) {
  MakeCores();
}

void Machine::MakeCores() {
  const bool cube = spec_.type != TaskType::kAivOnly;
  const int aivs = spec_.type == TaskType::kAicOnly       ? 0
                   : spec_.type == TaskType::kMixAic1Aiv2 ? 2
                                                          : 1;
  for (int32_t rank = 0; rank < spec_.ranks; ++rank) {
    for (int32_t block = 0; block < spec_.blocks; ++block) {
      if (cube) AddCore({rank, CoreType::kAic, block}, block);
      for (int i = 0; i < aivs; ++i) {
        AddCore({rank, CoreType::kAiv, block * aivs + i}, block);
      }
    }
  }
}

void Machine::AddCore(const CoreName& name, int32_t block) {
  auto core = std::make_unique<Core>();
  core->name = name;
  core->block = block;
  core->numerics = spec_.numerics;
  core->first_agent = static_cast<uint32_t>(cores_.size() * kNumAgents);
  const auto add = [&](Memory memory, uint64_t bytes) {
    core->chips[static_cast<int>(memory)] = MakeChip(bytes, spec_.hazards);
  };
  if (name.type == CoreType::kAic) {
    add(Memory::kL1, kL1Bytes - spec_.reserved_l1);
    for (const Size& size : kAicSizes) add(size.memory, size.bytes);
  } else {
    add(Memory::kUb, spec_.reserved_ub ? kUbBelowReserved
                                       : kUbBytes - spec_.reserved_ub_end);
  }
  cores_.push_back(std::move(core));
}

uint32_t Machine::AgentOf(const Core& core, Pipe pipe) const {
  return core.first_agent + static_cast<uint32_t>(pipe);
}

Clock Machine::Complete(Core* core, Pipe pipe) const {
  Clock known = core->pipe(pipe).known;
  known.Raise(AgentOf(*core, pipe), core->pipe(pipe).count);
  return known;
}

Place Machine::Here(const char* call, Site site) const {
  return {current_->name, Pipe::kS, call, site, current_->tag};
}

Place PlaceOf(const Core& core, const Queued& queued) {
  return {core.name, queued.work.pipe, queued.work.name, queued.work.site,
          queued.tag};
}

Counts& Machine::CountsOf(Core* core, int64_t tag) {
  if (core->counted == nullptr || core->counted->tag != tag) {
    Counts& counts = core->counts[tag];
    counts.core = core->name;
    counts.tag = tag;
    core->counted = &counts;
  }
  return *core->counted;
}

// -- Work of a pipe.

void Machine::Execute(Core* core, Queued* queued) {
  PipeState& pipe = core->pipe(queued->work.pipe);
  if (spec_.hazards && queued->known != pipe.joined) {
    pipe.known.Join(*queued->known);
    pipe.joined = queued->known;
  }
  PipeTime& time = pipe.time;
  time.now = std::max(time.now, queued->issued);
  if (queued->kind == Queued::kWait) {
    time.now = std::max(time.now, core->flag(queued->event, queued->id).time);
  } else if (queued->kind == Queued::kBarrier) {
    time.now = std::max(time.now, time.seen);
  }
  time.left[time.num_left++ % kQueueDepth] = time.now;
  switch (queued->kind) {
    case Queued::kWork:
      return RunWork(core, queued);
    case Queued::kSet:
      core->flag(queued->event, queued->id).time =
          std::max(time.now, time.seen);
      return Set(core, PlaceOf(*core, *queued), queued->event, queued->id);
    case Queued::kWait:
      return Wait(core, PlaceOf(*core, *queued), queued->event, queued->id);
    case Queued::kBarrier:
      return pipe.known.Raise(AgentOf(*core, queued->work.pipe), pipe.count);
    case Queued::kCrossSet:
      return CrossSet(core, *queued);
  }
}

void Machine::RunWork(Core* core, Queued* queued) {
  const Instruction& work = queued->work;
  PipeState& pipe = core->pipe(work.pipe);
  const uint32_t number = ++pipe.count;
  pipe.worked = number;
  running_ = queued->order;
  uint32_t access = 0;
  if (spec_.hazards) {
    access = accesses_.Add({AgentOf(*core, work.pipe), number, work.atomic,
                            work.in_order, work.name, work.site, queued->tag,
                            queued->order});
  }
  const Place at = PlaceOf(*core, *queued);
  read_unwritten_ = false;
  for (const Span& span : work.reads)
    Touch(core, at, work, span, access, false);
  const std::vector<char> unwritten = Unwritten(*core, work);
  const bool held = !work.writes.empty() && HoldsMove(work);
  for (const Span& span : work.writes) {
    if (!held) Touch(core, at, work, span, access, true);
  }
  if (!unwritten.empty()) {
    const Span& to = work.writes[0];
    core->chips[static_cast<int>(to.memory)].shadow->Forget(to.begin,
                                                            unwritten);
  }
  if (spec_.auto_sync && spec_.hazards) NoteKnown(&pipe);
  if (held) {
    RunHeld(core, at, work);
  } else {
    work.run();
  }
  for (const Span& span : work.writes) {
    if (span.memory != Memory::kGm) continue;
    core->polls = 0;  // it gets somewhere
    if (held) continue;
    for (uint64_t row = 0; row < span.rows; ++row) {
      const uint64_t begin = span.begin + row * span.pitch;
      NoteWrite(at, begin, begin + span.bytes, nullptr);
    }
  }
  Count(core, *queued);
  if (spec_.takes) Take(core, *queued);
}

void Machine::Take(Core* core, const Queued& queued) {
  PipeTime& time = core->pipe(queued.work.pipe).time;
  const Seconds seconds = spec_.takes(queued.work);
  time.now += seconds.busy;
  time.seen = std::max(time.seen, time.now + seconds.latency);
  Counts& counts = CountsOf(core, queued.tag);
  counts.busy[static_cast<int>(queued.work.pipe)] += seconds.busy;
  counts.ended = std::max(counts.ended, time.seen);
  if (spec_.on_done) {
    spec_.on_done(core->name, queued.work, time.now - seconds.busy, time.now);
  }
}

void Machine::Count(Core* core, const Queued& queued) {
  const Instruction& work = queued.work;
  ++cycles_;
  ++progress_;
  ++instructions_;
  Counts& counts = CountsOf(core, queued.tag);
  const int index = static_cast<int>(work.pipe);
  ++counts.instructions[index];
  counts.bytes[index] += work.work.bytes;
  counts.cube_steps += work.work.cube_steps;
  counts.vector_steps += work.work.vector_steps;
}

void Machine::Touch(Core* core, const Place& at, const Instruction& work,
                    const Span& span, uint32_t access, bool writes) {
  Clock& known = core->pipe(work.pipe).known;
  for (uint64_t row = 0; row < span.rows && span.bytes > 0; ++row) {
    const uint64_t begin = span.begin + row * span.pitch;
    const uint64_t end = begin + span.bytes;
    if (span.memory == Memory::kGm) {
      const Global* global = globals_.Find(begin, end);
      if (global->range.kind == GlobalKind::kFlags) {
        if (writes) CompleteHeldAt(core, begin, end);
        TouchFlags(begin, end, &known, writes, work.atomic);
        continue;
      }
    }
    if (!spec_.hazards) continue;
    TouchRow(core, at, span.memory, begin, end, access, known, writes,
             !span.loose);
  }
}

namespace {

// Of those in the memory of the first.
uint64_t EndOf(const std::vector<Span>& spans) {
  uint64_t end = 0;
  for (const Span& span : spans) {
    if (span.memory != spans[0].memory) continue;
    end = std::max(end, span.begin + (span.rows - 1) * span.pitch + span.bytes);
  }
  return end;
}

}  // namespace

std::vector<char> Machine::Unwritten(const Core& core,
                                     const Instruction& work) const {
  if (!spec_.hazards || !work.spread) return {};
  if (work.spreads_reads && !read_unwritten_) return {};
  const auto marks = [&core](const std::vector<Span>& spans) {
    const Span& first = spans[0];
    return core.chips[static_cast<int>(first.memory)].shadow->Unwritten(
        first.begin, EndOf(spans));
  };
  std::vector<char> to = marks(work.writes);
  work.spread(marks(work.reads).data(), to.data());
  return to;
}

void Machine::TouchFlags(uint64_t begin, uint64_t end, Clock* known,
                         bool writes, bool atomic) {
  if (writes) ++flags_version_;
  if (!spec_.hazards) return;
  if (writes) {
    globals_.Publish(begin, end, *known, atomic);
  } else {
    globals_.Acquire(begin, end, known);
  }
}

void Machine::TouchRow(Core* core, const Place& at, Memory memory,
                       uint64_t begin, uint64_t end, uint32_t access,
                       const Clock& known, bool writes, bool defined) {
  uint64_t base = 0;
  Shadow* shadow = core->chips[static_cast<int>(memory)].shadow.get();
  if (memory == Memory::kGm) {
    const Global* global = globals_.Find(begin, begin + 1);
    base = global->range.begin;
    shadow = global->shadow.get();
  }
  if (shadow == nullptr) return;
  begin -= base;
  end -= base;
  Conflict conflict;
  do {
    conflict = writes
                   ? shadow->Write(&accesses_, begin, end, access, known)
                   : shadow->Read(&accesses_, begin, end, access, known, true);
    // What overtakes its writer reads what nobody wrote, too.
    if (conflict.kind == Conflict::kUndefined && !defined &&
        Pending(*core,
                {memory, base + conflict.begin, conflict.end - conflict.begin},
                true, false, running_) == nullptr) {
      read_unwritten_ = true;
      conflict = shadow->Read(&accesses_, begin, end, access, known, false);
    }
  } while (conflict.other != 0 &&
           Inserted(core, at, accesses_.At(conflict.other)));
  if (conflict.kind != Conflict::kNone) {
    FailConflict(at, memory, base, conflict, writes);
  }
}

}  // namespace ascend_twin
