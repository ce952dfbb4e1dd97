// A launch as it goes: cores, their pipes, memories and flags, and which runs.

#ifndef BACKEND_ASCEND_TWIN_ENGINE_MACHINE_H_
#define BACKEND_ASCEND_TWIN_ENGINE_MACHINE_H_

#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend_ascend/twin/engine/fiber.h"
#include "backend_ascend/twin/engine/kernel_launch.h"
#include "backend_ascend/twin/engine/sync.h"
#include "backend_ascend/twin/memory/clocks.h"
#include "backend_ascend/twin/memory/globals.h"
#include "backend_ascend/twin/memory/shadow.h"

namespace ascend_twin {

constexpr int kNumFlagIds = 8;
constexpr int kNumCrossIds = 16;
constexpr int kLineBytes = 64;
constexpr Site kItsEnd{"its end", 0};
constexpr Place kNowhere{{0, CoreType::kAic, 0}, Pipe::kS, "", kItsEnd};
constexpr char kNothingGoesOn[] = "nothing can go on: ";
constexpr size_t kQueueDepth = 32;  // MTE1 and M; others [inferred]

// Unwinds a core after the launch has an error.
struct Abort {};

// One entry of a pipe's queue.
struct Queued {
  enum Kind : uint8_t { kWork, kSet, kWait, kBarrier, kCrossSet };
  Kind kind = kWork;
  Instruction work;  // of the others: name, pipe and site
  PipeEvent event{};
  int32_t id = 0;
  int32_t mode = 0;  // of kCrossSet
  int64_t tag = -1;
  uint64_t order = 0;                  // among all that is issued
  double issued = 0;                   // s
  std::shared_ptr<const Clock> known;  // to the scalar unit as it issued this
};

// What a pipe's instructions knew as they ran, from the `since`-th on.
struct Learned {
  uint32_t since;
  Clock known;
};

// When a pipe does what it does, by LaunchSpec::takes.
struct PipeTime {
  double now = 0;                 // s, it may go on
  double seen = 0;                // all that it did is seen
  double left[kQueueDepth] = {};  // the last entries left its queue
  uint64_t num_issued = 0;
  uint64_t num_left = 0;
};

struct PipeState {
  std::deque<Queued> queue;
  PipeTime time;
  Clock known;  // to be complete before what starts next
  std::shared_ptr<const Clock> joined;  // last, into `known`
  uint32_t count = 0;                   // of its instructions so far
  uint32_t worked = 0;                  // the last that was no wait for a flag
  std::deque<Learned> learned;          // with auto_sync
};

struct Flag {
  bool set = false;
  double time = 0;           // s, of the last set
  uint32_t wait_number = 0;  // of the last wait, by its pipe's count
  Clock known;
  std::deque<Clock> more;  // with flags_count: of later sets
  Place setter{};
  Place waiter{};
};

struct CrossFlag {
  std::deque<Clock> sets;        // delivered and not waited for
  std::deque<Clock> pending[3];  // by mode, until all of the group have set
  Place setter{};                // of the last
};

// A line of global memory in the cache of a scalar unit, bit i: byte i.
struct Line {
  char bytes[kLineBytes];
  uint64_t valid = 0;
  uint64_t dirty = 0;
  uint64_t stale = 0;  // others wrote it since it was loaded
  Place writer{};      // who made it stale
  Site store{};        // that made it dirty
};

struct Chip {
  uint64_t size = 0;
  std::unique_ptr<char[]> bytes;
  std::unique_ptr<Shadow> shadow;
};

// What a scalar unit that stands still waits for.
struct Waiting {
  enum Kind : uint8_t {
    kNothing,
    kFlag,
    kCross,
    kDrain,
    kRoom,
    kPoll,
    kStores,  // to polled words
    kPipe     // until `pipe` has run what is `order` of all that was issued
  };
  Kind kind = kNothing;
  const char* call = "";
  Site site = kItsEnd;
  PipeEvent event{};
  int32_t id = 0;
  Pipe pipe = Pipe::kS;
  uint64_t order = 0;
  uint64_t address = 0;  // of the last poll
  uint64_t version = 0;  // of flags in global memory, as it polled
};

struct Core {
  CoreName name;
  int32_t block = 0;
  uint32_t first_agent = 0;
  std::unique_ptr<Fiber> fiber;
  PipeState pipes[kNumPipes];
  uint32_t in_order_count = 0;
  uint32_t write_back_count = 0;
  std::shared_ptr<const Clock> snapshot;  // of what the scalar unit knows
  // From, to, id; one more is L0C's.
  Flag flags[kNumPipes][kNumPipes][kNumFlagIds + 1];
  int32_t unit_full = 0;  // results that Fixpipe may take, and
  int32_t unit_free = 0;  // those taken, by unitFlag
  CrossFlag cross[kNumCrossIds];
  std::unordered_map<uint64_t, Line> lines;
  Chip chips[kNumMemories];
  Waiting waiting;
  uint64_t polled_version = 0;
  uint32_t polls = 0;            // of that version of the flags, and
  std::vector<uint64_t> looked;  // at these lines
  bool initialised = false;
  bool uses_tpipe = false;
  Type atomic = Type::kNone;
  Numerics numerics;
  Registers registers;
  bool polls_only = false;  // since the last poll
  bool started = false;
  uint32_t issued = 0;  // since it gave way
  int64_t tag = -1;
  std::map<int64_t, Counts> counts;
  Counts* counted = nullptr;  // last
  void* pipe_object = nullptr;

