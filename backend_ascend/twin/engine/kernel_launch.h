// Runs one kernel on all cores of all ranks, and says what it did wrong.

#ifndef BACKEND_ASCEND_TWIN_ENGINE_KERNEL_LAUNCH_H_
#define BACKEND_ASCEND_TWIN_ENGINE_KERNEL_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend_ascend/twin/engine/instruction.h"

namespace ascend_twin {

// Which of the orders that the flags allow a launch takes.
enum class Mode : uint8_t {
  kInOrder,  // an instruction runs as soon as its flags allow
  kSeeded,   // a random one of what may run, by `seed`
  kLate,     // nothing runs before something waits for it, then the youngest
};

// KERNEL_TASK_TYPE_DEFAULT: the cores of a block.
enum class TaskType : uint8_t {
  kMixAic1Aiv2,
  kMixAic1Aiv1,
  kAicOnly,
  kAivOnly
};

enum class GlobalKind : uint8_t {
  kConstant,  // the host wrote it, and no core writes it
  kFilled,    // the host wrote it, and cores may write it again
  kEmpty,     // reading what no core has written is an error
  // Words that cores wait at, written by the host: a write of one publishes
  // what its writer knows to be complete, a read of it learns that.
  kFlags,
};

// What a kernel may touch of global memory.  Ranges do not overlap.
struct GlobalRange {
  std::string name;
  uint64_t begin;  // address
  uint64_t bytes;
  GlobalKind kind;
  int32_t rank = 0;  // that owns it; all ranks may touch it
};

// How long a pipe has to do with an instruction, and how much later its flags
// see what it did.
struct Seconds {
  double busy;
  double latency;
};

// A core of a launch: of its rank and its type, the `index`-th.
struct CoreName {
  int32_t rank;
  CoreType type;
  int32_t index;
};

// What a core gives a queue, or its scalar unit does by itself, in program
// order.
struct Event {
  // kWork to kCrossSet: of a queue; kSet and kWait of the scalar unit, too.
  // kLoad and kStore: of UB, by the scalar unit; kGlobalLoad: complete at once;
  // kWriteBack: complete at kWriteBacksDone.  kDrain: of all queues.  kPolled:
  // of words that cores poll.
  enum Kind : uint8_t {
    kWork,
    kSet,
    kWait,
    kBarrier,
    kCrossSet,
    kCrossWait,
    kDrain,
    kLoad,
    kStore,
    kGlobalLoad,
    kWriteBack,
    kWriteBacksDone,
    kPolled
  };
  Kind kind;
  CoreName core;
  int32_t block;
  Pipe pipe;
  Pipe other;    // whom a set lets go on, or which pipe a wait waits for
  int32_t id;    // of a flag
  int32_t mode;  // of kCrossSet
  const Instruction* work;  // name, site and spans
};

struct LaunchSpec {
  std::string kernel;                  // its name, for errors
  std::function<void(int32_t)> entry;  // what each core of a rank calls
  int32_t ranks = 1;
  int32_t blocks = 1;  // of each rank
  TaskType type = TaskType::kMixAic1Aiv2;
  std::vector<GlobalRange> globals;
  Mode mode = Mode::kInOrder;
  uint64_t seed = 0;
  Numerics numerics;
  bool hazards = true;  // whether order of accesses is checked
  // Whether an AIV's compiler puts synchronisation where accesses of its pipes
  // depend on each other, as it does by default (--cce-auto-sync): between two
  // of V, and between one of the scalar unit and one of V, MTE2 or MTE3.
  bool auto_sync = false;
  // Modelled cycles (50 MHz) in which nothing happens but polls of global
  // memory, after which the launch ends as a deadlock.  A kernel's own deadline
  // should be sooner: then it fires.
  uint64_t max_idle_cycles = uint64_t{1} << 40;
  // After as many the launch ends as a deadlock, too: cores that poll by moves
  // into UB are never idle.
  uint64_t max_instructions = uint64_t{1} << 30;
  // The 8 KiB at the end of UB that the compiler keeps for itself, unless
  // --cce-disable-asc-reserved-ubuf.
  bool reserved_ub = true;
  // Bytes after those, where headers keep what they share.
  uint32_t reserved_ub_end = 256;
  // Bytes at the end of L1 that are not the kernel's: 256 by the pages, 128 in
  // the sources.
  uint32_t reserved_l1 = 256;
  // Whether a cross-core flag that is set again before it was waited for stays
  // one.  The pages say that it counts to 15, users of it that it does not.
  bool cross_flags_merge = false;
  // Whether a core's flag that is set again before its wait counts two, as the
  // queues of CANN's headers need; else it is an error, as the pages say.
  bool flags_count = false;
  // Whether an AIC has no flags to or from its scalar unit: a page says so, the
  // headers and samples of A2 and A3 have them.
  bool no_aic_scalar_flags = false;
  // Whether a kernel must wait for its pipes before it ends, as the pages say;
  // public kernels leave that to the hardware.
  bool drained_end = true;
  // What an instruction takes: gives `busy` and `ended` of Counts.  Cores wait
  // for each other, and scalar units work, in no time.
  std::function<Seconds(const Instruction&)> takes;
  // With `takes`: called for each instruction that a pipe has done, with when
  // it began and ended, s.
  std::function<void(const CoreName&, const Instruction&, double, double)>
      on_done;
  // Called as the `index`-th core begins or goes on, and as it stops.
  std::function<void(size_t index, bool goes_on)> on_switch;
  // Called for what orders and what is ordered.
  std::function<void(const Event&)> on_event;
  // Called for each instruction as it is issued, with the tag of OnTask; may
  // change `run`.
  std::function<void(int64_t tag, Instruction*)> on_issue;
};

enum class ErrorKind : uint8_t {
  kRefused,    // an operand or a call that the hardware does not take
  kBounds,     // outside of a memory or of every registered range
  kUndefined,  // reads what nobody wrote
  kHazard,     // two accesses of a core that nothing orders
  kRace,       // two accesses of different cores that nothing orders
  kFlag,       // of a core: set twice, left over, not one of its type
  kCrossFlag,  // between cores: more than 15, left over
  kStaleLine,  // a scalar load from a cached line that others have written
  kDirtyLine,  // written back over what others have written, or left dirty
  kDeadlock,
};

// An access or a wait: which call, where in the source, on which pipe.
struct Place {
  CoreName core;
  Pipe pipe;
  const char* call;
  Site site;
  int64_t tag = -1;  // of OnTask as it was issued
};

struct Error {
  ErrorKind kind;
  Place at;
  Memory memory = Memory::kGm;  // with `begin` < `end`: bytes of it
  uint64_t begin = 0;
  uint64_t end = 0;
  std::vector<Place> others =
      {};                    // whose order to `at` is missing, or who wrote
  std::string missing = "";  // what would order them, e.g. "MTE2_V"
  std::string text = "";     // all of it, one line
};

// What a core did while OnTask said `tag`; -1 outside of tasks.
struct Counts {
  CoreName core;
  int64_t tag;
  uint64_t instructions[kNumPipes];
  uint64_t bytes[kNumPipes];
  uint64_t cube_steps;
  uint64_t vector_steps;
  uint64_t waits;          // WaitFlag and CrossCoreWaitFlag
  uint64_t barriers;       // PipeBarrier
  uint64_t polls;          // scalar loads of words of kFlags
  double busy[kNumPipes];  // s, by LaunchSpec::takes
  double ended;            // s from the launch's start, its last instruction
};

struct LaunchResult {
  std::vector<Error> errors;  // empty if the kernel is right
  std::vector<Counts> counts;
  uint64_t cycles;  // modelled, 50 MHz
  bool ok() const { return errors.empty(); }
};

// Never throws; deterministic in `spec`.  One launch at a time in a process.
LaunchResult Launch(const LaunchSpec& spec);

// Of the core that runs: what it does next belongs to task `tag`; -1: to none.
void OnTask(int64_t tag);

const char* NameOf(ErrorKind kind);

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_ENGINE_KERNEL_LAUNCH_H_
