#include "backend_ascend/twin/engine/kernel_launch.h"

#include <algorithm>
#include <utility>

#include "backend_ascend/twin/engine/machine.h"

namespace ascend_twin {
namespace {

thread_local Machine* machine = nullptr;

uint64_t EndOf(const Span& span) {
  return span.begin + (span.rows - 1) * span.pitch + span.bytes;
}

}  // namespace

Machine* ThisMachine() { return machine; }

namespace {

// What is wrong with a request; empty if nothing.
std::string WrongWith(const LaunchSpec& spec) {
  if (!spec.entry) return "entry: expected a kernel, got none";
  if (spec.ranks < 1 || spec.blocks < 1) {
    return "ranks, blocks: expected at least 1, got " +
           std::to_string(spec.ranks) + ", " + std::to_string(spec.blocks);
  }
  std::vector<GlobalRange> ranges = spec.globals;
  std::sort(ranges.begin(), ranges.end(),
            [](const GlobalRange& a, const GlobalRange& b) {
              return a.begin < b.begin;
            });
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (i > 0 && ranges[i - 1].begin + ranges[i - 1].bytes > ranges[i].begin) {
      return "globals: expected ranges that do not overlap, got " +
             ranges[i - 1].name + " and " + ranges[i].name;
    }
  }
  return "";
}

}  // namespace

LaunchResult Launch(const LaunchSpec& spec) {
  const std::string wrong = WrongWith(spec);
  if (!wrong.empty()) {
    Error error{ErrorKind::kRefused, kNowhere};
    error.text = wrong;
    return {{error}, {}, 0};
  }
  Machine one(spec);
  Machine* const was = std::exchange(machine, &one);
  one.Run();
  machine = was;
  return one.TakeResult();
}

LaunchResult Machine::TakeResult() {
  result_.cycles = cycles_;
  for (const auto& core : cores_) {
    for (const auto& [tag, counts] : core->counts) {
      result_.counts.push_back(counts);
    }
  }
  return std::move(result_);
}

// The option by which some of a memory is not the kernel's.
std::string Machine::KeptText(Memory memory) const {
  if (memory == Memory::kUb && spec_.reserved_ub) {
    return "; reserved_ub keeps the rest for the compiler";
  }
  if (memory != Memory::kL1 || spec_.reserved_l1 == 0) return "";
  return "; reserved_l1 keeps " + std::to_string(spec_.reserved_l1) + " B";
}

void Machine::CheckSpan(const Instruction& work, const Span& span,
                        bool writes) {
  if (span.bytes == 0 || span.rows == 0) return;
  const Place at{current_->name, work.pipe, work.name, work.site,
                 current_->tag};
  if (span.memory == Memory::kGm) return CheckGlobal(at, span, writes);
  const Chip& chip = current_->chips[static_cast<int>(span.memory)];
  if (chip.size == 0) {
    FailAt(ErrorKind::kRefused, at,
           std::string(work.name) + ": expected a memory of an " +
               NameOf(current_->name.type) + ", got " + NameOf(span.memory));
  }
  if (EndOf(span) > chip.size) {
    FailSpan(ErrorKind::kBounds, at, span.memory, span.begin, EndOf(span),
             "expected bytes below " + std::to_string(chip.size) +
                 ", which is what there is of " + NameOf(span.memory) +
                 KeptText(span.memory));
  }
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

void Machine::CheckGlobal(const Place& at, const Span& span, bool writes) {
  // Rows of one range lie in it if the first and the last do.
  const uint64_t last = span.begin + (span.rows - 1) * span.pitch;
  const Global& first = GlobalOf(at, span.begin, span.begin + span.bytes);
  if (&first != &GlobalOf(at, last, last + span.bytes)) {
    for (uint64_t row = 0; row < span.rows; ++row) {
      const uint64_t begin = span.begin + row * span.pitch;
      GlobalOf(at, begin, begin + span.bytes);
    }
  }
  if (writes && first.range.kind == GlobalKind::kConstant) {
    FailSpan(ErrorKind::kRefused, at, Memory::kGm, span.begin,
             span.begin + span.bytes, "expected no write: it is constant");
  }
}

void Issue(Instruction work) {
  Core& core = machine->core();
  if (!core.initialised) {
    Refuse(work.name, work.site,
           "expected InitSocState() or a TPipe before the first instruction");
  }
  if (!HasPipe(core.name.type, work.pipe)) {
    Refuse(work.name, work.site,
           std::string("expected a core with a pipe ") + NameOf(work.pipe) +
               ", got an " + NameOf(core.name.type));
  }
  for (const Span& span : work.reads) machine->CheckSpan(work, span, false);
  for (const Span& span : work.writes) machine->CheckSpan(work, span, true);
  if (machine->spec().on_issue) machine->spec().on_issue(core.tag, &work);
  core.polls_only = false;
  Queued queued;
  queued.work = std::move(work);
  machine->Enqueue(std::move(queued));
}

void Refuse(const char* name, Site site, const std::string& text) {
  machine->FailAt(ErrorKind::kRefused, machine->Here(name, site),
                  std::string(name) + ": " + text);
}

char* Bytes(Memory memory, uint64_t begin) {
  if (memory == Memory::kGm) return reinterpret_cast<char*>(begin);
  const Core& core = machine->core();
  return core.chips[static_cast<int>(memory)].bytes.get() + begin;
}

CoreType ThisCoreType() { return machine->core().name.type; }
const Numerics& ThisNumerics() { return machine->core().numerics; }
void SetSaturate(bool saturate) {
  machine->core().numerics.saturate = saturate;
}
void SetAtomicType(Type type) { machine->core().atomic = type; }
Type ThisAtomicType() { return machine->core().atomic; }

Registers& ThisRegisters() { return machine->core().registers; }

void OnTask(int64_t tag) { machine->Begin(tag); }

}  // namespace ascend_twin
