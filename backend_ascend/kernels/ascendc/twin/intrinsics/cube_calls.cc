// The cube's intrinsics, and what brings its operands and takes its results.

#include "backend_ascend/kernels/ascendc/twin/instructions/cube.h"
#include "backend_ascend/kernels/ascendc/twin/instructions/load_data.h"
#include "backend_ascend/kernels/ascendc/twin/intrinsics/core_state.h"
#include "backend_ascend/kernels/ascendc/twin/intrinsics/intrinsic.h"

namespace ascend_twin {
namespace {

// (c, a, b[, bias], m, k, n, unitFlag, kDirAlign, cSource, cInit).
int64_t Mad(const Arguments& a) {
  a.Expect(10, 11);
  const bool has_bias = a.count() == 11;
  const int at = has_bias ? 4 : 3;
  AscendC::MmadParams params;
  params.m = static_cast<uint16_t>(a.At(at));
  params.k = static_cast<uint16_t>(a.At(at + 1));
  params.n = static_cast<uint16_t>(a.At(at + 2));
  params.unitFlag = static_cast<uint8_t>(a.At(at + 3));
  params.kDirectionAlign = a.At(at + 4) != 0;
  params.cmatrixSource = a.At(at + 5) != 0;
  params.cmatrixInitVal = a.At(at + 6) != 0;
  // Without its address, the table's first byte.
  const bool from_bias =
      has_bias || (params.cmatrixSource && !params.cmatrixInitVal);
  Operand bias;
  bias.memory = Memory::kBias;
  bias.begin = has_bias ? a.Bits(3) : 0;
  bias.type = a.Of(0).type;
  MultiplyAccumulate(a.call, a.Of(0), a.Of(1), a.Of(2),
                     from_bias ? &bias : nullptr, params);
  return 0;
}

// (dst, src, start, repeat, srcStride, dstGap, sid, transpose, inc).
int64_t Fractals(const Arguments& a) {
  a.Expect(9);
  LoadFractals(a.call, a.Of(0), a.Of(1),
               {static_cast<uint16_t>(a.At(2)), static_cast<uint8_t>(a.At(3)),
                static_cast<uint16_t>(a.At(4)), static_cast<uint8_t>(a.At(6)),
                static_cast<uint16_t>(a.At(5)), a.At(7) != 0,
                static_cast<uint8_t>(a.At(8))});
  return 0;
}

// (dst, src, start, repeat, srcStride, dstGap, inc, dstFracGap).
int64_t Transposed(const Arguments& a) {
  a.Expect(8);
  LoadTransposed(
      a.call, a.Of(0), a.Of(1),
      {static_cast<uint16_t>(a.At(2)), static_cast<uint8_t>(a.At(3)),
       static_cast<uint16_t>(a.At(4)), static_cast<uint16_t>(a.At(5)),
       static_cast<uint16_t>(a.At(7)), static_cast<uint8_t>(a.At(6))});
  return 0;
}

// (dst, src, kExtension, mExtension, kStart, mStart, strides, filters,
// dilations, filter sizes, transpose, fMatrixCtrl, channels); the image is
// set_fmatrix's: width, height and four pads.
int64_t Image(const Arguments& a) {
  a.Expect(17);
  const uint64_t image = ThisState().image;
  AscendC::LoadData3DParamsV2Base params;
  params.l1W = static_cast<uint16_t>(image);
  params.l1H = static_cast<uint16_t>(image >> 16);
  for (int i = 0; i < 4; ++i) {
    params.padList[i] = static_cast<uint8_t>(image >> (32 + 8 * i));
  }
  params.kExtension = static_cast<uint16_t>(a.At(2));
  params.mExtension = static_cast<uint16_t>(a.At(3));
  params.kStartPt = static_cast<uint16_t>(a.At(4));
  params.mStartPt = static_cast<uint16_t>(a.At(5));
  params.strideW = static_cast<uint8_t>(a.At(6));
  params.strideH = static_cast<uint8_t>(a.At(7));
  params.filterW = static_cast<uint8_t>(a.At(8));
  params.filterH = static_cast<uint8_t>(a.At(9));
  params.dilationFilterW = static_cast<uint8_t>(a.At(10));
  params.dilationFilterH = static_cast<uint8_t>(a.At(11));
  params.filterSizeW = a.At(12) != 0;
  params.filterSizeH = a.At(13) != 0;
  params.enTranspose = a.At(14) != 0;
  params.fMatrixCtrl = a.At(15) != 0;
  params.channelSize = static_cast<uint16_t>(a.At(16));
  LoadMatrix(a.call, a.Of(0), a.Of(1), params);
  return 0;
}

// (dst, src, sid, n, m, dstStride, srcStride, unitFlag, quant, relu, split,
// nz2nd), with set_nd_para's count and strides.
int64_t Result(const Arguments& a) {
  a.Expect(12);
  AscendC::FixpipeParamsV220 params;
  params.nSize = static_cast<uint16_t>(a.At(3));
  params.mSize = static_cast<uint16_t>(a.At(4));
  params.dstStride = static_cast<uint32_t>(a.At(5));
  params.srcStride = static_cast<uint16_t>(a.At(6));
  params.unitFlag = static_cast<uint8_t>(a.At(7));
  a.call.Between(
      "quantPre, of which the twin has NoQuant, F322F16, F322BF16, DEQF16",
      a.At(8), 0, 3);
  params.deqScalar = ThisState().quant;
  params.quantPre = static_cast<QuantMode_t>(a.At(8));
  params.reluEn = a.At(9) != 0;
  params.isChannelSplit = a.At(10) != 0;
  const bool rows = a.At(11) != 0;
  const uint64_t nd = ThisState().nd;
  // Matrices, one after the other: strides in fractals, and in elements.
  const uint64_t count = rows ? nd & 0xFFFF : 1;
  for (uint64_t i = 0; i < count; ++i) {
    Operand dst = a.Of(0);
    Operand src = a.Of(1);
    src.begin += i * (nd >> 16 & 0xFFFF) * 2 * kFractal;
    dst.begin += i * (nd >> 32 & 0xFFFF) * dst.size();
    MoveResult(a.call, dst, src,
               rows ? AscendC::CO2Layout::ROW_MAJOR : AscendC::CO2Layout::NZ,
               params);
  }
  return 0;
}

}  // namespace

std::vector<Intrinsic> CubeIntrinsics() {
  return {
      {"mad", &Mad},
      {"load_cbuf_to_ca", &Fractals},
      {"load_cbuf_to_cb", &Fractals},
      {"load_cbuf_to_ca_transpose", &Transposed},
      {"load_cbuf_to_cb_transpose", &Transposed},
      {"img2colv2_cbuf_to_ca", &Image},
      {"img2colv2_cbuf_to_cb", &Image},
      {"copy_matrix_cc_to_gm", &Result},
      {"copy_matrix_cc_to_cbuf", &Result},
  };
}

}  // namespace ascend_twin
