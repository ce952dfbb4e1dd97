// From L1 into the operands of the cube: fractals, whole or transposed.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_LOAD_DATA_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_LOAD_DATA_H_

#include "backend_ascend/twin/instructions/operand.h"
#include "backend_ascend/twin/instructions/params.h"

namespace ascend_twin {

void LoadFractals(const Call& call, const Operand& dst, const Operand& src,
                  const AscendC::LoadData2DParams& params);
void LoadTransposed(const Call& call, const Operand& dst, const Operand& src,
                    const AscendC::LoadData2dTransposeParams& params);
// As a matrix, a row for each point of an image: a filter of one element.
void LoadMatrix(const Call& call, const Operand& dst, const Operand& src,
                const AscendC::LoadData3DParamsV2Base& params);

}  // namespace ascend_twin

namespace AscendC {

template <typename T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src,
              const LoadData2DParams& params, Site site = Site::Here()) {
  ascend_twin::LoadFractals({"LoadData", site}, dst, src, params);
}

template <typename T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src,
              const LoadData3DParamsV2<T>& params, Site site = Site::Here()) {
  ascend_twin::LoadMatrix({"LoadData", site}, dst, src, params);
}

template <typename T>
void LoadDataWithTranspose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                           const LoadData2dTransposeParams& params,
                           Site site = Site::Here()) {
  ascend_twin::LoadTransposed({"LoadDataWithTranspose", site}, dst, src,
                              params);
}

}  // namespace AscendC

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_LOAD_DATA_H_
