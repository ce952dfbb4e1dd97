#include "backend_ascend/twin/intrinsics/intrinsic.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <string>

#include "backend_ascend/twin/engine/machine.h"
#include "backend_ascend/twin/engine/scalar.h"
#include "backend_ascend/twin/instructions/numbers.h"
#include "backend_ascend/twin/intrinsics/core_state.h"
#include "backend_ascend/twin/intrinsics/modules.h"

namespace ascend_twin {

Operand Arguments::Of(int i, Type otherwise) const {
  static constexpr Memory kMemories[] = {
      Memory::kGm,  Memory::kGm,  Memory::kUb, Memory::kL1,   Memory::kL0A,
      Memory::kL0B, Memory::kL0C, Memory::kGm, Memory::kBias, Memory::kGm};
  const Argument& argument = all_[i];
  if (argument.space == Space::kNone || argument.space == Space::kFixpipe ||
      argument.space == Space::kSsBuffer) {
    call.Refuse("argument " + std::to_string(i) +
                ": expected a pointer to a memory that the twin has");
  }
  Operand operand;
  operand.memory = kMemories[static_cast<int>(argument.space)];
  operand.begin = argument.bits;
  static_assert(kNoType == static_cast<uint8_t>(Type::kNone), "one number");
  operand.type = static_cast<Type>(argument.type);
  if (operand.type == Type::kNone) operand.type = otherwise;
  return operand;
}

namespace {

// Kernels are not unwound: a destructor of theirs may be what ends the launch.
template <typename F>
auto InKernel(F f) {
  Machine& machine = *ThisMachine();
  try {
    return f();
  } catch (const Abort&) {
  } catch (const std::exception& error) {
    machine.NoteException(error);
  }
  machine.core().fiber->Leave();
}

void Absent(const Arguments& arguments) {
  arguments.call.Refuse(
      "expected an intrinsic that the twin has: it lacks this one");
}

using Table = std::map<std::string, Intrinsic>;

Table MakeTable() {
  Table table;
  for (const auto& family :
       {SyncIntrinsics(), MoveIntrinsics(), VectorIntrinsics(),
        ChooseIntrinsics(), CubeIntrinsics()}) {
    for (const Intrinsic& one : family) table.emplace(one.name, one);
  }
  return table;
}

Table& AllIntrinsics() {
  static Table table = MakeTable();
  return table;
}

}  // namespace

std::vector<std::string> IntrinsicNames() {
  std::vector<std::string> names;
  for (const auto& [name, intrinsic] : AllIntrinsics()) names.push_back(name);
  return names;
}

}  // namespace ascend_twin

using namespace ascend_twin;

const void* hpmoe_twin_find(const char* name) {
  const Intrinsic absent(name, 0, kAny, &Absent);
  return &AllIntrinsics().emplace(name, absent).first->second;
}

int64_t hpmoe_twin_call(const void* intrinsic, const Argument* arguments,
                        int count) {
  const Intrinsic& one = *static_cast<const Intrinsic*>(intrinsic);
  if (ThisMachine() == nullptr) return 0;  // of a program, outside of kernels
  return InKernel([&] {
    const Arguments given(one.name.c_str(), ThisState().site, arguments, count);
    if (count < one.least || one.most < count) {
      given.call.Refuse("expected " + std::to_string(one.least) + " to " +
                        std::to_string(one.most) +
                        " arguments, which the twin knows, got " +
                        std::to_string(count));
    }
    return one.run(given);
  });
}

namespace {

// No memory that the twin keeps: the host's, and the code's own variables.
bool IsPlain(int space, uint64_t begin) {
  return ThisMachine() == nullptr || space == 0 ||
         (space == static_cast<int>(Space::kGm) && IsOfCode(begin));
}

Memory MemoryOf(int space) {
  return space == static_cast<int>(Space::kGm)   ? Memory::kGm
         : space == static_cast<int>(Space::kUb) ? Memory::kUb
                                                 : Memory::kL1;
}

// Touches bytes of a memory, `scalar` by pieces that lie in one line of the
// scalar cache: from which of them, and how many.
template <typename F>
void ByLines(int space, uint64_t begin, uint64_t bytes, F scalar) {
  InKernel([&] {
    for (uint64_t at = 0; at < bytes;) {
      const uint64_t rest = kLineBytes - (begin + at) % kLineBytes;
      const uint64_t piece = std::min(rest, bytes - at);
      scalar(MemoryOf(space), at, piece);
      at += piece;
    }
    return 0;
  });
}

}  // namespace

// What a compiler makes of an access through a pointer of an address space.
extern "C" {

void hpmoe_twin_load(int space, uint64_t begin, uint64_t bytes, char* to) {
  if (IsPlain(space, begin)) {
    std::memcpy(to, reinterpret_cast<const char*>(begin), bytes);
    return;
  }
  ByLines(space, begin, bytes, [&](Memory memory, uint64_t at, uint64_t piece) {
    ScalarLoad(memory, begin + at, piece, to + at, ThisState().site);
  });
}

void hpmoe_twin_store(int space, uint64_t begin, uint64_t bytes,
                      const char* from) {
  if (IsPlain(space, begin)) {
    std::memcpy(reinterpret_cast<char*>(begin), from, bytes);
    return;
  }
  ByLines(space, begin, bytes, [&](Memory memory, uint64_t at, uint64_t piece) {
    ScalarStore(memory, begin + at, piece, from + at, ThisState().site);
  });
}

#define HPMOE_ACCESS(bits)                                                   \
  uint##bits##_t hpmoe_twin_load##bits(int space, uint64_t begin) {          \
    uint##bits##_t x;                                                        \
    hpmoe_twin_load(space, begin, sizeof(x), (char*)&x);                     \
    return x;                                                                \
  }                                                                          \
  void hpmoe_twin_store##bits(int space, uint64_t begin, uint##bits##_t x) { \
    hpmoe_twin_store(space, begin, sizeof(x), (const char*)&x);              \
  }
HPMOE_ACCESS(8)
HPMOE_ACCESS(16)
HPMOE_ACCESS(32)
HPMOE_ACCESS(64)
#undef HPMOE_ACCESS

void hpmoe_twin_copy(int to_space, uint64_t to, int from_space, uint64_t from,
                     uint64_t bytes) {
  std::vector<char> through(bytes);
  hpmoe_twin_load(from_space, from, bytes, through.data());
  hpmoe_twin_store(to_space, to, bytes, through.data());
}

void hpmoe_twin_fill(int space, uint64_t to, int value, uint64_t bytes) {
  const std::vector<char> through(bytes, static_cast<char>(value));
  hpmoe_twin_store(space, to, bytes, through.data());
}

int64_t hpmoe_twin_cycle() {
  if (ThisMachine() == nullptr) return 0;
  return InKernel([] { return Cycle(ThisState().site); });
}

// What Clang calls where the host has no instruction for halves.
float __gnu_h2f_ieee(uint16_t bits) { return FloatOfHalf(bits); }
uint16_t __gnu_f2h_ieee(float x) { return HalfOfFloat(x); }

// A core is at a line of the user's source.
void hpmoe_twin_at(const char* file, int line) {
  if (ThisMachine() != nullptr) ThisState().site = {file, line};
}

// InitSocState, or TPipe's constructor.
void hpmoe_twin_begin(int tpipe) {
  if (ThisMachine() != nullptr) Initialise(tpipe != 0);
}

// What a core does next belongs to a task.
void hpmoe_twin_task(int64_t index) {
  if (ThisMachine() != nullptr) OnTask(index);
}

}  // extern "C"
