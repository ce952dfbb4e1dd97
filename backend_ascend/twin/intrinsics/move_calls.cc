// Moves between global memory and the chip, and within it.

#include "backend_ascend/twin/instructions/moves.h"
#include "backend_ascend/twin/intrinsics/core_state.h"
#include "backend_ascend/twin/intrinsics/intrinsic.h"

namespace ascend_twin {
namespace {

// What atomic moves add; bytes where none is set.
Type MovedType() {
  const Type type = ThisAtomicType();
  return type == Type::kNone ? Type::kUint8 : type;
}

Operand Typed(Operand operand, Type type) {
  operand.type = type;
  return operand;
}

// (dst, src, sid, nBurst, lenBurst, srcGap, dstGap[, pad]), in blocks.
void Blocks(const Arguments& a) {
  MoveBlocks(a.call, Typed(a.Of(0), MovedType()), Typed(a.Of(1), MovedType()),
             {a[3], a[4], a[5], a[6]});
}

// (dst, src, conv, nBurst, lenBurst, srcGap, dstGap), to the bias table in 64
// bytes.
void ToBias(const Arguments& a) {
  a.call.Equal("convControl", a.At(2), 0);
  Operand dst;
  dst.memory = Memory::kBias;
  dst.begin = a.Bits(0);
  dst.type = a.Of(1, Type::kFloat).type;
  MoveBlocks(a.call, dst, a.Of(1, Type::kFloat), {a[3], a[4], a[5], a[6]});
}

// (dst, src, sid, nBurst, lenBurst, left, right, srcGap, dstGap).
AscendC::DataCopyExtParams Extended(const Arguments& a) {
  return {a[3], a[4], a[7], a[8], 0};
}

template <Type type>
void AlignedIn(const Arguments& a) {
  const CoreState& state = ThisState();
  MovePadIn(a.call, Typed(a.Of(0), type), Typed(a.Of(1), type), Extended(a),
            {state.has_pad, a[5], a[6], state.pad});
}

template <Type type>
void AlignedOut(const Arguments& a) {
  const Type moved = ThisAtomicType() == Type::kNone ? type : MovedType();
  MovePadOut(a.call, Typed(a.Of(0), moved), Typed(a.Of(1), moved), Extended(a));
}

void NdToNz(const Arguments& a) {
  MoveNdToNz(a.call, a.Of(0), a.Of(1),
             {a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]});
}

}  // namespace

std::vector<Intrinsic> MoveIntrinsics() {
  return {
      {"copy_gm_to_ubuf", 7, 8, &Blocks},
      {"copy_ubuf_to_gm", 7, 8, &Blocks},
      {"copy_ubuf_to_ubuf", 7, 8, &Blocks},
      {"copy_gm_to_cbuf", 7, 8, &Blocks},
      {"copy_cbuf_to_gm", 7, 8, &Blocks},
      {"copy_cbuf_to_bt", 7, 7, &ToBias},
      {"copy_gm_to_ubuf_align_b8", 9, 9, &AlignedIn<Type::kInt8>},
      {"copy_gm_to_ubuf_align_b16", 9, 9, &AlignedIn<Type::kInt16>},
      {"copy_gm_to_ubuf_align_b32", 9, 9, &AlignedIn<Type::kInt32>},
      {"copy_ubuf_to_gm_align_b8", 9, 9, &AlignedOut<Type::kInt8>},
      {"copy_ubuf_to_gm_align_b16", 9, 9, &AlignedOut<Type::kInt16>},
      {"copy_ubuf_to_gm_align_b32", 9, 9, &AlignedOut<Type::kInt32>},
      {"copy_gm_to_cbuf_multi_nd2nz_b8", 11, 11, &NdToNz},
      {"copy_gm_to_cbuf_multi_nd2nz_b16", 11, 11, &NdToNz},
      {"copy_gm_to_cbuf_multi_nd2nz_b32s", 11, 11, &NdToNz},
  };
}

}  // namespace ascend_twin
