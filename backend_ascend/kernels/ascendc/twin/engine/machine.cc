// What instructions and flags do to the state of a launch.

#include "backend_ascend/kernels/ascendc/twin/engine/machine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend_ascend/kernels/ascendc/twin/engine/errors.h"

namespace ascend_twin {
namespace {

constexpr int kUnitShift = 1;  // accesses are told apart by 2 bytes

struct Size {
  Memory memory;
  uint64_t bytes;
};
constexpr Size kAicSizes[] = {{Memory::kL0A, 64 << 10},
                              {Memory::kL0B, 64 << 10},
                              {Memory::kL0C, 128 << 10},
                              {Memory::kBias, 1 << 10}};
constexpr uint64_t kUbBytes = (192 << 10) - 256;
constexpr uint64_t kUbBelowReserved = 184 << 10;
constexpr uint64_t kL1Bytes = 512 << 10;

Chip MakeChip(uint64_t bytes, bool hazards) {
  Chip chip;
  chip.size = bytes;
  // Nobody wrote it yet: NaN in every type.
  chip.bytes.reset(new char[bytes + kLineBytes]);
  std::memset(chip.bytes.get(), 0xff, bytes + kLineBytes);
  if (hazards) chip.shadow = std::make_unique<Shadow>(bytes, kUnitShift, false);
  return chip;
}

uint64_t Mask(uint64_t first, uint64_t count) {
  const uint64_t ones = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
  return ones << first;
}

}  // namespace

Machine::Machine(const LaunchSpec& spec)
    : spec_(spec),
      globals_(spec.globals, kUnitShift, spec.hazards),
      random_(spec.seed) {
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
    add(Memory::kUb, spec_.reserved_ub ? kUbBelowReserved : kUbBytes);
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
  switch (queued->kind) {
    case Queued::kWork:
      return RunWork(core, queued);
    case Queued::kSet:
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
  running_ = queued->order;
  uint32_t access = 0;
  if (spec_.hazards) {
    access = accesses_.Add({AgentOf(*core, work.pipe), number, work.atomic,
                            work.in_order, work.name, work.site, queued->tag,
                            queued->order});
  }
  const Place at = PlaceOf(*core, *queued);
  for (const Span& span : work.reads)
    Touch(core, at, work, span, access, false);
  for (const Span& span : work.writes)
    Touch(core, at, work, span, access, true);
  work.run();
  for (const Span& span : work.writes) {
    if (span.memory != Memory::kGm) continue;
    core->polls = 0;  // it gets somewhere
    for (uint64_t row = 0; row < span.rows; ++row) {
      const uint64_t begin = span.begin + row * span.pitch;
      NoteWrite(at, begin, begin + span.bytes, nullptr);
    }
  }
  ++cycles_;
  ++progress_;
  ++instructions_;
  Counts& counts = CountsOf(core, queued->tag);
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
        TouchFlags(begin, end, &known, writes, work.atomic);
        continue;
      }
    }
    if (!spec_.hazards) continue;
    TouchRow(core, at, span.memory, begin, end, access, known, writes,
             work.reads_defined);
  }
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
  if (((begin - base) | (end - base)) & ((1 << kUnitShift) - 1)) {
    FailSpan(ErrorKind::kRefused, at, memory, begin, end,
             "expected whole units of 2 bytes");
  }
  const Conflict conflict =
      writes
          ? shadow->Write(&accesses_, begin - base, end - base, access, known)
          : shadow->Read(&accesses_, begin - base, end - base, access, known,
                         defined);
  if (conflict.kind != Conflict::kNone) {
    FailConflict(at, memory, base, conflict, writes);
  }
}

// A line that a core has loaded is stale once others write to memory.
void Machine::NoteWrite(const Place& at, uint64_t begin, uint64_t end,
                        const Core* but) {
  if (cached_.empty() || begin == end) return;
  for (uint64_t line = begin / kLineBytes; line <= (end - 1) / kLineBytes;
       ++line) {
    const auto held = cached_.find(line);
    if (held == cached_.end()) continue;
    const uint64_t first = std::max(begin, line * kLineBytes);
    const uint64_t last = std::min(end, (line + 1) * kLineBytes);
    for (Core* const core : held->second) {
      if (core == but) continue;
      Line& copy = core->lines.at(line);
      copy.stale |= Mask(first % kLineBytes, last - first) & copy.valid;
      copy.writer = at;
    }
    ++flags_version_;
  }
}

