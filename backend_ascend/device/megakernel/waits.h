// Waiting: for words in global memory that other cores add to, never for ever.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_WAITS_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_WAITS_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/device/megakernel/read_counter.h"
#include "backend_ascend/device/megakernel/symmetric_memory.h"

namespace hpmoe {

constexpr int64_t kCyclesPerMicrosecond = 50;  // of GetSystemCycle
constexpr int64_t kPollCycles = 50;            // from one poll to the next

// How long a core has waited.
class Deadline {
 public:
  HPMOE_FUNCTION explicit Deadline(uint64_t microseconds)
      : cycles_(static_cast<int64_t>(microseconds) * kCyclesPerMicrosecond),
        begin_(AscendC::GetSystemCycle()) {}

  HPMOE_FUNCTION void Restart() { begin_ = AscendC::GetSystemCycle(); }

  // Lets others at the memory, then tells whether the time is over.
  HPMOE_FUNCTION bool PauseAndCheck() const {
    const int64_t now = AscendC::GetSystemCycle();
    while (AscendC::GetSystemCycle() - now < kPollCycles) {
    }
    return now - begin_ >= cycles_;
  }

 private:
  const int64_t cycles_;
  int64_t begin_;
};

// Waits until a line of the handshake has this launch's generation.  Word and
// line of what is missing, or reason kEnded.
HPMOE_FUNCTION CoreDiagnosis AwaitLine(HPMOE_GM CounterLine* lines,
                                       int32_t line, const LaunchArgs& args) {
  CoreDiagnosis missing = {};
  missing.reason = kReadyDeadline;
  missing.task = -1;
  missing.event = line;
  missing.expected = args.generation;
  const Deadline deadline(args.deadline_us);
  do {
    missing.actual = ReadCounter(lines + line);
    if (missing.actual >= args.generation) {
      missing.reason = kEnded;
      return missing;
    }
  } while (!deadline.PauseAndCheck());
  return missing;
}

// All ranks have started: their buffers and events may be written.  In round i
// a rank tells the one 2^i further and hears from the one 2^i behind, so after
// the last round each has heard of all.  By the first vector core of a rank.
HPMOE_FUNCTION CoreDiagnosis ShakeHands(const LaunchArgs& args,
                                        const SymmetricMemory& heap,
                                        int32_t num_ranks) {
  for (int32_t round = 0; round < ReadyRounds(num_ranks); ++round) {
    const int64_t peer = (args.rank + (int64_t{1} << round)) % num_ranks;
    SignalSet(heap.At(args.ready + round, static_cast<int32_t>(peer)),
              args.generation);
    const CoreDiagnosis heard = AwaitLine(args.ready, round, args);
    if (heard.reason != kEnded) return heard;
  }
  SignalSet(args.ready + kAllReady, args.generation);
  CoreDiagnosis all = {};
  all.reason = kEnded;
  return all;
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_WAITS_H_