  Clock& scalar_known() { return pipes[0].known; }
  Flag& flag(PipeEvent event, int32_t id) {
    return flags[static_cast<int>(event.from)][static_cast<int>(event.to)][id];
  }
  const Flag& flag(PipeEvent event, int32_t id) const {
    return flags[static_cast<int>(event.from)][static_cast<int>(event.to)][id];
  }
  bool idle() const {
    for (const PipeState& pipe : pipes) {
      if (!pipe.queue.empty()) return false;
    }
    return true;
  }
  bool ended() const { return fiber->done() && idle(); }
  PipeState& pipe(Pipe p) { return pipes[static_cast<int>(p)]; }
};

// A store to polled words that others do not see yet.
struct HeldStore {
  Core* core;
  Place at;
  uint64_t begin;
  std::string bytes;
  Clock known;  // to its pipe, as it ran
};

class Machine {
 public:
  explicit Machine(const LaunchSpec& spec);

  void Run();
  LaunchResult TakeResult();

  // Of the core that runs.
  Core& core() { return *current_; }
  const LaunchSpec& spec() const { return spec_; }
  bool aborted() const { return aborted_; }

  // schedule.cc: what a scalar unit does; some stop it for a while.
  void Enqueue(Queued queued);
  void SetByScalar(PipeEvent event, int32_t id, Site site);
  void WaitByScalar(PipeEvent event, int32_t id, Site site);
  void CrossWait(int32_t id, Site site);
  void Drain(Site site);
  void Poll(const char* call, Site site);
  void LooksAt(uint64_t line);
  void ForgetOldPolls(Core* core) const;
  void GoesOn();
  void Begin(int64_t tag);  // OnTask
  uint64_t NextCycle() { return cycles_++; }
  void NoteException(const std::exception& error);

  // scalar.cc
  void Load(Memory memory, uint64_t begin, uint64_t bytes, void* to, Site site);
  void Store(Memory memory, uint64_t begin, uint64_t bytes, const void* from,
             Site site);
  void WriteBack(uint64_t number, Site site);
  void WriteBackAll(Site site);
  void WriteBacksDone();

  // auto_sync.cc
  void AwaitForScalar(Memory memory, uint64_t begin, uint64_t end, bool writes,
                      const char* call, Site site);

