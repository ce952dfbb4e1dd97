#include "backend_ascend/twin/engine/scalar.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backend_ascend/twin/engine/machine.h"

namespace ascend_twin {
namespace {

uint64_t Mask(uint64_t first, uint64_t count) {
  const uint64_t ones = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
  return ones << first;
}

}  // namespace

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
  SeeOwnHeld(*core, number * kLineBytes, &line);
  line.valid |= Mask(first % kLineBytes, last - first);
  return line;
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
  AwaitForScalar(memory, begin, begin + bytes, writes, at.call, at.site);
  running_ = ++order_;
  TellAccess(writes ? Event::kStore : Event::kLoad, at, {memory, begin, bytes});
  if (!spec_.hazards) return;
  const uint32_t access =
      accesses_.Add({AgentOf(*core, Pipe::kS), ++core->pipes[0].count, false,
                     true, at.call, at.site, at.tag, running_});
  TouchRow(core, at, memory, begin, begin + bytes, access, core->scalar_known(),
           writes, true);
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
  LoadGlobal(at, begin, bytes, to);
}

void Machine::LoadGlobal(const Place& at, uint64_t begin, uint64_t bytes,
                         void* to) {
  Core* const core = current_;
  const Global& global = GlobalOf(at, begin, begin + bytes);
  if (global.range.kind == GlobalKind::kConstant) {
    std::memcpy(to, reinterpret_cast<const char*>(begin), bytes);
    return;
  }
  AwaitForScalar(Memory::kGm, begin, begin + bytes, false, at.call, at.site);
  Line& line = LineOf(core, begin, bytes, global);
  const uint64_t mask = Mask(begin % kLineBytes, bytes);
  if (line.stale & mask) FailStale(at, begin, bytes, line);
  if ((line.dirty & mask) == 0) {
    TellAccess(Event::kGlobalLoad, at, {Memory::kGm, begin, bytes});
  }
  if (global.range.kind == GlobalKind::kFlags) {
    core->waiting.address = begin;
    ++CountsNow().polls;
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
  TouchRow(core, at, Memory::kGm, begin, begin + bytes, access,
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
  TellAccess(Event::kWriteBack, at, {Memory::kGm, begin, count});
  if (global.range.kind == GlobalKind::kFlags) {
    if (Holds()) return Hold(core, at, begin, std::string(bytes, count));
    CompleteHeldAt(core, begin, begin + count);
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
  if (IsHeld(*current_, Pipe::kS)) Block(Waiting::kStores);
  Tell(Event::kWriteBacksDone, kItsEnd);
  current_->scalar_known().Raise(current_->first_agent + kWriteBackAgent,
                                 current_->write_back_count);
  ScalarLearned(current_);
}

void ScalarLoad(Memory memory, uint64_t begin, uint64_t bytes, void* to,
                Site site) {
  ThisMachine()->Load(memory, begin, bytes, to, site);
}

void ScalarStore(Memory memory, uint64_t begin, uint64_t bytes,
                 const void* from, Site site) {
  ThisMachine()->Store(memory, begin, bytes, from, site);
}

void CleanAndInvalidateLine(uint64_t begin, Site site) {
  Machine& machine = *ThisMachine();
  machine.WriteBack(begin / kLineBytes, site);
  machine.LooksAt(begin / kLineBytes);
  // Whoever polls comes by here: others get their turn.
  machine.Poll("DataCacheCleanAndInvalid", site);
}

void CleanAndInvalidateAll(Site site) {
  Machine& machine = *ThisMachine();
  machine.WriteBackAll(site);
  machine.Poll("DataCacheCleanAndInvalid", site);
}

}  // namespace ascend_twin
