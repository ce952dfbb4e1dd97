// Moves between global memory and the chip, and within it.

#include "backend_ascend/kernels/ascendc/twin/instructions/moves.h"
#include "backend_ascend/kernels/ascendc/twin/intrinsics/core_state.h"
#include "backend_ascend/kernels/ascendc/twin/intrinsics/intrinsic.h"

namespace ascend_twin {
namespace {

// What atomic moves add; bytes where none is set.
Type MovedType() {
  switch (ThisAtomicType()) {
    case AtomicType::kInt8:
      return Type::kInt8;
    case AtomicType::kInt16:
      return Type::kInt16;
    case AtomicType::kInt32:
      return Type::kInt32;
    case AtomicType::kHalf:
      return Type::kHalf;
    case AtomicType::kBf16:
      return Type::kBf16;
    case AtomicType::kFloat:
      return Type::kFloat;
    default:
      return Type::kUint8;
  }
}

Operand Typed(Operand operand, Type type) {
  operand.type = type;
  return operand;
}

// (dst, src, sid, nBurst, lenBurst, srcGap, dstGap[, pad]), in blocks.
int64_t Blocks(const Arguments& a) {
  a.Expect(7, 8);
  AscendC::DataCopyParams params;
  params.blockCount = static_cast<uint16_t>(a.At(3));
  params.blockLen = static_cast<uint16_t>(a.At(4));
  params.srcGap = static_cast<uint16_t>(a.At(5));
  params.dstGap = static_cast<uint16_t>(a.At(6));
  MoveBlocks(a.call, Typed(a.Of(0), MovedType()), Typed(a.Of(1), MovedType()),
             params);
  return 0;
}

// (dst, src, conv, nBurst, lenBurst, srcGap, dstGap), to the bias table in 64
// bytes.
int64_t ToBias(const Arguments& a) {
  a.Expect(7);
  AscendC::DataCopyParams params;
  params.blockCount = static_cast<uint16_t>(a.At(3));
  params.blockLen = static_cast<uint16_t>(a.At(4));
  params.srcGap = static_cast<uint16_t>(a.At(5));
  params.dstGap = static_cast<uint16_t>(a.At(6));
  a.call.Equal("convControl", a.At(2), 0);
  Operand dst;
  dst.memory = Memory::kBias;
  dst.begin = a.Bits(0);
  dst.type = a.Of(1, Type::kFloat).type;
  MoveBlocks(a.call, dst, a.Of(1, Type::kFloat), params);
  return 0;
}

// (dst, src, sid, nBurst, lenBurst, left, right, srcGap, dstGap).
AscendC::DataCopyExtParams Extended(const Arguments& a) {
  a.Expect(9);
  AscendC::DataCopyExtParams params;
  params.blockCount = static_cast<uint16_t>(a.At(3));
  params.blockLen = static_cast<uint32_t>(a.At(4));
  params.srcStride = static_cast<uint32_t>(a.At(7));
  params.dstStride = static_cast<uint32_t>(a.At(8));
  return params;
}

template <Type type>
int64_t AlignedIn(const Arguments& a) {
  const AscendC::DataCopyExtParams params = Extended(a);
  const CoreState& state = ThisState();
  const PadFill fill{state.has_pad, static_cast<uint8_t>(a.At(5)),
                     static_cast<uint8_t>(a.At(6)), state.pad};
  MovePadIn(a.call, Typed(a.Of(0), type), Typed(a.Of(1), type), params, fill);
  return 0;
}

template <Type type>
int64_t AlignedOut(const Arguments& a) {
  const AscendC::DataCopyExtParams params = Extended(a);
  const Type moved = ThisAtomicType() == AtomicType::kNone ? type : MovedType();
  MovePadOut(a.call, Typed(a.Of(0), moved), Typed(a.Of(1), moved), params);
  return 0;
}

int64_t NdToNz(const Arguments& a) {
  a.Expect(11);
  AscendC::Nd2NzParams params;
  params.ndNum = static_cast<uint16_t>(a.At(3));
  params.nValue = static_cast<uint16_t>(a.At(4));
  params.dValue = static_cast<uint16_t>(a.At(5));
  params.srcNdMatrixStride = static_cast<uint16_t>(a.At(6));
  params.srcDValue = static_cast<uint16_t>(a.At(7));
  params.dstNzC0Stride = static_cast<uint16_t>(a.At(8));
  params.dstNzNStride = static_cast<uint16_t>(a.At(9));
  params.dstNzMatrixStride = static_cast<uint16_t>(a.At(10));
  MoveNdToNz(a.call, a.Of(0), a.Of(1), params);
  return 0;
}

}  // namespace

std::vector<Intrinsic> MoveIntrinsics() {
  return {
      {"copy_gm_to_ubuf", &Blocks},
      {"copy_ubuf_to_gm", &Blocks},
      {"copy_ubuf_to_ubuf", &Blocks},
      {"copy_gm_to_cbuf", &Blocks},
      {"copy_cbuf_to_gm", &Blocks},
      {"copy_cbuf_to_bt", &ToBias},
      {"copy_gm_to_ubuf_align_b8", &AlignedIn<Type::kInt8>},
      {"copy_gm_to_ubuf_align_b16", &AlignedIn<Type::kInt16>},
      {"copy_gm_to_ubuf_align_b32", &AlignedIn<Type::kInt32>},
      {"copy_ubuf_to_gm_align_b8", &AlignedOut<Type::kInt8>},
      {"copy_ubuf_to_gm_align_b16", &AlignedOut<Type::kInt16>},
      {"copy_ubuf_to_gm_align_b32", &AlignedOut<Type::kInt32>},
      {"copy_gm_to_cbuf_multi_nd2nz_b8", &NdToNz},
      {"copy_gm_to_cbuf_multi_nd2nz_b16", &NdToNz},
      {"copy_gm_to_cbuf_multi_nd2nz_b32s", &NdToNz},
  };
}

}  // namespace ascend_twin
