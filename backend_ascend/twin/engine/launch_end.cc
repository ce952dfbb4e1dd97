// How a launch ends: what is left over, and who waits for ever.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backend_ascend/twin/engine/machine.h"

namespace ascend_twin {

// Whether the scalar unit knows all work of its pipes to be done.
bool Machine::Drained(const Core& core) const {
  const auto runs = [](const Queued& queued) {
    return queued.kind == Queued::kWork;
  };
  for (int i = 1; i < kNumPipes; ++i) {
    const PipeState& pipe = core.pipes[i];
    const uint32_t agent = AgentOf(core, static_cast<Pipe>(i));
    if (core.pipes[0].known[agent] < pipe.worked ||
        std::any_of(pipe.queue.begin(), pipe.queue.end(), runs)) {
      return false;
    }
  }
  return true;
}

void Machine::CheckEnd(Core* core) {
  const Place at = Here("end of the kernel", kItsEnd);
  if (spec_.drained_end && spec_.hazards && !Drained(*core)) {
    FailAt(ErrorKind::kHazard, at,
           "the kernel ends and its pipes may still run: expected "
           "PipeBarrier<PIPE_ALL>() last (option drained_end)",
           {}, "PipeBarrier<PIPE_ALL>");
  }
  for (const auto& [number, line] : core->lines) {
    if (line.dirty == 0) continue;
    FailSpan(ErrorKind::kDirtyLine, at, Memory::kGm, number * kLineBytes,
             (number + 1) * kLineBytes,
             "stored to at " + SiteText(line.store) +
                 " and still in the scalar cache: expected "
                 "DataCacheCleanAndInvalid");
  }
}

void Machine::CheckLeftovers() {
  for (const auto& core : cores_) {
    for (int from = 0; from < kNumPipes; ++from) {
      for (int to = 0; to < kNumPipes; ++to) {
        const PipeEvent event{static_cast<Pipe>(from), static_cast<Pipe>(to)};
        for (int id = 0; id < kNumFlagIds; ++id) {
          if (core->flag(event, id).set) NoteLeftFlag(*core, event, id);
        }
      }
    }
    for (int id = 0; id < kNumCrossIds; ++id) {
      const CrossFlag& flag = core->cross[id];
      bool left = !flag.sets.empty();
      for (const auto& pending : flag.pending) left |= !pending.empty();
      if (left) NoteLeftCross(*core, id);
    }
  }
}

void Machine::NoteLeftFlag(const Core& core, PipeEvent event, int32_t id) {
  Error error{ErrorKind::kFlag, core.flag(event, id).setter};
  error.missing = EventName(event);
  error.text = "SetFlag<" + error.missing + ">(" + std::to_string(id) +
               ") is left set for the next kernel: expected a WaitFlag<" +
               error.missing + ">(" + std::to_string(id) + ")";
  Note(std::move(error));
}

void Machine::NoteLeftCross(const Core& core, int32_t id) {
  Error error{ErrorKind::kCrossFlag, core.cross[id].setter};
  error.missing = "CrossCoreWaitFlag";
  error.text = "CrossCoreSetFlag(" + std::to_string(id) + ") is left over on " +
               CoreText(core.name) + ": expected as many waits as sets";
  Note(std::move(error));
}

// Whether only the core itself could let it go on, and it stands still.
bool Machine::IsStuck(const Core& core) const {
  const Waiting::Kind kind = core.waiting.kind;
  return !core.ended() && (kind == Waiting::kFlag || kind == Waiting::kDrain ||
                           kind == Waiting::kRoom || kind == Waiting::kPipe);
}

namespace {

std::string FlagText(PipeEvent event, int32_t id) {
  return "WaitFlag<" + EventName(event) + ">(" + std::to_string(id) + ")";
}

}  // namespace

std::string Machine::WaitText(const Core& core) const {
  const Waiting& waiting = core.waiting;
  std::string text =
      CoreText(core.name) + " waits at " + SiteText(waiting.site) + " in ";
  if (waiting.kind == Waiting::kFlag) {
    text += FlagText(waiting.event, waiting.id);
  } else {
    text += waiting.call;
  }
  if (waiting.kind == Waiting::kCross) {
    text += "(" + std::to_string(waiting.id) + ")";
  } else if (waiting.kind == Waiting::kRoom) {
    text +=
        std::string(" for room in the queue of pipe ") + NameOf(waiting.pipe);
  } else if (waiting.address != 0 && !IsStuck(core)) {
    text += ", polls " + globals_.NameOf(waiting.address);
  }
  for (const PipeState& pipe : core.pipes) {
    if (pipe.queue.empty() || pipe.queue.front().kind != Queued::kWait) {
      continue;
    }
    const Queued& head = pipe.queue.front();
    text += "; its pipe " + std::string(NameOf(head.work.pipe)) + " waits at " +
            SiteText(head.work.site) + " in " + FlagText(head.event, head.id);
  }
  return text;
}

// The flag that a core that is stuck waits for; null if it is none.
const PipeEvent* Machine::AwaitedFlag(const Core& core) const {
  if (core.waiting.kind == Waiting::kFlag) return &core.waiting.event;
  for (const PipeState& pipe : core.pipes) {
    if (!pipe.queue.empty() && pipe.queue.front().kind == Queued::kWait) {
      return &pipe.queue.front().event;
    }
  }
  return nullptr;
}

void Machine::FailDeadlock(const std::string& why) {
  std::vector<const Core*> waiting;
  for (const auto& core : cores_) {
    if (!core->ended()) waiting.push_back(core.get());
  }
  // Whoever is stuck by itself is why others wait.
  std::stable_partition(waiting.begin(), waiting.end(),
                        [this](const Core* core) { return IsStuck(*core); });
  Error error{ErrorKind::kDeadlock, kNowhere};
  for (const Core* const core : waiting) {
    const Place at{core->name, Pipe::kS, core->waiting.call, core->waiting.site,
                   core->tag};
    const bool first = core == waiting.front();
    error.text += (first ? why : "; ") + WaitText(*core);
    if (!first) {
      error.others.push_back(at);
      continue;
    }
    error.at = at;
    const PipeEvent* const event = AwaitedFlag(*core);
    if (!IsStuck(*core) || event == nullptr || why != kNothingGoesOn) continue;
    error.missing = EventName(*event);
    error.text += ", which no SetFlag<" + error.missing + "> comes to";
  }
  Note(std::move(error));
  throw Abort{};
}

}  // namespace ascend_twin
