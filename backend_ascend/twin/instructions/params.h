// What the calls take besides their operands: structs and modes, spelt and
// defaulted as Ascend C has them on A2 and A3.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_PARAMS_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_PARAMS_H_

#include <cstdint>

// On a device a type of the compiler's.
enum class QuantMode_t : uint8_t { NoQuant, F322F16, F322BF16, DEQF16 };

namespace AscendC {

constexpr uint64_t MASK_PLACEHOLDER = 0;

enum class RoundMode : uint8_t {
  CAST_NONE = 0,
  CAST_RINT,
  CAST_FLOOR,
  CAST_CEIL,
  CAST_ROUND,
  CAST_TRUNC,
  CAST_ODD
};
enum class CMPMODE : uint8_t { LT = 0, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t {
  VSEL_CMPMASK_SPR = 0,
  VSEL_TENSOR_SCALAR_MODE,
  VSEL_TENSOR_TENSOR_MODE
};
enum class ReduceType : int8_t { NONE = -1, SUM = 0, MAX, MIN };
enum class ReduceOrder : uint8_t {
  ORDER_VALUE_INDEX,
  ORDER_INDEX_VALUE,
  ORDER_ONLY_VALUE,
  ORDER_ONLY_INDEX
};
enum class MaskMode : uint8_t { NORMAL = 0, COUNTER };
enum class HF32Mode { ENABLE, DISABLE };
enum class CO2Layout : uint8_t { NZ = 0, ROW_MAJOR, COLUMN_MAJOR };

// Moves.

struct DataCopyParams {
  DataCopyParams() {}
  DataCopyParams(uint16_t count, uint16_t length, uint16_t src_gap,
                 uint16_t dst_gap)
      : blockCount(count), blockLen(length), srcGap(src_gap), dstGap(dst_gap) {}

  uint16_t blockCount = 1;
  uint16_t blockLen = 0;
  union {
    uint16_t srcGap = 0;
    uint16_t srcStride;
  };
  union {
    uint16_t dstGap = 0;
    uint16_t dstStride;
  };
};

struct DataCopyExtParams {
  DataCopyExtParams() {}
  DataCopyExtParams(uint16_t count, uint32_t length, uint32_t src_stride,
                    uint32_t dst_stride, uint32_t reserved)
      : blockCount(count),
        blockLen(length),
        srcStride(src_stride),
        dstStride(dst_stride),
        rsv(reserved) {}

  uint16_t blockCount = 1;
  uint32_t blockLen = 0;
  uint32_t srcStride = 0;
  uint32_t dstStride = 0;
  uint32_t rsv = 0;
};

template <typename T>
struct DataCopyPadExtParams {
  DataCopyPadExtParams() {}
  DataCopyPadExtParams(bool pad, uint8_t left, uint8_t right, T value)
      : isPad(pad),
        leftPadding(left),
        rightPadding(right),
        paddingValue(value) {}

  bool isPad = false;
  uint8_t leftPadding = 0;
  uint8_t rightPadding = 0;
  T paddingValue{};
};

struct Nd2NzParams {
  Nd2NzParams() {}
  Nd2NzParams(uint16_t nd_num, uint16_t n_value, uint16_t d_value,
              uint16_t src_nd_matrix_stride, uint16_t src_d_value,
              uint16_t dst_nz_c0_stride, uint16_t dst_nz_n_stride,
              uint16_t dst_nz_matrix_stride)
      : ndNum(nd_num),
        nValue(n_value),
        dValue(d_value),
        srcNdMatrixStride(src_nd_matrix_stride),
        srcDValue(src_d_value),
        dstNzC0Stride(dst_nz_c0_stride),
        dstNzNStride(dst_nz_n_stride),
        dstNzMatrixStride(dst_nz_matrix_stride) {}

  uint16_t ndNum = 0;
  uint16_t nValue = 0;
  uint16_t dValue = 0;
  uint16_t srcNdMatrixStride = 0;
  uint16_t srcDValue = 0;
  uint16_t dstNzC0Stride = 0;
  uint16_t dstNzNStride = 0;
  uint16_t dstNzMatrixStride = 0;
};

// Cube.

struct LoadData2DParams {
  LoadData2DParams() {}
  LoadData2DParams(uint16_t start_index, uint8_t repeat_times,
                   uint16_t src_stride, uint8_t sid_, uint16_t dst_gap,
                   bool if_transpose, uint8_t addr_mode)
      : startIndex(start_index),
        dstGap(dst_gap),
        srcStride(src_stride),
        ifTranspose(if_transpose),
        repeatTimes(repeat_times),
        sid(sid_),
        addrMode(addr_mode) {}

  uint16_t startIndex = 0;
  uint16_t dstGap = 0;
  uint16_t srcStride = 0;
  bool ifTranspose = false;
  uint8_t repeatTimes = 0;
  uint8_t sid = 0;
  uint8_t addrMode = 0;
};
using LoadData2dParams = LoadData2DParams;

struct LoadData2dTransposeParams {
  LoadData2dTransposeParams() {}
  LoadData2dTransposeParams(uint16_t start_index, uint8_t repeat_times,
                            uint16_t src_stride, uint16_t dst_gap,
                            uint16_t dst_frac_gap, uint8_t addr_mode = 0)
      : startIndex(start_index),
        repeatTimes(repeat_times),
        srcStride(src_stride),
        dstGap(dst_gap),
        dstFracGap(dst_frac_gap),
        addrMode(addr_mode) {}

