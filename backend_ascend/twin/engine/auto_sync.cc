// What the compiler of an AIV's source puts between accesses that depend on
// each other: where it does, the scalar unit or the vector pipe waits.

#include "backend_ascend/twin/engine/machine.h"

namespace ascend_twin {

bool CompilerOrders(CoreType type, Pipe from, Pipe to) {
  if (type != CoreType::kAiv) return false;
  return (from == Pipe::kS) != (to == Pipe::kS) ||
         (from == Pipe::kV && to == Pipe::kV);
}

// What an instruction of a pipe knew as it ran: who waits for it learns this,
// and nothing of what the pipe did or learned since.
void Machine::NoteKnown(PipeState* pipe) {
  if (pipe->learned.empty() || !(pipe->learned.back().known == pipe->known)) {
    pipe->learned.push_back({pipe->count, pipe->known});
  }
}

// Whether an access is ordered after another of the core's, since it waits for
// it; what is written back to memory is not the compiler's matter.
bool Machine::Inserted(Core* core, const Place& at, const Access& other) {
  const uint32_t kind = other.agent - core->first_agent;  // wraps, of others
  if (!spec_.auto_sync || kind >= kNumPipes) return false;
  const Pipe from = static_cast<Pipe>(kind);
  if (!CompilerOrders(core->name.type, from, at.pipe)) return false;
  Clock& known = core->pipe(at.pipe).known;
  known.Raise(other.agent, other.number);
  if (at.pipe != Pipe::kS) return true;
  std::deque<Learned>& learned = core->pipe(from).learned;
  while (learned.size() > 1 && learned[1].since <= other.number) {
    learned.pop_front();
  }
  known.Join(learned.front().known);
  ScalarLearned(core);
  return true;
}

// Before the scalar unit touches bytes: it waits for the work on them, not for
// what their pipes were given later, which may wait for the scalar unit.
void Machine::AwaitForScalar(Memory memory, uint64_t begin, uint64_t end,
                             bool writes, const char* call, Site site) {
  Core* const core = current_;
  if (!spec_.auto_sync || core->name.type != CoreType::kAiv) return;
  const Span span{memory, begin, end - begin};
  for (;;) {
    const Queued* const pending = Pending(*core, span, true, writes, order_);
    if (pending == nullptr) return;
    core->waiting.call = call;
    core->waiting.site = site;
    core->waiting.order = pending->order;
    Block(Waiting::kPipe, pending->work.pipe);
  }
}

}  // namespace ascend_twin
