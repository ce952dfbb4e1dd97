// Flags, barriers, settings of a core and what it asks of itself.

#include <string>

#include "backend_ascend/kernels/ascendc/twin/engine/machine.h"
#include "backend_ascend/kernels/ascendc/twin/engine/scalar.h"
#include "backend_ascend/kernels/ascendc/twin/engine/sync.h"
#include "backend_ascend/kernels/ascendc/twin/instructions/lanes.h"
#include "backend_ascend/kernels/ascendc/twin/instructions/moves.h"
#include "backend_ascend/kernels/ascendc/twin/intrinsics/core_state.h"
#include "backend_ascend/kernels/ascendc/twin/intrinsics/intrinsic.h"

namespace ascend_twin {
namespace {

// Of device.h's pipe_t, in its order; kS stands for those that are no queue.
constexpr Pipe kPipes[] = {Pipe::kS,    Pipe::kV,    Pipe::kM,  Pipe::kMte1,
                           Pipe::kMte2, Pipe::kMte3, Pipe::kS,  Pipe::kS,
                           Pipe::kS,    Pipe::kS,    Pipe::kFix};
constexpr int64_t kPipeAll = 6;

Pipe PipeAt(const Arguments& a, int i) {
  a.call.Between("pipe", a.At(i), 0, 10);
  return kPipes[a.At(i)];
}

int64_t SetFlagCall(const Arguments& a) {
  a.Expect(3);
  SetFlag({PipeAt(a, 0), PipeAt(a, 1)}, static_cast<int32_t>(a.At(2)),
          a.call.site());
  return 0;
}

int64_t WaitFlagCall(const Arguments& a) {
  a.Expect(3);
  WaitFlag({PipeAt(a, 0), PipeAt(a, 1)}, static_cast<int32_t>(a.At(2)),
           a.call.site());
  return 0;
}

int64_t PipeBarrierCall(const Arguments& a) {
  a.Expect(1);
  const Pipe pipe = PipeAt(a, 0);
  if (a.At(0) == kPipeAll) {
    BarrierAll(a.call.site());
  } else if (pipe != Pipe::kS) {
    Barrier(pipe, a.call.site());
  }
  return 0;
}

// 1 + (mode << 4) + (id << 8).
int64_t CrossSetCall(const Arguments& a) {
  a.Expect(2);
  const uint64_t what = a.Bits(1);
  CrossSet(static_cast<int32_t>(what >> 4 & 3), PipeAt(a, 0),
           static_cast<int32_t>(what >> 8 & 15), a.call.site());
  return 0;
}

int64_t CrossWaitCall(const Arguments& a) {
  a.Expect(1);
  CrossWait(static_cast<int32_t>(a.At(0)), a.call.site());
  return 0;
}

int64_t Dcci(const Arguments& a) {
  a.Expect(2, 3);
  if (a.At(1) != 0) {
    CleanAndInvalidateAll(a.call.site());
  } else {
    CleanAndInvalidateLine(a.Bits(0), a.call.site());
  }
  return 0;
}

int64_t Dsb(const Arguments& a) {
  a.Expect(1);
  if (a.At(0) <= 1) WriteBacksDone();  // all, or global memory
  return 0;
}

// -- Settings.

template <bool counts>
int64_t MaskMode(const Arguments&) {
  SetMask(counts);
  return 0;
}

int64_t VectorMask(const Arguments& a) {
  a.Expect(2);
  SetMaskBits(a.Bits(0), a.Bits(1));
  return 0;
}

int64_t AtomicNone(const Arguments&) {
  SetAtomicType(AtomicType::kNone);
  return 0;
}

// The element type, which alone says that moves add; set_atomic_max and _min
// the twin lacks.
template <AtomicType type>
int64_t AtomicOf(const Arguments&) {
  SetAtomicType(type);
  return 0;
}

// Bits of the control register: floats keep infinities (48), and results leave
// L0C by rows (51), which changes no number.
constexpr uint64_t kKeepInfinities = uint64_t{1} << 48;
constexpr uint64_t kByRows = uint64_t{1} << 51;

int64_t GetControl(const Arguments&) {
  const uint64_t keeps = ThisNumerics().saturate ? 0 : kKeepInfinities;
  return static_cast<int64_t>((ThisState().control & kByRows) | keeps);
}

int64_t SetControl(const Arguments& a) {
  a.Expect(1);
  const uint64_t rest = a.Bits(0) & ~(kKeepInfinities | kByRows);
  for (int bit = 0; bit < 64; ++bit) {
    if ((rest >> bit & 1) == 0) continue;
    a.call.Refuse("bit " + std::to_string(bit) +
                  ": expected 0: the twin has bits 48 and 51");
  }
  ThisState().control = a.Bits(0);
  SetSaturate((a.Bits(0) & kKeepInfinities) == 0);
  return 0;
}

template <uint64_t CoreState::* field>
int64_t Keep(const Arguments& a) {
  a.Expect(1);
  ThisState().*field = a.Bits(0);
  return 0;
}

int64_t KeepPad(const Arguments& a) {
  ThisState().has_pad = true;
  return Keep<&CoreState::pad>(a);
}

// What changes nothing that the twin has.
int64_t Nothing(const Arguments&) { return 0; }

// -- What a core asks of itself.

int64_t BlockIndex(const Arguments&) { return ThisMachine()->core().block; }
int64_t BlockCount(const Arguments&) { return NumBlocks(); }
int64_t SubBlock(const Arguments&) { return ThisSubBlock(); }
int64_t SubBlocks(const Arguments&) { return NumSubBlocks(); }
int64_t CoreId(const Arguments&) { return ThisBlock(); }
int64_t SystemCycle(const Arguments& a) { return Cycle(a.call.site()); }
int64_t Trap(const Arguments& a) {
  a.call.Refuse("the kernel ends itself: an assertion of its source");
}

// -- Bits of a number.

int64_t BitSet(const Arguments& a) {
  return static_cast<int64_t>(a.Bits(0) | uint64_t{1} << a.At(1));
}
int64_t BitClear(const Arguments& a) {
  return static_cast<int64_t>(a.Bits(0) & ~(uint64_t{1} << a.At(1)));
}
int64_t First(uint64_t bits) { return bits == 0 ? -1 : __builtin_ctzll(bits); }
int64_t FirstOne(const Arguments& a) { return First(a.Bits(0)); }
int64_t FirstZero(const Arguments& a) { return First(~a.Bits(0)); }
int64_t Ones(const Arguments& a) { return __builtin_popcountll(a.Bits(0)); }
int64_t Zeros(const Arguments& a) { return __builtin_popcountll(~a.Bits(0)); }
int64_t LeadingZeros(const Arguments& a) {
  return a.Bits(0) == 0 ? 64 : __builtin_clzll(a.Bits(0));
}

// Global memory past the scalar cache: (pointer, bytes after it).
int64_t LoadPast(const Arguments& a) {
  a.Expect(2);
  const Operand from = a.Of(0);
  int64_t value = 0;
  const uint64_t at = from.begin + a.Bits(1);
  CleanAndInvalidateLine(at, a.call.site());
  ScalarLoad(Memory::kGm, at, from.size(), &value, a.call.site());
  CleanAndInvalidateLine(at, a.call.site());
  return value;
}

int64_t StorePast(const Arguments& a) {
  a.Expect(3);
  const Operand to = a.Of(1);
  const uint64_t value = a.Bits(0);
  const uint64_t at = to.begin + a.Bits(2);
  CleanAndInvalidateLine(at, a.call.site());
  ScalarStore(Memory::kGm, at, to.size(), &value, a.call.site());
  CleanAndInvalidateLine(at, a.call.site());
  return 0;
}

}  // namespace

std::vector<Intrinsic> SyncIntrinsics() {
  return {
      {"set_flag", &SetFlagCall},
      {"wait_flag", &WaitFlagCall},
      {"pipe_barrier", &PipeBarrierCall},
      {"ffts_cross_core_sync", &CrossSetCall},
      {"wait_flag_dev", &CrossWaitCall},
      {"dcci", &Dcci},
      {"dsb", &Dsb},
      {"dc_preload", &Nothing},
      {"preload", &Nothing},
      // Marks for a simulator.
      {"__ib_set_stub", &Nothing},
      {"__ib_wait_stub", &Nothing},
      {"set_ffts_base_addr", &Nothing},
      {"set_padding", &Nothing},
      {"set_fpc", &Nothing},  // of modes that the twin refuses
      {"set_l1_3d_size", &Nothing},
      {"set_mask_norm", &MaskMode<false>},
      {"set_mask_count", &MaskMode<true>},
      {"set_vector_mask", &VectorMask},
      {"set_atomic_add", &Nothing},
      {"set_atomic_none", &AtomicNone},
      {"set_atomic_f32", &AtomicOf<AtomicType::kFloat>},
      {"set_atomic_f16", &AtomicOf<AtomicType::kHalf>},
      {"set_atomic_bf16", &AtomicOf<AtomicType::kBf16>},
      {"set_atomic_s32", &AtomicOf<AtomicType::kInt32>},
      {"set_atomic_s16", &AtomicOf<AtomicType::kInt16>},
      {"set_atomic_s8", &AtomicOf<AtomicType::kInt8>},
      {"get_ctrl", &GetControl},
      {"set_ctrl", &SetControl},
      {"set_mov_pad_val", &KeepPad},
      {"set_nd_para", &Keep<&CoreState::nd>},
      {"set_fmatrix", &Keep<&CoreState::image>},
      {"set_quant_pre", &Keep<&CoreState::quant>},
      {"set_cmpmask", &Keep<&CoreState::compare_mask>},
      {"set_deqscale", &Keep<&CoreState::dequant>},
      {"get_block_idx", &BlockIndex},
      {"get_block_num", &BlockCount},
      {"get_subblockid", &SubBlock},
      {"get_subblockdim", &SubBlocks},
      {"get_coreid", &CoreId},
      {"get_sys_cnt", &SystemCycle},
      {"trap", &Trap},
      {"sbitset0", &BitClear},
      {"sbitset1", &BitSet},
      {"sff0", &FirstZero},
      {"sff1", &FirstOne},
      {"bcnt0", &Zeros},
      {"bcnt1", &Ones},
      {"clz", &LeadingZeros},
      {"ld_dev", &LoadPast},
      {"st_dev", &StorePast},
  };
}

}  // namespace ascend_twin
