#include <algorithm>
#include <cstdio>

#include "backend_ascend/twin/engine/machine.h"

namespace ascend_twin {

const char* NameOf(Pipe pipe) {
  constexpr const char* kNames[] = {"S", "MTE1", "MTE2", "MTE3",
                                    "M", "V",    "FIX"};
  return kNames[static_cast<int>(pipe)];
}

const char* NameOf(Memory memory) {
  constexpr const char* kNames[] = {"GM",  "UB",  "L1",       "L0A",
                                    "L0B", "L0C", "BiasTable"};
  return kNames[static_cast<int>(memory)];
}

const char* NameOf(CoreType type) {
  return type == CoreType::kAic ? "AIC" : "AIV";
}

const char* NameOf(ErrorKind kind) {
  constexpr const char* kNames[] = {
      "refused", "bounds",     "undefined",  "hazard",     "race",
      "flag",    "cross flag", "stale line", "dirty line", "deadlock"};
  return kNames[static_cast<int>(kind)];
}

std::string SiteText(Site site) {
  if (site.line == 0) return site.file;
  return std::string(site.file) + ":" + std::to_string(site.line);
}

std::string CoreText(const CoreName& core) {
  return std::string(NameOf(core.type)) + " " + std::to_string(core.index) +
         " of rank " + std::to_string(core.rank);
}

std::string PlaceText(const Place& place) {
  return SiteText(place.site) + " (" + place.call + ", pipe " +
         NameOf(place.pipe) + ")";
}

std::string EventName(PipeEvent event) {
  return std::string(NameOf(event.from)) + "_" + NameOf(event.to);
}

// -- What a launch fails with.

void Machine::Note(Error error) {
  const Place& at = error.at;
  error.text = spec_.kernel + " at " + SiteText(at.site) + " on " +
               CoreText(at.core) + ", pipe " + NameOf(at.pipe) + ": " +
               error.text;
  result_.errors.push_back(std::move(error));
  aborted_ = true;
}

void Machine::Fail(Error error) {
  Note(std::move(error));
  throw Abort{};
}

// Memory ran out, or a hook of the caller's threw.
void Machine::NoteException(const std::exception& exception) {
  Error error{ErrorKind::kRefused, kNowhere};
  if (current_ != nullptr) error.at = Here("exception", kItsEnd);
  error.text =
      std::string("expected none, got an exception: ") + exception.what();
  Note(std::move(error));
}

void Machine::FailAt(ErrorKind kind, const Place& at, std::string text,
                     std::vector<Place> others, std::string missing) {
  Error error{kind, at};
  error.text = std::move(text);
  error.others = std::move(others);
  error.missing = std::move(missing);
  Fail(std::move(error));
}

std::string Machine::SpanText(Memory memory, uint64_t begin,
                              uint64_t end) const {
  if (memory == Memory::kGm) {
    return globals_.NameOf(begin) + " (" + std::to_string(end - begin) + " B)";
  }
  char text[64];
  std::snprintf(text, sizeof(text), "%s [0x%llx, 0x%llx)", NameOf(memory),
                static_cast<unsigned long long>(begin),
                static_cast<unsigned long long>(end));
  return text;
}

void Machine::FailSpan(ErrorKind kind, const Place& at, Memory memory,
                       uint64_t begin, uint64_t end, const std::string& text) {
  FailAt(kind, at,
         std::string(at.call) + " of " + SpanText(memory, begin, end) + ": " +
             text);
}

Place Machine::WhereOf(const Access& access) const {
  const uint32_t kind = access.agent % kNumAgents;
  const Pipe pipe = kind < kNumPipes ? static_cast<Pipe>(kind) : Pipe::kS;
  return {cores_[access.agent / kNumAgents]->name, pipe, access.call,
          access.site, access.tag};
}

void Machine::FailConflict(const Place& at, Memory memory, uint64_t base,
                           const Conflict& conflict, bool writes) {
  Error error{ErrorKind::kUndefined, at, memory, base + conflict.begin,
              base + conflict.end};
  error.text = std::string(at.call) + (writes ? " writes " : " reads ") +
               SpanText(memory, error.begin, error.end);
  DescribeConflict(at, conflict, writes, &error);
  Fail(std::move(error));
}

namespace {

bool SameCore(const CoreName& a, const CoreName& b) {
  return a.rank == b.rank && a.type == b.type && a.index == b.index;
}

}  // namespace

const Queued* Machine::Pending(const Core& core, const Span& bytes, bool writes,
                               bool reads, uint64_t last) const {
  const uint64_t end = bytes.begin + bytes.bytes;
  const auto touch = [&](const std::vector<Span>& spans) {
    return std::any_of(spans.begin(), spans.end(), [&](const Span& span) {
      return span.memory == bytes.memory && Meets(span, bytes.begin, end);
    });
  };
  for (const PipeState& pipe : core.pipes) {
    for (const Queued& queued : pipe.queue) {
      if (queued.order > last) continue;
      if ((writes && touch(queued.work.writes)) ||
          (reads && touch(queued.work.reads))) {
        return &queued;
      }
    }
  }
  return nullptr;
}

void Machine::DescribeConflict(const Place& at, const Conflict& conflict,
                               bool writes, Error* error) const {
  const bool undefined = conflict.kind == Conflict::kUndefined;
  const Access& access = accesses_.At(conflict.other);
  const Place other = undefined ? Place{} : WhereOf(access);
  const bool same_pipe =
      !undefined && SameCore(at.core, other.core) && at.pipe == other.pipe;
  // What it overtook says more than what it came upon: a reader only if it
  // writes, as two reads need no order.
  const bool overtook_reader = same_pipe && writes;
  for (const auto& core : cores_) {
    if (!undefined && !same_pipe) break;
    if (error->memory != Memory::kGm && !SameCore(core->name, at.core)) {
      continue;
    }
    const Queued* const older =
        Pending(*core, {error->memory, error->begin, error->end - error->begin},
                !overtook_reader, overtook_reader, running_);
    if (older == nullptr || (same_pipe && older->work.pipe == at.pipe)) {
      continue;
    }
    return DescribeOrder(
        at, PlaceOf(*core, *older), older->order,
        overtook_reader ? " before it is read" : " before it is written",
        error);
  }
  if (undefined) {
    error->text += ", which nobody has written";
    return;
  }
  DescribeOrder(at, other, access.order,
                conflict.kind == Conflict::kAfterRead ? ", read" : ", written",
                error);
}

void Machine::DescribeOrder(const Place& at, const Place& other,
                            uint64_t other_order, const char* how,
                            Error* error) const {
  const bool same_core = SameCore(at.core, other.core);
  error->others = {other};
  error->kind = same_core ? ErrorKind::kHazard : ErrorKind::kRace;
  std::string expected;
  if (other.call == std::string("DataCacheCleanAndInvalid")) {
    expected = error->missing = "DataSyncBarrier";
  } else if (!same_core) {
    error->missing = "event";
    expected = std::string("a flag or PipeBarrier of ") + NameOf(other.pipe) +
               " there, then an event or cross-core flag, and a wait for it "
               "here,";
  } else if (at.pipe == other.pipe) {
    error->missing = std::string("PipeBarrier<PIPE_") + NameOf(at.pipe) + ">";
    expected = error->missing;
  } else {
    error->missing =
        EventName(other_order < running_ ? PipeEvent{other.pipe, at.pipe}
                                         : PipeEvent{at.pipe, other.pipe});
    expected = "SetFlag/WaitFlag<" + error->missing + ">";
  }
  error->text += std::string(how) + " by " + NameOf(other.pipe) +
                 (same_core ? "" : " of " + CoreText(other.core)) + " at " +
                 SiteText(other.site) + " (" + other.call +
                 "); nothing orders them: expected " + expected + " between";
  if (same_core && expected != "DataSyncBarrier" &&
      CompilerOrders(at.core.type, other.pipe, at.pipe)) {
    error->text += "; auto_sync takes it as inserted by the compiler";
  }
}

void Machine::FailStale(const Place& at, uint64_t begin, uint64_t bytes,
                        const Line& line) {
  FailAt(ErrorKind::kStaleLine, at,
         std::string(at.call) + " reads " +
             SpanText(Memory::kGm, begin, begin + bytes) +
             " from a line of the scalar cache that is stale: " +
             CoreText(line.writer.core) + " wrote it at " +
             PlaceText(line.writer) +
             ": expected DataCacheCleanAndInvalid before the load",
         {line.writer}, "DataCacheCleanAndInvalid");
}

void Machine::FailDirty(const Place& at, uint64_t number, const Line& line) {
  const uint64_t begin = number * kLineBytes;
  FailAt(ErrorKind::kDirtyLine, at,
         std::string(at.call) + " writes back the line of " +
             SpanText(Memory::kGm, begin, begin + kLineBytes) +
             ", stored to at " + SiteText(line.store) + ", over what " +
             CoreText(line.writer.core) + " wrote at " +
             PlaceText(line.writer) +
             " since it was loaded: expected DataCacheCleanAndInvalid before "
             "the store, and a line of 64 B that one core writes",
         {line.writer}, "DataCacheCleanAndInvalid");
}

}  // namespace ascend_twin
