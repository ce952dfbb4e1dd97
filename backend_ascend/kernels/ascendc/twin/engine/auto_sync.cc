// What the compiler of an AIV's source puts between accesses that depend on
// each other: where it does, the scalar unit or the vector pipe waits.

#include "backend_ascend/kernels/ascendc/twin/engine/errors.h"
#include "backend_ascend/kernels/ascendc/twin/engine/machine.h"

namespace ascend_twin {

bool CompilerOrders(CoreType type, Pipe from, Pipe to) {
  if (type != CoreType::kAiv) return false;
  return (from == Pipe::kS) != (to == Pipe::kS) ||
         (from == Pipe::kV && to == Pipe::kV);
}

// Whether an access is ordered after one of the core's that `agent` made, since
// it waits for it; what is written back to memory is not the compiler's matter.
bool Machine::Inserted(Core* core, const Place& at, uint32_t agent) {
  const uint32_t kind = agent - core->first_agent;  // wraps, of other cores
  if (!spec_.auto_sync || kind >= kNumPipes) return false;
  const Pipe from = static_cast<Pipe>(kind);
  if (!CompilerOrders(core->name.type, from, at.pipe)) return false;
  Clock& known = core->pipe(at.pipe).known;
  if (from == at.pipe) {
    known.Raise(agent, core->pipe(from).count - 1);
  } else {
    known.Join(Complete(core, from));
  }
  if (at.pipe == Pipe::kS) ScalarLearned(core);
  return true;
}

namespace {

bool Touches(const std::vector<Span>& spans, const Span& bytes) {
  for (const Span& span : spans) {
    if (span.memory != bytes.memory) continue;
    for (uint64_t row = 0; row < span.rows; ++row) {
      const uint64_t begin = span.begin + row * span.pitch;
      if (begin < bytes.begin + bytes.bytes &&
          bytes.begin < begin + span.bytes) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

// A pipe that was given work on bytes and has not done it; kS: none.
Pipe Machine::PendingFor(const Core& core, const Span& span,
                         bool writes) const {
  for (const PipeState& pipe : core.pipes) {
    for (const Queued& queued : pipe.queue) {
      if (Touches(queued.work.writes, span) ||
          (writes && Touches(queued.work.reads, span))) {
        return queued.work.pipe;
      }
    }
  }
  return Pipe::kS;
}

// Before the scalar unit touches bytes: it waits for pipes that have work on
// them.
void Machine::AwaitForScalar(Memory memory, uint64_t begin, uint64_t end,
                             bool writes, const char* call, Site site) {
  Core* const core = current_;
  if (!spec_.auto_sync || core->name.type != CoreType::kAiv) return;
  const Span span{memory, begin, end - begin};
  for (;;) {
    const Pipe pipe = PendingFor(*core, span, writes);
    if (pipe == Pipe::kS) return;
    core->waiting.call = call;
    core->waiting.site = site;
    Block(Waiting::kPipe, pipe);
  }
}

}  // namespace ascend_twin
