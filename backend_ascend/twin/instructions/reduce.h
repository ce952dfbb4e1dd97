// Sums within blocks, within repeats, and of all elements.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_REDUCE_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_REDUCE_H_

#include "backend_ascend/twin/instructions/lanes.h"
#include "backend_ascend/twin/instructions/operand.h"
#include "backend_ascend/twin/instructions/params.h"

namespace ascend_twin {

struct ReduceStrides {
  int64_t dst_repeat;  // in results of one repeat
  int64_t src_block;   // in blocks
  int64_t src_repeat;  // in blocks
};

// One result of each `width` lanes, a power of two, one after the other: of
// pairs half as many as lanes.
void ReduceNeighbours(const Call& call, AscendC::ReduceType op,
                      const Operand& dst, const Operand& src, const Mask& mask,
                      int64_t repeat, const ReduceStrides& strides,
                      int64_t width);
// Eight results a repeat: one of each block.
void ReduceBlocks(const Call& call, AscendC::ReduceType op, const Operand& dst,
                  const Operand& src, const Mask& mask, int64_t repeat,
                  const ReduceStrides& strides);
// One result a repeat; of MAX and MIN a value, the first lane that has it, or
// both.
void ReduceRepeats(const Call& call, AscendC::ReduceType op, const Operand& dst,
                   const Operand& src, const Mask& mask, int64_t repeat,
                   const ReduceStrides& strides, AscendC::ReduceOrder order);
// One result; the repeats' sums are added in sequence.  `sum_bits`, unless
// null, gets its bits, too: the register that holds them.
void ReduceAll(const Call& call, const Operand& dst, const Operand& src,
               const Mask& mask, int64_t repeat, const ReduceStrides& strides,
               uint64_t* sum_bits);
void ReduceAll(const Call& call, const Operand& dst, const Operand& src,
               const Operand& scratch, int64_t count);

}  // namespace ascend_twin

namespace AscendC {

// M: bits of lanes, or how many lanes.
template <ReduceType op, typename T, typename U, bool isSetMask = true,
          typename M>
void ReduceDataBlock(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                     M mask, int32_t repeat, int32_t dst_rep_stride,
                     int32_t src_blk_stride, int32_t src_rep_stride,
                     Site site = Site::Here()) {
  ascend_twin::ReduceBlocks({"ReduceDataBlock", site}, op, dst, src,
                            ascend_twin::Mask::Lanes(isSetMask, mask), repeat,
                            {dst_rep_stride, src_blk_stride, src_rep_stride});
}

template <ReduceType op, typename T, typename U, bool isSetMask = true,
          typename M>
void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<U>& src, M mask,
                  int32_t repeat, int32_t dst_rep_stride,
                  int32_t src_blk_stride, int32_t src_rep_stride,
                  ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX,
                  Site site = Site::Here()) {
  ascend_twin::ReduceRepeats({"ReduceRepeat", site}, op, dst, src,
                             ascend_twin::Mask::Lanes(isSetMask, mask), repeat,
                             {dst_rep_stride, src_blk_stride, src_rep_stride},
                             order);
}

// The old names; of the two, only BlockReduceSum takes the repeats before the
// mask.
template <typename T, bool isSetMask = true, typename M>
void BlockReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                    int32_t repeat, M mask, int32_t dst_rep_stride,
                    int32_t src_blk_stride, int32_t src_rep_stride,
                    Site site = Site::Here()) {
  ascend_twin::ReduceBlocks({"BlockReduceSum", site}, ReduceType::SUM, dst, src,
                            ascend_twin::Mask::Lanes(isSetMask, mask), repeat,
                            {dst_rep_stride, src_blk_stride, src_rep_stride});
}
template <typename T, bool isSetMask = true, typename M>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                    M mask, int32_t repeat, int32_t dst_rep_stride,
                    int32_t src_blk_stride, int32_t src_rep_stride,
                    Site site = Site::Here()) {
  ascend_twin::ReduceRepeats({"WholeReduceSum", site}, ReduceType::SUM, dst,
                             src, ascend_twin::Mask::Lanes(isSetMask, mask),
                             repeat,
                             {dst_rep_stride, src_blk_stride, src_rep_stride},
                             ReduceOrder::ORDER_ONLY_VALUE);
}

template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
               const LocalTensor<T>& scratch, int32_t count,
               Site site = Site::Here()) {
  ascend_twin::ReduceAll({"ReduceSum", site}, dst, src, scratch, count);
}

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_REDUCE_H_