  // events.cc
  void Tell(const Queued& queued);
  void TellFlag(Event::Kind kind, PipeEvent event, int32_t id, Site site);
  void Tell(Event::Kind kind, Site site, int32_t id = 0);
  void TellAccess(Event::Kind kind, const Place& at, const Span& span);

  // machine.cc
  Counts& CountsOf(Core* core, int64_t tag);
  Counts& CountsNow() { return CountsOf(current_, current_->tag); }
  Place Here(const char* call, Site site) const;

  // launch.cc
  std::string KeptText(Memory memory) const;
  void CheckSpan(const Instruction& work, const Span& span, bool writes);

  // errors.cc: `text` is what comes after the place.
  [[noreturn]] void FailAt(ErrorKind kind, const Place& at, std::string text,
                           std::vector<Place> others = {},
                           std::string missing = "");

 private:
  // schedule.cc
  void Body(Core* core);
  bool CanResume(const Core& core) const;
  bool HeadRuns(const Core& core, int pipe) const;
  bool SumOvertakes(const std::deque<Queued>& queue);
  void RunHead(Core* core, int pipe);
  void RunHeads(Core* core);
  void RunSome(Core* core);
  void Block(Waiting::Kind kind, Pipe pipe = Pipe::kS);
  void Resume(Core* core);
  bool StepFibers();
  bool StepHeads();
  bool StepRandom();
  bool Idle();
  bool AllDone() const;
  void Turn();

  // auto_sync.cc
  void NoteKnown(PipeState* pipe);
  bool Inserted(Core* core, const Place& at, const Access& other);

  // machine.cc
  void MakeCores();
  void AddCore(const CoreName& name, int32_t block);
  uint32_t AgentOf(const Core& core, Pipe pipe) const;
  Clock Complete(Core* core, Pipe pipe) const;
  void ScalarLearned(Core* core) { core->snapshot = nullptr; }
  void Execute(Core* core, Queued* queued);
  void RunWork(Core* core, Queued* queued);
  void Take(Core* core, const Queued& queued);
  void Count(Core* core, const Queued& queued);
  void Touch(Core* core, const Place& at, const Instruction& work,
             const Span& span, uint32_t access, bool writes);
  // Marks of the bytes from its first write on, not 0 where it leaves them
  // unwritten; none if it has no loose reads.
  std::vector<char> Unwritten(const Core& core, const Instruction& work) const;
  void TouchFlags(uint64_t begin, uint64_t end, Clock* known, bool writes,
                  bool atomic);
  void TouchRow(Core* core, const Place& at, Memory memory, uint64_t begin,
                uint64_t end, uint32_t access, const Clock& known, bool writes,
                bool defined);

  // flags.cc
  void Set(Core* core, const Place& at, PipeEvent event, int32_t id);
  void Wait(Core* core, const Place& at, PipeEvent event, int32_t id);
  void CrossSet(Core* core, const Queued& queued);
  void Deliver(Core* to, int32_t id, const Clock& known, const Place& setter);

  // scalar.cc
  void NoteWrite(const Place& at, uint64_t begin, uint64_t end,
                 const Core* but);
  Line& LineOf(Core* core, uint64_t begin, uint64_t bytes,
               const Global& global);
  void ScalarOnChip(Memory memory, uint64_t begin, uint64_t bytes,
                    const Place& at, bool writes);
  void LoadGlobal(const Place& at, uint64_t begin, uint64_t bytes, void* to);
  void LoadShadowed(Core* core, const Place& at, uint64_t begin,
                    uint64_t bytes);
  void WriteBackRun(const Place& at, uint64_t begin, const char* bytes,
                    uint64_t count);

  // pending_stores.cc
  bool Holds();
  bool HoldsMove(const Instruction& work);
  void RunHeld(Core* core, const Place& at, const Instruction& work);
  void Hold(Core* core, const Place& at, uint64_t begin, std::string bytes);
  void CompleteHeld(size_t index);
  bool IsHeld(const Core& core, Pipe pipe) const;
  void CompleteHeldAt(const Core* core, uint64_t begin, uint64_t end);
  void SeeOwnHeld(const Core& core, uint64_t begin, Line* line) const;
  bool StepHeld();

