// Flags, barriers, settings of a core and what it asks of itself.

#include <string>

#include "backend_ascend/twin/engine/machine.h"
#include "backend_ascend/twin/engine/scalar.h"
#include "backend_ascend/twin/engine/sync.h"
#include "backend_ascend/twin/instructions/lanes.h"
#include "backend_ascend/twin/instructions/moves.h"
#include "backend_ascend/twin/intrinsics/core_state.h"
#include "backend_ascend/twin/intrinsics/intrinsic.h"

namespace ascend_twin {
namespace {

// Of compiler_builtins.h's pipe_t, in its order; kS stands for those that are
// no queue.
constexpr Pipe kPipes[] = {Pipe::kS,    Pipe::kV,    Pipe::kM,  Pipe::kMte1,
                           Pipe::kMte2, Pipe::kMte3, Pipe::kS,  Pipe::kS,
                           Pipe::kS,    Pipe::kS,    Pipe::kFix};
constexpr int64_t kPipeAll = 6;

Pipe PipeAt(const Arguments& a, int i) {
  a.call.Between("pipe", a.At(i), 0, 10);
  return kPipes[a.At(i)];
}

void SetFlagCall(const Arguments& a) {
  SetFlag({PipeAt(a, 0), PipeAt(a, 1)}, a[2], a.call.site());
}

void WaitFlagCall(const Arguments& a) {
  WaitFlag({PipeAt(a, 0), PipeAt(a, 1)}, a[2], a.call.site());
}

void PipeBarrierCall(const Arguments& a) {
  const Pipe pipe = PipeAt(a, 0);
  if (a.At(0) == kPipeAll) {
    BarrierAll(a.call.site());
  } else if (pipe != Pipe::kS) {
    Barrier(pipe, a.call.site());
  }
}

// 1 + (mode << 4) + (id << 8).
void CrossSetCall(const Arguments& a) {
  const uint64_t what = a.Bits(1);
  CrossSet(static_cast<int32_t>(what >> 4 & 3), PipeAt(a, 0),
           static_cast<int32_t>(what >> 8 & 15), a.call.site());
}

void CrossWaitCall(const Arguments& a) { CrossWait(a[0], a.call.site()); }

void Dcci(const Arguments& a) {
  if (a.At(1) != 0) {
    CleanAndInvalidateAll(a.call.site());
  } else {
    CleanAndInvalidateLine(a.Bits(0), a.call.site());
  }
}

void Dsb(const Arguments& a) {
  if (a.At(0) <= 1) WriteBacksDone();  // all, or global memory
}

// -- Settings.

template <bool counts>
void MaskMode(const Arguments&) {
  SetMask(counts);
}

// Of moves: the element type alone says that they add; set_atomic_max and _min
// the twin lacks.
template <Type type>
void Atomic(const Arguments&) {
  SetAtomicType(type);
}

// Bits of the control register: floats keep infinities (48), and results leave
// L0C by rows (51), which changes no number.
constexpr uint64_t kKeepInfinities = uint64_t{1} << 48;
constexpr uint64_t kByRows = uint64_t{1} << 51;

int64_t GetControl(const Arguments&) {
  const uint64_t keeps = ThisNumerics().saturate ? 0 : kKeepInfinities;
  return static_cast<int64_t>((ThisState().control & kByRows) | keeps);
}

void SetControl(const Arguments& a) {
  const uint64_t rest = a.Bits(0) & ~(kKeepInfinities | kByRows);
  for (int bit = 0; bit < 64; ++bit) {
    if ((rest >> bit & 1) == 0) continue;
    a.call.Refuse("bit " + std::to_string(bit) +
                  ": expected 0: the twin has bits 48 and 51");
  }
  ThisState().control = a.Bits(0);
  SetSaturate((a.Bits(0) & kKeepInfinities) == 0);
}

template <uint64_t CoreState::* field>
void Keep(const Arguments& a) {
  ThisState().*field = a.Bits(0);
}

void KeepPad(const Arguments& a) {
  ThisState().has_pad = true;
  ThisState().pad = a.Bits(0);
}

// What changes nothing that the twin has.
void Nothing(const Arguments&) {}

void Trap(const Arguments& a) {
  a.call.Refuse("the kernel ends itself: an assertion of its source");
}

// What a core asks of itself.
template <int64_t (*number)()>
int64_t Number(const Arguments&) {
  return number();
}
int64_t BlockIndex() { return ThisMachine()->core().block; }

// The first bit that is set.
int64_t First(uint64_t bits) { return bits == 0 ? -1 : __builtin_ctzll(bits); }

// Global memory past the scalar cache: (pointer, bytes after it).
int64_t LoadPast(const Arguments& a) {
  const Operand from = a.Of(0);
  int64_t value = 0;
  const uint64_t at = from.begin + a.Bits(1);
  CleanAndInvalidateLine(at, a.call.site());
  ScalarLoad(Memory::kGm, at, from.size(), &value, a.call.site());
  CleanAndInvalidateLine(at, a.call.site());
  return value;
}

void StorePast(const Arguments& a) {
  const Operand to = a.Of(1);
  const uint64_t value = a.Bits(0);
  const uint64_t at = to.begin + a.Bits(2);
  CleanAndInvalidateLine(at, a.call.site());
  ScalarStore(Memory::kGm, at, to.size(), &value, a.call.site());
  CleanAndInvalidateLine(at, a.call.site());
}

}  // namespace

std::vector<Intrinsic> SyncIntrinsics() {
  using A = const Arguments&;
  return {
      {"set_flag", 3, 3, &SetFlagCall},
      {"wait_flag", 3, 3, &WaitFlagCall},
      {"pipe_barrier", 1, 1, &PipeBarrierCall},
      {"ffts_cross_core_sync", 2, 2, &CrossSetCall},
      {"wait_flag_dev", 1, 1, &CrossWaitCall},
      {"dcci", 2, 3, &Dcci},
      {"dsb", 1, 1, &Dsb},
      {"dc_preload", 0, kAny, &Nothing},
      {"preload", 0, kAny, &Nothing},
      // Marks for a simulator.
      {"__ib_set_stub", 0, kAny, &Nothing},
      {"__ib_wait_stub", 0, kAny, &Nothing},
      {"set_ffts_base_addr", 0, kAny, &Nothing},
      {"set_padding", 0, kAny, &Nothing},
      {"set_fpc", 0, kAny, &Nothing},  // of modes that the twin refuses
      {"set_l1_3d_size", 0, kAny, &Nothing},
      {"set_mask_norm", 0, kAny, &MaskMode<false>},
      {"set_mask_count", 0, kAny, &MaskMode<true>},
      {"set_vector_mask", 2, 2, [](A a) { SetMaskBits(a[0], a[1]); }},
      {"set_atomic_add", 0, kAny, &Nothing},
      {"set_atomic_none", 0, kAny, &Atomic<Type::kNone>},
      {"set_atomic_f32", 0, kAny, &Atomic<Type::kFloat>},
      {"set_atomic_f16", 0, kAny, &Atomic<Type::kHalf>},
      {"set_atomic_bf16", 0, kAny, &Atomic<Type::kBf16>},
      {"set_atomic_s32", 0, kAny, &Atomic<Type::kInt32>},
      {"set_atomic_s16", 0, kAny, &Atomic<Type::kInt16>},
      {"set_atomic_s8", 0, kAny, &Atomic<Type::kInt8>},
      {"get_ctrl", 0, kAny, &GetControl},
      {"set_ctrl", 1, 1, &SetControl},
      {"set_mov_pad_val", 1, 1, &KeepPad},
      {"set_nd_para", 1, 1, &Keep<&CoreState::nd>},
      {"set_fmatrix", 1, 1, &Keep<&CoreState::image>},
      {"set_fmatrix_b", 1, 1, &Keep<&CoreState::image_b>},
      {"set_quant_pre", 1, 1, &Keep<&CoreState::quant>},
      {"set_cmpmask", 1, 1, &Keep<&CoreState::compare_mask>},
      {"get_imm", 1, 1, [](const Arguments& a) { return a.At(0); }},
      {"set_deqscale", 1, 1, &Keep<&CoreState::dequant>},
      {"get_block_idx", 0, kAny, &Number<BlockIndex>},
      {"get_block_num", 0, kAny, &Number<NumBlocks>},
      {"get_subblockid", 0, kAny, &Number<ThisSubBlock>},
      {"get_subblockdim", 0, kAny, &Number<NumSubBlocks>},
      {"get_coreid", 0, kAny, &Number<ThisBlock>},
      {"get_sys_cnt", 0, kAny, [](A a) { return Cycle(a.call.site()); }},
      {"trap", 0, kAny, &Trap},
      {"sbitset0", 2, 2,
       [](A a) { return a.Bits(0) & ~(uint64_t{1} << a.At(1)); }},
      {"sbitset1", 2, 2,
       [](A a) { return a.Bits(0) | uint64_t{1} << a.At(1); }},
      {"sff0", 1, 1, [](A a) { return First(~a.Bits(0)); }},
      {"sff1", 1, 1, [](A a) { return First(a.Bits(0)); }},
      {"bcnt0", 1, 1, [](A a) { return __builtin_popcountll(~a.Bits(0)); }},
      {"bcnt1", 1, 1, [](A a) { return __builtin_popcountll(a.Bits(0)); }},
      {"clz", 1, 1,
       [](A a) { return a.Bits(0) == 0 ? 64 : __builtin_clzll(a.Bits(0)); }},
      {"ld_dev", 2, 2, &LoadPast},
      {"st_dev", 3, 3, &StorePast},
  };
}

}  // namespace ascend_twin