// -- Flags.

void Machine::Set(Core* core, const Place& at, PipeEvent event, int32_t id) {
  Flag& flag = core->flag(event, id);
  const std::string name =
      "SetFlag<" + EventName(event) + ">(" + std::to_string(id) + ")";
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
  flag.set = false;
  flag.waiter = at;
  ++progress_;
  if (!spec_.hazards) return;
  core->pipe(at.pipe).known.Join(flag.known);
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

// -- The scalar unit.

Line& Machine::LineOf(Core* core, uint64_t begin, uint64_t bytes,
                      const Global& global) {
  const uint64_t number = begin / kLineBytes;
  Line& line = core->lines[number];
  const uint64_t mask = Mask(begin % kLineBytes, bytes);
  if ((line.valid & mask) == mask) return line;
  if (line.valid == 0) cached_[number].push_back(core);
  // All of the line that lies in the range.
  const uint64_t first = std::max(number * kLineBytes, global.range.begin);
  const uint64_t last = std::min((number + 1) * kLineBytes, global.end());
  std::memcpy(line.bytes + first % kLineBytes,
              reinterpret_cast<const char*>(first), last - first);
  line.valid |= Mask(first % kLineBytes, last - first);
  return line;
}

Global& Machine::GlobalOf(const Place& at, uint64_t begin, uint64_t end) {
  Global* const global = globals_.Find(begin, end);
  if (global == nullptr) {
    FailSpan(
        ErrorKind::kBounds, at, Memory::kGm, begin, end,
        "expected bytes of a range; the nearest is " + globals_.Nearest(begin));
  }
  return *global;
}

void Machine::ScalarOnChip(Memory memory, uint64_t begin, uint64_t bytes,
                           const Place& at, bool writes) {
  Core* const core = current_;
  const Chip& chip = core->chips[static_cast<int>(memory)];
  if (memory != Memory::kUb || chip.size == 0) {
    FailAt(ErrorKind::kRefused, at,
           std::string(at.call) + ": expected a tensor in UB of an AIV, got " +
               NameOf(memory) + " of an " + NameOf(core->name.type));
  }
  if (begin + bytes > chip.size) {
    FailSpan(ErrorKind::kBounds, at, memory, begin, begin + bytes,
             "expected bytes below " + std::to_string(chip.size));
  }
  running_ = ++order_;
  if (!spec_.hazards) return;
  const uint32_t access =
      accesses_.Add({AgentOf(*core, Pipe::kS), ++core->pipes[0].count, false,
                     true, at.call, at.site, at.tag, running_});
  // Units of 2 bytes.
  TouchRow(core, at, memory, begin & ~uint64_t{1}, (begin + bytes + 1) & ~1ull,
           access, core->scalar_known(), writes, true);
}

void Machine::Load(Memory memory, uint64_t begin, uint64_t bytes, void* to,
                   Site site) {
  Core* const core = current_;
  const Place at = Here("GetValue", site);
  if (memory != Memory::kGm) {
    ScalarOnChip(memory, begin, bytes, at, false);
    std::memcpy(to, core->chips[static_cast<int>(memory)].bytes.get() + begin,
                bytes);
    return;
  }
  const Global& global = GlobalOf(at, begin, begin + bytes);
  if (global.range.kind == GlobalKind::kConstant) {
    std::memcpy(to, reinterpret_cast<const char*>(begin), bytes);
    return;
  }
  Line& line = LineOf(core, begin, bytes, global);
  const uint64_t mask = Mask(begin % kLineBytes, bytes);
  if (line.stale & mask) FailStale(at, begin, bytes, line);
  if (global.range.kind == GlobalKind::kFlags) {
    core->waiting.address = begin;
    ++CountsOf(core, core->tag).polls;
    if (spec_.hazards) {
      globals_.Acquire(begin, begin + bytes, &core->scalar_known());
      ScalarLearned(core);
    }
  } else if (spec_.hazards && (line.dirty & mask) == 0) {
    LoadShadowed(core, at, begin, bytes);
  }
  std::memcpy(to, line.bytes + begin % kLineBytes, bytes);
}

void Machine::LoadShadowed(Core* core, const Place& at, uint64_t begin,
                           uint64_t bytes) {
  running_ = ++order_;
  const uint32_t agent = core->first_agent + kInOrderAgent;
  const uint32_t access =
      accesses_.Add({agent, ++core->in_order_count, false, true, at.call,
                     at.site, at.tag, running_});
  const uint64_t from = begin & ~uint64_t{1};
  TouchRow(core, at, Memory::kGm, from, (begin + bytes + 1) & ~1ull, access,
           core->scalar_known(), false, true);
  core->scalar_known().Raise(agent, core->in_order_count);
  ScalarLearned(core);
}

void Machine::Store(Memory memory, uint64_t begin, uint64_t bytes,
                    const void* from, Site site) {
  Core* const core = current_;
  const Place at = Here("SetValue", site);
  if (memory != Memory::kGm) {
    ScalarOnChip(memory, begin, bytes, at, true);
    std::memcpy(core->chips[static_cast<int>(memory)].bytes.get() + begin, from,
                bytes);
    return;
  }
  const Global& global = GlobalOf(at, begin, begin + bytes);
  if (global.range.kind == GlobalKind::kConstant) {
    FailSpan(ErrorKind::kRefused, at, memory, begin, begin + bytes,
             "expected no write: the range is constant");
  }
  Line& line = LineOf(core, begin, bytes, global);
  line.dirty |= Mask(begin % kLineBytes, bytes);
  line.store = site;
  std::memcpy(line.bytes + begin % kLineBytes, from, bytes);
}

void Machine::WriteBack(uint64_t number, Site site) {
  Core* const core = current_;
  const auto held = core->lines.find(number);
  if (held == core->lines.end()) return;
  Line line = held->second;
  core->lines.erase(held);
  std::vector<Core*>& holders = cached_[number];
  holders.erase(std::find(holders.begin(), holders.end(), core));
  if (holders.empty()) cached_.erase(number);
  if (line.dirty == 0) return;
  const Place at = Here("DataCacheCleanAndInvalid", site);
  if (line.stale != 0) FailDirty(at, number, line);
  for (uint64_t i = 0; i < kLineBytes;) {
    if ((line.dirty >> i & 1) == 0) {
      ++i;
      continue;
    }
    uint64_t end = i;
    while (end < kLineBytes && (line.dirty >> end & 1)) ++end;
    WriteBackRun(at, number * kLineBytes + i, line.bytes + i, end - i);
    i = end;
  }
}

void Machine::WriteBackRun(const Place& at, uint64_t begin, const char* bytes,
                           uint64_t count) {
  Core* const core = current_;
  const Global& global = GlobalOf(at, begin, begin + count);
  if (global.range.kind == GlobalKind::kFlags) {
    TouchFlags(begin, begin + count, &core->scalar_known(), true, false);
  } else if (spec_.hazards) {
    const uint32_t access = accesses_.Add(
        {core->first_agent + kWriteBackAgent, ++core->write_back_count, false,
         true, at.call, at.site, at.tag, running_});
    TouchRow(core, at, Memory::kGm, begin, begin + count, access,
             core->scalar_known(), true, true);
  }
  std::memcpy(reinterpret_cast<char*>(begin), bytes, count);
  NoteWrite(at, begin, begin + count, core);
  ++flags_version_;
}

void Machine::WriteBackAll(Site site) {
  std::vector<uint64_t> numbers;
  for (const auto& [number, line] : current_->lines) numbers.push_back(number);
  std::sort(numbers.begin(), numbers.end());
  for (const uint64_t number : numbers) WriteBack(number, site);
}

void Machine::WriteBacksDone() {
  current_->scalar_known().Raise(current_->first_agent + kWriteBackAgent,
                                 current_->write_back_count);
  ScalarLearned(current_);
}

}  // namespace ascend_twin