  // launch_end.cc
  bool Drained(const Core& core) const;
  void CheckEnd(Core* core);
  void CheckLeftovers();
  void NoteLeftFlag(const Core& core, PipeEvent event, int32_t id);
  void NoteLeftCross(const Core& core, int32_t id);
  bool IsStuck(const Core& core) const;
  std::string WaitText(const Core& core) const;
  const PipeEvent* AwaitedFlag(const Core& core) const;
  [[noreturn]] void FailDeadlock(const std::string& why);

  // launch.cc
  Global& GlobalOf(const Place& at, uint64_t begin, uint64_t end);
  void CheckGlobal(const Place& at, const Span& span, bool writes);

  // events.cc
  void TellAs(Event::Kind kind, Pipe other, int32_t id, int32_t mode,
              const Instruction& work);
  bool IsPolled(const Span& span);

  // errors.cc
  void Note(Error error);
  [[noreturn]] void Fail(Error error);
  [[noreturn]] void FailSpan(ErrorKind kind, const Place& at, Memory memory,
                             uint64_t begin, uint64_t end,
                             const std::string& text);
  [[noreturn]] void FailConflict(const Place& at, Memory memory, uint64_t base,
                                 const Conflict& conflict, bool writes);
  [[noreturn]] void FailStale(const Place& at, uint64_t begin, uint64_t bytes,
                              const Line& line);
  [[noreturn]] void FailDirty(const Place& at, uint64_t number,
                              const Line& line);
  // An instruction, the `last`-th or older, that still waits in a queue and
  // writes, or reads, some of the bytes; null: none.
  const Queued* Pending(const Core& core, const Span& bytes, bool writes,
                        bool reads, uint64_t last) const;
  void DescribeConflict(const Place& at, const Conflict& conflict, bool writes,
                        Error* error) const;
  void DescribeOrder(const Place& at, const Place& other, uint64_t other_order,
                     const char* how, Error* error) const;
  std::string SpanText(Memory memory, uint64_t begin, uint64_t end) const;
  Place WhereOf(const Access& access) const;

  const LaunchSpec& spec_;
  Globals globals_;
  Accesses accesses_;
  std::vector<std::unique_ptr<Core>> cores_;
  Core* current_ = nullptr;
  bool aborted_ = false;
  size_t next_core_ = 0;
  uint64_t order_ = 0;
  uint64_t head_steps_ = 0;
  uint64_t running_ = 0;         // of what runs, its `order`
  bool read_unwritten_ = false;  // what runs has read what nobody wrote
  uint64_t cycles_ = 0;
  uint64_t instructions_ = 0;
  uint64_t progress_ = 0;       // instructions, flags, tasks, first looks
  uint64_t flags_version_ = 1;  // of words that cores may poll
  uint64_t idle_step_ = 0;
  uint64_t idle_begin_ = 0;
  uint64_t idle_progress_ = 0;
  std::mt19937_64 random_;
  std::unordered_map<uint64_t, std::vector<Core*>> cached_;  // by line
  std::vector<HeldStore> held_;                              // the oldest first
  LaunchResult result_;
};

Place PlaceOf(const Core& core, const Queued& queued);

// errors.cc: how places, cores and events are spelt.
std::string SiteText(Site site);             // FILE:LINE
std::string CoreText(const CoreName& core);  // AIV 3 of rank 1
std::string PlaceText(const Place& place);   // FILE:LINE (pipe V, DataCopy)
std::string EventName(PipeEvent event);      // V_MTE3

// Whether --cce-auto-sync orders accesses of two pipes that depend on each
// other.
bool CompilerOrders(CoreType type, Pipe from, Pipe to);

// Of this thread, or null outside of a launch.
Machine* ThisMachine();

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_ENGINE_MACHINE_H_
