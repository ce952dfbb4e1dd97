// How one side of a product comes from global memory into L1 and from there
// into L0.
//
// In L1 a matrix lies in fractals of 16 rows by 32 bytes, those of one column
// of fractals side by side (Nz).  L0A takes rows of fractals, each stored by
// rows (Zz), of [m, k]; L0B rows of fractals, each stored by columns (Zn), of
// [k, n].  So a side whose rows run along the sum is moved fractal by fractal,
// and one whose rows run across it is transposed on the way.  Of bytes a left
// side runs along the sum, and a right side across it.
//
// Tails: the last fractals are padded with whatever was there.  The cube unit
// reads past no edge that Mmad names.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_LOAD_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_LOAD_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/tile_budget.h"

namespace hpmoe {

// Elements of a row of a fractal, and of a fractal.
template <typename T>
constexpr int32_t kAcross = kBlockBytes / static_cast<int32_t>(sizeof(T));
template <typename T>
constexpr int32_t kFractal = kFractalRows * kAcross<T>;

// What columns and terms of a right side come in: bytes are transposed by
// squares of 32.
template <typename T>
constexpr int32_t kUnit = UnitOf(sizeof(T));

// One side of a product in global memory: a of [m, k] or b of [k, n].
template <typename T>
struct Side {
  HPMOE_GM T* data;
  int64_t ld;        // elements from row to row
  int32_t width;     // m or n
  bool depth_major;  // stored [k, width], else [width, k]
};

// Rows and columns of `depth` terms of a side, as stored.
template <typename T>
HPMOE_FUNCTION int32_t RowsOf(const Side<T>& side, int32_t depth) {
  return side.depth_major ? depth : side.width;
}

template <typename T>
HPMOE_FUNCTION int32_t ColsOf(const Side<T>& side, int32_t depth) {
  return side.depth_major ? side.width : depth;
}

// Bytes of L1 that `depth` terms of a side take.
template <typename T>
HPMOE_FUNCTION int32_t L1BytesOf(const Side<T>& side, int32_t depth) {
  const int32_t unit = side.depth_major ? kUnit<T> : kFractalRows;
  return RoundUp(side.width, unit) * RoundUp(depth, kUnit<T>) *
         static_cast<int32_t>(sizeof(T));
}

// Terms [begin, begin + depth) of a side into L1.
template <typename T>
HPMOE_FUNCTION void MoveToL1(const Side<T>& side, int32_t begin, int32_t depth,
                             const AscendC::LocalTensor<T>& to) {
  constexpr int64_t kMaxPitch = 65535;  // of one move
  const int32_t rows = RowsOf(side, depth);
  const AscendC::GlobalTensor<T> from =
      GlobalOf(side.data + (side.depth_major ? begin * side.ld : begin));
  AscendC::Nd2NzParams move;
  move.ndNum = 1;
  move.nValue = rows;
  move.dValue = ColsOf(side, depth);
  move.srcNdMatrixStride = 0;
  move.srcDValue = side.ld <= kMaxPitch ? side.ld : kMaxPitch;
  move.dstNzC0Stride =
      RoundUp(rows, side.depth_major ? kUnit<T> : kFractalRows);
  move.dstNzNStride = 1;
  move.dstNzMatrixStride = 0;
  if (side.ld <= kMaxPitch) return AscendC::DataCopy(to, from, move);
  move.nValue = 1;
  for (int32_t row = 0; row < rows; ++row) {
    AscendC::DataCopy(to[row * kAcross<T>], from[row * side.ld], move);
  }
}

// Where in L1 `depth` terms of a side from `begin` on lie, of `l1_depth` that
// are there.
struct DepthRange {
  int32_t l1_depth, begin, depth;
};

// A right side of bytes that is stored [k, width], to L0B: squares of 32 make
// two fractals each, those of one row of squares at once.
HPMOE_FUNCTION void TransposeBytes(const Side<int8_t>& side,
                                   const DepthRange& range,
                                   const AscendC::LocalTensor<int8_t>& from,
                                   const AscendC::LocalTensor<int8_t>& to) {
  const int32_t squares = DivideUp(side.width, kBlockBytes);
  AscendC::LoadData2dTransposeParams move;
  move.repeatTimes = squares;
  move.srcStride = DivideUp(range.l1_depth, kBlockBytes);
  move.dstGap = 1;
  for (int32_t row = 0; row < range.depth; row += kBlockBytes) {
    AscendC::LoadDataWithTranspose(to[row * squares * kBlockBytes],
                                   from[(range.begin + row) * kBlockBytes],
                                   move);
  }
}

// A left side of bytes that is stored [width, k], to L0A, by rows of fractals.
HPMOE_FUNCTION void MoveBytes(const Side<int8_t>& side, const DepthRange& range,
                              const AscendC::LocalTensor<int8_t>& from,
                              const AscendC::LocalTensor<int8_t>& to) {
  const int32_t rows = DivideUp(side.width, kFractalRows);
  const int32_t across = DivideUp(range.depth, kBlockBytes);
  AscendC::LoadData2DParams move;
  move.repeatTimes = across;
  move.srcStride = rows;
  for (int32_t row = 0; row < rows; ++row) {
    AscendC::LoadData(
        to[row * across * kFractal<int8_t>],
        from[range.begin * rows * kFractalRows + row * kFractal<int8_t>], move);
  }
}

// A side that is stored [k, width], to L0A or L0B.
template <typename T>
HPMOE_FUNCTION void Transpose(const Side<T>& side, const DepthRange& range,
                              const AscendC::LocalTensor<T>& from,
                              const AscendC::LocalTensor<T>& to) {
  // An image of one line: its points are our rows, its channels our columns.
  AscendC::LoadData3DParamsV2<T> move;
  move.l1H = 1;
  move.l1W = RoundUp(range.l1_depth, kFractalRows);
  move.channelSize = RoundUp(side.width, kAcross<T>);
  move.kExtension = move.channelSize;
  move.mExtension = RoundUp(range.depth, kFractalRows);
  move.mStartPt = range.begin;
  move.enTranspose = true;  // to L0B it always does
  AscendC::LoadData(to, from, move);
}

// To L0A, all rows of fractals at once.
template <typename T>
HPMOE_FUNCTION void MoveToL0A(const Side<T>& side, const DepthRange& range,
                              const AscendC::LocalTensor<T>& from,
                              const AscendC::LocalTensor<T>& to) {
  if constexpr (kIsCode<T>) {
    MoveBytes(side, range, from, to);
  } else {
    if (side.depth_major) return Transpose(side, range, from, to);
    // An image of one line: its points are our rows, its channels the terms.
    AscendC::LoadData3DParamsV2<T> move;
    move.l1H = 1;
    move.l1W = RoundUp(side.width, kFractalRows);
    move.channelSize = RoundUp(range.l1_depth, kAcross<T>);
    move.kStartPt = range.begin;
    move.kExtension = RoundUp(range.depth, kAcross<T>);
    move.mExtension = move.l1W;
    AscendC::LoadData(to, from, move);
  }
}

// To L0B: columns of fractals of [n, k] are rows of fractals of [k, n].
template <typename T>
HPMOE_FUNCTION void MoveToL0B(const Side<T>& side, const DepthRange& range,
                              const AscendC::LocalTensor<T>& from,
                              const AscendC::LocalTensor<T>& to) {
  if constexpr (kIsCode<T>) {
    TransposeBytes(side, range, from, to);
  } else {
    if (side.depth_major) return Transpose(side, range, from, to);
    const int32_t rows = RoundUp(side.width, kFractalRows);
    AscendC::LoadData2DParams move;
    move.repeatTimes =
        DivideUp(range.depth, kAcross<T>) * (rows / kFractalRows);
    move.srcStride = 1;
    AscendC::LoadData(to, from[range.begin * rows], move);
  }
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_LOAD_H_
