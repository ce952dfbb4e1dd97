// How the rows are shared out.  CANN's build and the twin make a plain struct
// of it, of the same layout.

#ifndef EXAMPLES_SCALE_ROWS_OP_HOST_SCALE_ROWS_TILING_H_
#define EXAMPLES_SCALE_ROWS_OP_HOST_SCALE_ROWS_TILING_H_

#include "register/tilingdata_base.h"

namespace optiling {
BEGIN_TILING_DATA_DEF(ScaleRowsTilingData)
TILING_DATA_FIELD_DEF(uint32_t, rows);     // of each core
TILING_DATA_FIELD_DEF(uint32_t, columns);  // a multiple of 64
TILING_DATA_FIELD_DEF(float, factor);
END_TILING_DATA_DEF;
REGISTER_TILING_DATA_CLASS(ScaleRows, ScaleRowsTilingData)
}  // namespace optiling

#endif  // EXAMPLES_SCALE_ROWS_OP_HOST_SCALE_ROWS_TILING_H_
