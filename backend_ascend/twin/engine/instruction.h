// What the calls of Ascend C hand to the engine: one instruction of one pipe,
// with all that it reads and writes.  `instructions/` makes them, the engine
// runs them when their pipe and the mode say so.

#ifndef BACKEND_ASCEND_TWIN_ENGINE_INSTRUCTION_H_
#define BACKEND_ASCEND_TWIN_ENGINE_INSTRUCTION_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ascend_twin {

// The in-order queues of a core.  kS is the scalar unit: it issues, and runs
// what it does itself at once.
enum class Pipe : uint8_t { kS, kMte1, kMte2, kMte3, kM, kV, kFix };
constexpr int kNumPipes = 7;

enum class Memory : uint8_t { kGm, kUb, kL1, kL0A, kL0B, kL0C, kBias };
constexpr int kNumMemories = 7;

enum class CoreType : uint8_t { kAic, kAiv };

const char* NameOf(Pipe pipe);
const char* NameOf(Memory memory);
const char* NameOf(CoreType type);

// Where a call stands in the kernel's source.  As the default of a function's
// last parameter it is the place of the call.
struct Site {
  const char* file;
  int line;

  static constexpr Site Here(const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
    return {file, line};
  }
};

// `rows` runs of `bytes` bytes, `pitch` bytes from start to start, from byte
// `begin` of a memory; in kGm `begin` is the address.
struct Span {
  Memory memory;
  uint64_t begin;
  uint64_t bytes;
  uint64_t rows = 1;
  uint64_t pitch = 0;
  // It may hold what nobody wrote, as padding of fractals does.
  bool loose = false;
};

// Whether bytes [begin, end) of its memory are among a span's.
inline bool Meets(const Span& span, uint64_t begin, uint64_t end) {
  if (end <= span.begin) return false;
  if (span.rows == 1) return begin < span.begin + span.bytes;
  // The last row that begins before `end`.
  const uint64_t row =
      std::min(span.rows - 1, (end - 1 - span.begin) / span.pitch);
  return begin < span.begin + row * span.pitch + span.bytes;
}

// What a cost model counts.
struct Work {
  uint64_t bytes = 0;         // moved
  uint64_t cube_steps = 0;    // 16 x 16 x 32-byte products
  uint64_t vector_steps = 0;  // repeats of 256 bytes
  bool of_floats = false;     // cube steps of 4-byte elements
};

struct Instruction {
  const char* name;  // of the call, as Ascend C spells it
  Pipe pipe;
  Site site;
  std::vector<Span> reads;
  std::vector<Span> writes;
  // Does the work on bytes that `Bytes` gives.  Called once, when the pipe
  // comes to it; captures values, never references.
  std::function<void()> run;
  Work work;
  bool atomic = false;  // its writes are adds: two of them are no race
  // What comes of loose reads: from marks of the bytes from the first read on,
  // not 0 where nobody wrote, to those of the bytes from the first write on,
  // which come as they were.
  std::function<void(const char* from, char* to)> spread;
  // What it writes comes of what it reads alone: nothing spreads where all of
  // that was written.
  bool spreads_reads = false;
  // The hardware orders it with earlier ones of its pipe, as Mmad of 10 blocks
  // of 16 x 16 and more: no barrier is needed.
  bool in_order = false;
};

// Gives an instruction to the core that runs: checks bounds and budgets of all
// spans, then queues it.  A span may begin at any byte: alignment is a matter
// of operands, which the calls check.
void Issue(Instruction instruction);

// Ends the launch: the call asks for what the hardware does not do.  `text`
// says what was expected and what came, e.g. "dst: expected a multiple of 32 B,
// got byte 24 of UB".
[[noreturn]] void Refuse(const char* name, Site site, const std::string& text);

// The bytes of an on-chip memory of the core that runs, or of global memory.
char* Bytes(Memory memory, uint64_t begin);

// Of the core that runs.
CoreType ThisCoreType();

// What a mode of the twin chooses where the hardware's behaviour is not
// published.
enum class MmadOrder : uint8_t { kAscending, kBlocksOf16, kReversed, kEvenOdd };
enum class ExpMode : uint8_t { kNearest, kUp, kDown };  // +- 1 ulp
struct Numerics {
  MmadOrder mmad_order = MmadOrder::kAscending;
  ExpMode exp = ExpMode::kNearest;
  bool flush_subnormals = false;
  bool saturate = false;  // CTRL[48] = 0: inf becomes +-max, nan 0; at the
                          // start, until the kernel calls SetSaturationFlag
  // Where sources disagree.  Fixpipe's page says nSize in 16s, the headers'
  // check and catlass any for ROW_MAJOR; a report says that the 910B cannot
  // load float transposed to L0B, pages and catlass do.
  bool fixpipe_n_of_16 = false;
  bool no_float_to_l0b = false;
  // Whether to refuse operands that overlap where no page says what they give.
  bool strict = true;
};
const Numerics& ThisNumerics();
void SetSaturate(bool saturate);

// Of elements; kNone where a call says none.
enum class Type : uint8_t {
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kHalf,
  kBf16,
  kInt32,
  kUint32,
  kFloat,
  kInt64,
  kUint64,
  kNone = 255
};

// Element type of SetAtomicAdd that later moves to global memory carry, or
// kNone; a setting of the core that the hardware orders with moves.
void SetAtomicType(Type type);
Type ThisAtomicType();

// Settings of a core that its vector calls keep from one to the next, and that
// the hardware orders with them: read and written when a call is issued.
struct Registers {
  bool mask_counts = false;  // SetMaskCount: the mask is a count of elements
  uint64_t mask[2] = {~uint64_t{0}, ~uint64_t{0}};  // low, high
};
Registers& ThisRegisters();

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_ENGINE_INSTRUCTION_H_
