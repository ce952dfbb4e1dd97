// Moves between global memory and the chip, and the atomic type that moves to
// global memory carry.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_MOVES_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_MOVES_H_

#include <cstdint>

#include "backend_ascend/twin/instructions/operand.h"
#include "backend_ascend/twin/instructions/params.h"

namespace ascend_twin {

// Strides of DataCopyPad are gaps: bytes in global memory, blocks on chip.
struct PadFill {
  bool is_pad;
  uint8_t left;
  uint8_t right;
  uint64_t value;  // bits of the padding's value
};

void MoveCount(const Call& call, const Operand& dst, const Operand& src,
               uint64_t count);
void MoveBlocks(const Call& call, const Operand& dst, const Operand& src,
                const AscendC::DataCopyParams& params);
void MovePadIn(const Call& call, const Operand& dst, const Operand& src,
               const AscendC::DataCopyExtParams& params, const PadFill& fill);
void MovePadOut(const Call& call, const Operand& dst, const Operand& src,
                const AscendC::DataCopyExtParams& params);
void MoveNdToNz(const Call& call, const Operand& dst, const Operand& src,
                const AscendC::Nd2NzParams& params);
void SetAtomic(const Call& call, Type type);

// What a move to `dst` does to what is there: kNone replaces.
Type AtomicFor(const Call& call, const Operand& dst);
void StoreToGlobal(char* dst, const char* src, uint64_t bytes, Type atomic);

}  // namespace ascend_twin

namespace AscendC {

// Between memories of any kinds; which go together is checked as it runs.
template <template <typename> class Dst, template <typename> class Src,
          typename T>
void DataCopy(const Dst<T>& dst, const Src<T>& src, uint32_t count,
              Site site = Site::Here()) {
  ascend_twin::MoveCount({"DataCopy", site}, dst, src, count);
}
template <template <typename> class Dst, template <typename> class Src,
          typename T>
void DataCopy(const Dst<T>& dst, const Src<T>& src,
              const DataCopyParams& params, Site site = Site::Here()) {
  ascend_twin::MoveBlocks({"DataCopy", site}, dst, src, params);
}

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
              const Nd2NzParams& params, Site site = Site::Here()) {
  ascend_twin::MoveNdToNz({"DataCopy", site}, dst, src, params);
}

template <typename T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                 const DataCopyExtParams& params,
                 const DataCopyPadExtParams<T>& pad, Site site = Site::Here()) {
  const ascend_twin::PadFill fill{pad.isPad, pad.leftPadding, pad.rightPadding,
                                  ascend_twin::BitsOf(pad.paddingValue)};
  ascend_twin::MovePadIn({"DataCopyPad", site}, dst, src, params, fill);
}
template <typename T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                 const DataCopyExtParams& params, Site site = Site::Here()) {
  ascend_twin::MovePadOut({"DataCopyPad", site}, dst, src, params);
}

template <typename T>
void SetAtomicAdd(Site site = Site::Here()) {
  ascend_twin::SetAtomic({"SetAtomicAdd", site},
                         ascend_twin::TypeOf(static_cast<T*>(nullptr)));
}
inline void DisableDmaAtomic() {
  ascend_twin::SetAtomicType(ascend_twin::Type::kNone);
}
inline void SetAtomicNone() { DisableDmaAtomic(); }

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_MOVES_H_
