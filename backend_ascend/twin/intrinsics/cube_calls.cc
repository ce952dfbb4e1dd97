// The cube's intrinsics, and what brings its operands and takes its results.

#include "backend_ascend/twin/instructions/cube.h"
#include "backend_ascend/twin/instructions/load_data.h"
#include "backend_ascend/twin/intrinsics/core_state.h"
#include "backend_ascend/twin/intrinsics/intrinsic.h"

namespace ascend_twin {
namespace {

// (c, a, b[, bias], m, k, n, unitFlag, kDirAlign, cSource, cInit).
void Mad(const Arguments& a) {
  const bool has_bias = a.count() == 11;
  const int at = has_bias ? 4 : 3;
  AscendC::MmadParams params(a[at], a[at + 2], a[at + 1], a[at + 3], a[at + 5],
                             a[at + 6]);
  params.kDirectionAlign = a[at + 4];
  // Without its address, the table's first byte.
  const bool from_bias =
      has_bias || (params.cmatrixSource && !params.cmatrixInitVal);
  Operand bias;
  bias.memory = Memory::kBias;
  bias.begin = has_bias ? a.Bits(3) : 0;
  bias.type = a.Of(0).type;
  MultiplyAccumulate(a.call, a.Of(0), a.Of(1), a.Of(2),
                     from_bias ? &bias : nullptr, params);
}

// (dst, src, start, repeat, srcStride, dstGap, sid, transpose, inc).
void Fractals(const Arguments& a) {
  LoadFractals(a.call, a.Of(0), a.Of(1),
               {a[2], a[3], a[4], a[6], a[5], a[7], a[8]});
}

// (dst, src, start, repeat, srcStride, dstGap, inc, dstFracGap).
void Transposed(const Arguments& a) {
  LoadTransposed(a.call, a.Of(0), a.Of(1),
                 {a[2], a[3], a[4], a[5], a[7], a[6]});
}

// (dst, src, kExtension, mExtension, kStart, mStart, strides, filters,
// dilations, filter sizes, transpose, fMatrixCtrl, channels); the image is
// set_fmatrix's, or set_fmatrix_b's: width, height and four pads.
void Image(const Arguments& a) {
  const uint64_t image =
      a.At(15) == 0 ? ThisState().image : ThisState().image_b;
  AscendC::LoadData3DParamsV2Base params;
  params.l1W = static_cast<uint16_t>(image);
  params.l1H = static_cast<uint16_t>(image >> 16);
  for (int i = 0; i < 4; ++i) {
    params.padList[i] = static_cast<uint8_t>(image >> (32 + 8 * i));
  }
  params.kExtension = a[2];
  params.mExtension = a[3];
  params.kStartPt = a[4];
  params.mStartPt = a[5];
  params.strideW = a[6];
  params.strideH = a[7];
  params.filterW = a[8];
  params.filterH = a[9];
  params.dilationFilterW = a[10];
  params.dilationFilterH = a[11];
  params.filterSizeW = a[12];
  params.filterSizeH = a[13];
  params.enTranspose = a[14];
  params.channelSize = a[16];
  LoadMatrix(a.call, a.Of(0), a.Of(1), params);
}

// (dst, src, sid, n, m, dstStride, srcStride, unitFlag, quant, relu, split,
// nz2nd), with set_nd_para's count and strides.
void Result(const Arguments& a) {
  AscendC::FixpipeParamsV220 params(a[3], a[4], a[6], a[5], a[9]);
  params.unitFlag = a[7];
  a.call.Between(
      "quantPre, of which the twin has NoQuant, F322F16, F322BF16, DEQF16",
      a.At(8), 0, 3);
  params.deqScalar = ThisState().quant;
  params.quantPre = a[8];
  params.isChannelSplit = a[10];
  const bool rows = a[11];
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
}

}  // namespace

std::vector<Intrinsic> CubeIntrinsics() {
  return {
      {"mad", 10, 11, &Mad},
      {"load_cbuf_to_ca", 9, 9, &Fractals},
      {"load_cbuf_to_cb", 9, 9, &Fractals},
      {"load_cbuf_to_ca_transpose", 8, 8, &Transposed},
      {"load_cbuf_to_cb_transpose", 8, 8, &Transposed},
      {"img2colv2_cbuf_to_ca", 17, 17, &Image},
      {"img2colv2_cbuf_to_cb", 17, 17, &Image},
      {"copy_matrix_cc_to_gm", 12, 12, &Result},
      {"copy_matrix_cc_to_cbuf", 12, 12, &Result},
  };
}

}  // namespace ascend_twin