  uint16_t startIndex = 0;
  uint8_t repeatTimes = 0;
  uint16_t srcStride = 0;
  uint16_t dstGap = 0;
  uint16_t dstFracGap = 0;
  uint8_t addrMode = 0;
};

// But for the value of pads, which alone has the type of the elements.
struct LoadData3DParamsV2Base {
  uint8_t padList[4] = {};
  uint16_t l1H = 0;
  uint16_t l1W = 0;
  uint16_t channelSize = 0;
  uint16_t kExtension = 0;
  uint16_t mExtension = 0;
  uint16_t kStartPt = 0;
  uint16_t mStartPt = 0;
  uint8_t strideW = 1;
  uint8_t strideH = 1;
  uint8_t filterW = 1;
  uint8_t filterH = 1;
  uint8_t dilationFilterW = 1;
  uint8_t dilationFilterH = 1;
  bool enTranspose = false;
  bool enSmallK = false;
  bool filterSizeW = false;
  bool filterSizeH = false;
  bool fMatrixCtrl = false;
};

template <typename T>
struct LoadData3DParamsV2 : LoadData3DParamsV2Base {
  T padValue{};
};

struct MmadParams {
  MmadParams() {}
  MmadParams(uint16_t m_, uint16_t n_, uint16_t k_, uint8_t unit_flag,
             bool cmatrix_source, bool cmatrix_init_val)
      : m(m_),
        n(n_),
        k(k_),
        unitFlag(unit_flag),
        cmatrixSource(cmatrix_source),
        cmatrixInitVal(cmatrix_init_val) {}

  uint16_t m = 0;
  uint16_t n = 0;
  uint16_t k = 0;
  bool isBias = false;
  uint8_t unitFlag = 0;
  bool kDirectionAlign = false;
  bool cmatrixSource = false;
  bool cmatrixInitVal = true;
};

struct FixpipeConfig {
  CO2Layout format;
};
constexpr FixpipeConfig CFG_NZ = {CO2Layout::NZ};
constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR};

struct FixpipeParamsV220 {
  FixpipeParamsV220() {}
  FixpipeParamsV220(uint16_t n_size, uint16_t m_size, uint16_t src_stride,
                    uint32_t dst_stride, bool relu_en)
      : nSize(n_size),
        mSize(m_size),
        srcStride(src_stride),
        dstStride(dst_stride),
        reluEn(relu_en) {}

  uint16_t nSize = 0;
  uint16_t mSize = 0;
  uint16_t srcStride = 0;
  uint32_t dstStride = 0;
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint64_t deqScalar = 0;
  uint16_t ndNum = 1;
  bool reluEn = false;
  uint8_t unitFlag = 0;
  bool isChannelSplit = false;
};

// Vector: strides in blocks of 32 bytes.

struct BinaryRepeatParams {
  BinaryRepeatParams() {}
  BinaryRepeatParams(uint8_t dst_blk, uint8_t src0_blk, uint8_t src1_blk,
                     uint8_t dst_rep, uint8_t src0_rep, uint8_t src1_rep)
      : dstBlkStride(dst_blk),
        src0BlkStride(src0_blk),
        src1BlkStride(src1_blk),
        dstRepStride(dst_rep),
        src0RepStride(src0_rep),
        src1RepStride(src1_rep) {}

  uint8_t dstBlkStride = 1;
  uint8_t src0BlkStride = 1;
  uint8_t src1BlkStride = 1;
  uint8_t dstRepStride = 8;
  uint8_t src0RepStride = 8;
  uint8_t src1RepStride = 8;
};

struct UnaryRepeatParams {
  UnaryRepeatParams() {}
  UnaryRepeatParams(uint16_t dst_blk, uint16_t src_blk, uint8_t dst_rep,
                    uint8_t src_rep)
      : dstBlkStride(dst_blk),
        srcBlkStride(src_blk),
        dstRepStride(dst_rep),
        srcRepStride(src_rep) {}

  uint16_t dstBlkStride = 1;
  uint16_t srcBlkStride = 1;
  uint8_t dstRepStride = 8;
  uint8_t srcRepStride = 8;
};

struct CopyRepeatParams {
  CopyRepeatParams() {}
  CopyRepeatParams(uint16_t dst_blk, uint16_t src_blk, uint16_t dst_rep,
                   uint16_t src_rep)
      : dstStride(dst_blk),
        srcStride(src_blk),
        dstRepeatSize(dst_rep),
        srcRepeatSize(src_rep) {}

  uint16_t dstStride = 0;
  uint16_t srcStride = 0;
  uint16_t dstRepeatSize = 8;
  uint16_t srcRepeatSize = 8;
};

struct BrcbRepeatParams {
  BrcbRepeatParams() {}
  BrcbRepeatParams(uint16_t dst_blk, uint16_t dst_rep)
      : dstRepStride(dst_rep), dstBlkStride(dst_blk) {}

  uint16_t dstRepStride = 8;
  uint16_t dstBlkStride = 1;
};

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_PARAMS_H_
