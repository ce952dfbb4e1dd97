// Vector calls that move elements within the unified buffer, and that choose
// between them.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_REARRANGE_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_REARRANGE_H_

#include "backend_ascend/twin/instructions/lanes.h"
#include "backend_ascend/twin/instructions/operand.h"
#include "backend_ascend/twin/instructions/params.h"

namespace ascend_twin {

// `value`: the bits of an element.
void IssueDuplicate(const Call& call, const Operand& dst, uint64_t value,
                    const Mask& mask, int64_t repeat, uint32_t block_stride,
                    uint32_t repeat_stride);
void IssueCopy(const Call& call, const Operand& dst, const Operand& src,
               const Mask& mask, int64_t repeat,
               const AscendC::CopyRepeatParams& params);
void IssueBroadcast(const Call& call, const Operand& dst, const Operand& src,
                    int64_t repeat, const AscendC::BrcbRepeatParams& params);
void IssueGather(const Call& call, const Operand& dst, const Operand& src,
                 uint64_t src_bytes, const Operand& offsets, uint32_t base,
                 int64_t count);
// `src1` may be null: then `scalar` has the bits of what all compare with.
void IssueCompare(const Call& call, const Operand& dst, const Operand& src0,
                  const Operand* src1, uint64_t scalar, AscendC::CMPMODE mode,
                  int64_t count);
// 16 x 16 elements of two bytes.
void IssueTranspose(const Call& call, const Operand& dst, const Operand& src);
// `src1` may be null: then `scalar` has the bits of the other choice.
void IssueSelect(const Call& call, const Operand& dst, const Operand& mask,
                 const Operand& src0, const Operand* src1, uint64_t scalar,
                 AscendC::SELMODE mode, int64_t count);

}  // namespace ascend_twin

namespace AscendC {

template <typename T>
void Duplicate(const LocalTensor<T>& dst, const T& value, const int32_t& count,
               Site site = Site::Here()) {
  ascend_twin::IssueDuplicate({"Duplicate", site}, dst,
                              ascend_twin::BitsOf(value),
                              ascend_twin::Mask::Count(count), 0, 1, 8);
}
// M: bits of lanes, or how many lanes.
template <typename T, bool isSetMask = true, typename M>
void Duplicate(const LocalTensor<T>& dst, const T& value, M mask,
               int64_t repeat, uint16_t dst_block_stride,
               uint8_t dst_repeat_stride, Site site = Site::Here()) {
  ascend_twin::IssueDuplicate({"Duplicate", site}, dst,
                              ascend_twin::BitsOf(value),
                              ascend_twin::Mask::Lanes(isSetMask, mask), repeat,
                              dst_block_stride, dst_repeat_stride);
}

template <typename T, bool isSetMask = true, typename M>
void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, M mask,
          int64_t repeat, const CopyRepeatParams& params,
          Site site = Site::Here()) {
  ascend_twin::IssueCopy({"Copy", site}, dst, src,
                         ascend_twin::Mask::Lanes(isSetMask, mask), repeat,
                         params);
}

template <typename T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, int64_t repeat,
          const BrcbRepeatParams& params, Site site = Site::Here()) {
  ascend_twin::IssueBroadcast({"Brcb", site}, dst, src, repeat, params);
}

template <typename T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
            const LocalTensor<uint32_t>& offsets, uint32_t base, uint32_t count,
            Site site = Site::Here()) {
  ascend_twin::IssueGather({"Gather", site}, dst, src,
                           uint64_t{src.GetSize()} * sizeof(T), offsets, base,
                           count);
}

template <typename T, typename U>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0,
             const LocalTensor<T>& src1, CMPMODE mode, uint32_t count,
             Site site = Site::Here()) {
  const ascend_twin::Operand other(src1);
  ascend_twin::IssueCompare({"Compare", site}, dst, src0, &other, 0, mode,
                            count);
}

template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& mask,
            const LocalTensor<T>& src0, const LocalTensor<T>& src1,
            SELMODE mode, uint32_t count, Site site = Site::Here()) {
  const ascend_twin::Operand other(src1);
  ascend_twin::IssueSelect({"Select", site}, dst, mask, src0, &other, 0, mode,
                           count);
}
template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& mask,
            const LocalTensor<T>& src0, T src1, SELMODE mode, uint32_t count,
            Site site = Site::Here()) {
  ascend_twin::IssueSelect({"Select", site}, dst, mask, src0, nullptr,
                           ascend_twin::BitsOf(src1), mode, count);
}

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_REARRANGE_H_
