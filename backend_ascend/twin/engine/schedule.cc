// Which core's scalar unit and which pipe goes on next.

#include <algorithm>
#include <exception>
#include <utility>

#include "backend_ascend/twin/engine/machine.h"

namespace ascend_twin {
namespace {

constexpr uint32_t kFreePolls = 4;          // before others get their turn
constexpr uint32_t kPollsInVain = 1 << 10;  // before time runs faster
constexpr uint64_t kFirstIdleStep = 64;     // cycles
// Who polls by moves into UB never stands still: others get their turn.
constexpr uint32_t kIssuesInTurn = 256;
constexpr uint64_t kOldestEach = 64;  // steps of mode late

}  // namespace

// -- Of one core.

void Machine::Enqueue(Queued queued) {
  Core* const core = current_;
  queued.tag = core->tag;
  queued.order = ++order_;
  Tell(queued);
  PipeTime& time = core->pipe(queued.work.pipe).time;
  double& now = core->pipes[0].time.now;
  // Its place in the queue is that of an entry that has left it.
  now = std::max(now, time.left[time.num_issued++ % kQueueDepth]);
  queued.issued = now;
  if (spec_.hazards) {
    if (core->snapshot == nullptr) {
      core->snapshot = std::make_shared<const Clock>(core->scalar_known());
    }
    queued.known = core->snapshot;
  }
  const Pipe pipe = queued.work.pipe;
  std::deque<Queued>& queue = core->pipe(pipe).queue;
  queue.push_back(std::move(queued));
  if (spec_.mode == Mode::kInOrder) {
    RunHeads(core);
  } else if (spec_.mode == Mode::kSeeded) {
    RunSome(core);
  }
  if (queue.size() >= kQueueDepth) Block(Waiting::kRoom, pipe);
  if (++core->issued % kIssuesInTurn == 0) Block(Waiting::kNothing);
}

bool Machine::HeadRuns(const Core& core, int pipe) const {
  const auto& queue = core.pipes[pipe].queue;
  if (queue.empty()) return false;
  const Queued& head = queue.front();
  if (head.kind == Queued::kWork) return true;
  if (head.kind == Queued::kWait) return core.flag(head.event, head.id).set;
  return !IsHeld(core, head.work.pipe);
}

// Of two sums of one pipe into the same bytes, with no barrier between, either
// may come first: floats show it.
bool Machine::SumOvertakes(const std::deque<Queued>& queue) {
  if (spec_.mode == Mode::kInOrder || queue.size() < 2) return false;
  const auto adds = [](const Queued& queued) {
    return queued.kind == Queued::kWork && queued.work.atomic;
  };
  return adds(queue[0]) && adds(queue[1]) &&
         queue[0].work.writes[0].begin == queue[1].work.writes[0].begin &&
         (spec_.mode == Mode::kLate || (random_() & 1) != 0);
}

void Machine::RunHead(Core* core, int pipe) {
  std::deque<Queued>& queue = core->pipes[pipe].queue;
  if (SumOvertakes(queue)) std::swap(queue[0], queue[1]);
  Queued head = std::move(queue.front());
  queue.pop_front();
  Core* const was = std::exchange(current_, core);
  Execute(core, &head);
  current_ = was;
}

void Machine::RunHeads(Core* core) {
  for (bool ran = true; ran;) {
    ran = false;
    for (int pipe = 1; pipe < kNumPipes; ++pipe) {
      while (HeadRuns(*core, pipe)) {
        RunHead(core, pipe);
        ran = true;
      }
    }
  }
}

// A few instructions of the core, and now and then another core.
void Machine::RunSome(Core* core) {
  for (uint64_t draw = random_(); draw & 1; draw >>= 1) {
    const int first = static_cast<int>(draw >> 32) & 7;
    for (int i = 0; i < kNumPipes; ++i) {
      const int pipe = (first + i) % kNumPipes;
      if (HeadRuns(*core, pipe)) {
        RunHead(core, pipe);
        break;
      }
    }
  }
  if ((random_() & 7) == 0) Block(Waiting::kNothing);
}

bool Machine::CanResume(const Core& core) const {
  if (core.fiber->done()) return false;
  const Waiting& waiting = core.waiting;
  switch (waiting.kind) {
    case Waiting::kNothing:
      return true;
    case Waiting::kFlag:
      return core.flag(waiting.event, waiting.id).set;
    case Waiting::kCross:
      return !core.cross[waiting.id].sets.empty();
    case Waiting::kDrain:
      return core.idle() && !IsHeld(core, Pipe::kMte3);
    case Waiting::kStores:
      return !IsHeld(core, Pipe::kS);
    case Waiting::kRoom:
      return core.pipes[static_cast<int>(waiting.pipe)].queue.size() <
             kQueueDepth;
    case Waiting::kPoll:
      return core.polled_version != flags_version_;
    case Waiting::kPipe: {
      const auto& queue = core.pipes[static_cast<int>(waiting.pipe)].queue;
      return queue.empty() || queue.front().order > waiting.order;
    }
  }
  return false;
}

// The scalar unit stands still until CanResume.
void Machine::Block(Waiting::Kind kind, Pipe pipe) {
  Core* const core = current_;
  core->waiting.kind = kind;
  core->waiting.pipe = pipe;
  core->fiber->Stop();
  core->waiting.kind = Waiting::kNothing;
  if (aborted_) throw Abort{};
}

void Machine::SetByScalar(PipeEvent event, int32_t id, Site site) {
  current_->flag(event, id).time = current_->pipes[0].time.now;
  TellFlag(Event::kSet, event, id, site);
  Set(current_, Here("SetFlag", site), event, id);
  if (spec_.mode == Mode::kInOrder) RunHeads(current_);
}

void Machine::WaitByScalar(PipeEvent event, int32_t id, Site site) {
  Core* const core = current_;
  core->waiting.call = "WaitFlag";
  core->waiting.site = site;
  core->waiting.event = event;
  core->waiting.id = id;
  core->waiting.kind = Waiting::kFlag;
  if (!CanResume(*core)) Block(Waiting::kFlag);
  core->waiting.kind = Waiting::kNothing;
  double& now = core->pipes[0].time.now;
  now = std::max(now, core->flag(event, id).time);
  TellFlag(Event::kWait, event, id, site);
  Wait(core, Here("WaitFlag", site), event, id);
}

void Machine::CrossWait(int32_t id, Site site) {
  Core* const core = current_;
  core->waiting.call = "CrossCoreWaitFlag";
  core->waiting.site = site;
  core->waiting.id = id;
  if (core->cross[id].sets.empty()) Block(Waiting::kCross);
  Tell(Event::kCrossWait, site, id);
  core->scalar_known().Join(core->cross[id].sets.front());
  core->cross[id].sets.pop_front();
  ScalarLearned(core);
  ++progress_;
}

void Machine::Drain(Site site) {
  Core* const core = current_;
  if (aborted_) return;  // a destructor's, as the core unwinds
  core->waiting.call = "PipeBarrier<PIPE_ALL>";
  core->waiting.site = site;
  core->waiting.kind = Waiting::kDrain;
  if (!CanResume(*core)) Block(Waiting::kDrain);
  Tell(Event::kDrain, site);
  core->waiting.kind = Waiting::kNothing;
  double& now = core->pipes[0].time.now;
  for (const PipeState& pipe : core->pipes) {
    now = std::max({now, pipe.time.now, pipe.time.seen});
  }
  if (!spec_.hazards) return;
  Clock all;
  for (int pipe = 0; pipe < kNumPipes; ++pipe) {
    all.Join(Complete(core, static_cast<Pipe>(pipe)));
  }
  core->scalar_known() = std::move(all);
  for (PipeState& pipe : core->pipes) pipe.learned.clear();
  ScalarLearned(core);
}

void Machine::ForgetOldPolls(Core* core) const {
  if (core->polled_version == flags_version_) return;
  core->polled_version = flags_version_;
  core->polls = 0;
  core->looked.clear();
}

void Machine::Poll(const char* call, Site site) {
  Core* const core = current_;
  core->waiting.call = call;
  core->waiting.site = site;
  ForgetOldPolls(core);
  ++core->polls;
  if (core->polls > kPollsInVain) {
    // It issues work between polls, so the launch is never idle.
    const uint32_t turns = std::min(core->polls - kPollsInVain, 40u);
    cycles_ += uint64_t{1} << turns;
    if (cycles_ > spec_.max_idle_cycles) FailDeadlock(kNothingGoesOn);
  }
  if (core->polls > kFreePolls || spec_.mode == Mode::kSeeded) {
    Block(core->polls_only ? Waiting::kPoll : Waiting::kNothing);
  }
  core->polls_only = true;
}

// A core that drops another line has met its wait for the last one, or works.
// Lines that it dropped since any flag changed do not count: who goes round in
// them gets nowhere.
void Machine::LooksAt(uint64_t line) {
  Core* const core = current_;
  ForgetOldPolls(core);
  std::vector<uint64_t>& looked = core->looked;
  if (std::find(looked.begin(), looked.end(), line) != looked.end()) return;
  looked.push_back(line);
  GoesOn();
}

void Machine::GoesOn() {
  current_->polls = 0;
  current_->polls_only = false;
  ++progress_;
}

// A task without work issues nothing, and may look at the lines that the last
// one waited for.
void Machine::Begin(int64_t tag) {
  current_->tag = tag;
  current_->looked.clear();
  GoesOn();
}

// -- Of all cores.

void Machine::Body(Core* core) {
  try {
    spec_.entry(core->name.rank);
    CheckEnd(core);
    core->waiting.kind = Waiting::kDrain;
    core->waiting.call = "end of the kernel";
    core->waiting.site = kItsEnd;
  } catch (const Abort&) {
  } catch (const std::exception& error) {
    NoteException(error);
  }
}

void Machine::Resume(Core* core) {
  current_ = core;
  core->started = true;
  const size_t index = core->first_agent / kNumAgents;
  if (spec_.on_switch) spec_.on_switch(index, true);
  core->fiber->Resume();
  if (spec_.on_switch) spec_.on_switch(index, false);
  current_ = nullptr;
}

// One core's scalar unit, in turn.
bool Machine::StepFibers() {
  for (size_t i = 0; i < cores_.size(); ++i) {
    Core* const core = cores_[next_core_].get();
    next_core_ = (next_core_ + 1) % cores_.size();
    if (CanResume(*core)) {
      Resume(core);
      return true;
    }
  }
  return false;
}

// The youngest instruction that may run: consumers before the producers that
// they do not wait for.  Now and then the oldest, which a core that polls by
// moves may wait for.
bool Machine::StepHeads() {
  const bool oldest = ++head_steps_ % kOldestEach == 0;
  if (oldest) StepHeld();
  Core* best = nullptr;
  int best_pipe = 0;
  uint64_t best_order = 0;
  for (const auto& core : cores_) {
    for (int pipe = 1; pipe < kNumPipes; ++pipe) {
      if (!HeadRuns(*core, pipe)) continue;
      const uint64_t order = core->pipes[pipe].queue.front().order;
      if (best != nullptr && (order < best_order) != oldest) continue;
      best = core.get();
      best_pipe = pipe;
      best_order = order;
    }
  }
  if (best != nullptr) RunHead(best, best_pipe);
  return best != nullptr;
}

bool Machine::StepRandom() {
  if (!held_.empty() && (random_() & 31) == 0) return StepHeld();
  const size_t count = cores_.size() * (kNumPipes + 1);
  const size_t first = random_() % count;
  for (size_t i = 0; i < count; ++i) {
    const size_t at = (first + i) % count;
    Core* const core = cores_[at / (kNumPipes + 1)].get();
    const int pipe = static_cast<int>(at % (kNumPipes + 1)) - 1;
    if (pipe < 0 ? CanResume(*core) : HeadRuns(*core, pipe)) {
      if (pipe < 0) {
        Resume(core);
      } else {
        RunHead(core, pipe);
      }
      return true;
    }
  }
  return StepHeld();
}

// Nothing can go on but polls: time passes, until a core's own deadline.
bool Machine::Idle() {
  if (idle_progress_ != progress_ + flags_version_ || idle_step_ == 0) {
    idle_progress_ = progress_ + flags_version_;
    idle_begin_ = cycles_;
    idle_step_ = kFirstIdleStep;
  }
  bool polls = false;
  for (const auto& core : cores_) {
    if (IsStuck(*core)) return false;
    if (core->fiber->done() || core->waiting.kind != Waiting::kPoll) continue;
    core->waiting.kind = Waiting::kNothing;
    polls = true;
  }
  cycles_ += idle_step_;
  idle_step_ *= 2;
  return polls && cycles_ - idle_begin_ <= spec_.max_idle_cycles;
}

bool Machine::AllDone() const {
  return std::all_of(cores_.begin(), cores_.end(),
                     [](const auto& core) { return core->ended(); });
}

void Machine::Turn() {
  if (instructions_ > spec_.max_instructions) {
    FailDeadlock("no end after " + std::to_string(instructions_) +
                 " instructions: ");
  }
  if (spec_.mode == Mode::kSeeded) {
    if (StepRandom()) return;
  } else if (StepFibers() || StepHeads() || StepHeld()) {
    return;
  }
  if (!Idle()) FailDeadlock(kNothingGoesOn);
}

void Machine::Run() {
  for (const auto& core : cores_) {
    core->fiber = std::make_unique<Fiber>([this, c = core.get()] { Body(c); });
  }
  try {
    while (!aborted_ && !AllDone()) Turn();
    while (!aborted_ && StepHeld()) {
    }
  } catch (const Abort&) {
  } catch (const std::exception& error) {
    NoteException(error);
  }
  if (!aborted_) CheckLeftovers();
  // Whatever a core's stack holds is let go.
  for (const auto& core : cores_) {
    if (core->started && !core->fiber->done()) Resume(core.get());
  }
}

}  // namespace ascend_twin
