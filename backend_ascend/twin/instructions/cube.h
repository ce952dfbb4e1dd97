// The matrix product, and what takes its result out of L0C.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_CUBE_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_CUBE_H_

#include "backend_ascend/twin/instructions/operand.h"
#include "backend_ascend/twin/instructions/params.h"

namespace ascend_twin {

// `bias` may be null: then params say what C starts from.
void MultiplyAccumulate(const Call& call, const Operand& dst, const Operand& a,
                        const Operand& b, const Operand* bias,
                        const AscendC::MmadParams& params);
void MoveResult(const Call& call, const Operand& dst, const Operand& src,
                AscendC::CO2Layout layout,
                const AscendC::FixpipeParamsV220& params);
void SetHf32(const Call& call, bool enable);

}  // namespace ascend_twin

namespace AscendC {

template <typename T, typename U, typename S>
void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& a,
          const LocalTensor<S>& b, const MmadParams& params,
          Site site = Site::Here()) {
  ascend_twin::MultiplyAccumulate({"Mmad", site}, dst, a, b, nullptr, params);
}
template <typename T, typename U, typename S, typename V>
void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& a,
          const LocalTensor<S>& b, const LocalTensor<V>& bias,
          const MmadParams& params, Site site = Site::Here()) {
  const ascend_twin::Operand table(bias);
  ascend_twin::MultiplyAccumulate({"Mmad", site}, dst, a, b, &table, params);
}

template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src,
             const FixpipeParamsV220& params, Site site = Site::Here()) {
  ascend_twin::MoveResult({"Fixpipe", site}, dst, src, config.format, params);
}
// To L1: in NZ only.
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src,
             const FixpipeParamsV220& params, Site site = Site::Here()) {
  ascend_twin::MoveResult({"Fixpipe", site}, dst, src, config.format, params);
}

inline void SetHF32Mode(HF32Mode mode, Site site = Site::Here()) {
  ascend_twin::SetHf32({"SetHF32Mode", site}, mode == HF32Mode::ENABLE);
}
inline void SetHF32Mode(bool mode, Site site = Site::Here()) {
  ascend_twin::SetHf32({"SetHF32Mode", site}, mode);
}

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_CUBE_H_
