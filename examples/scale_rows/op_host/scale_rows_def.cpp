// Arguments of the operator, as CANN's build reads them.

#include "register/op_def_registry.h"

namespace ops {
class ScaleRows : public OpDef {
 public:
  explicit ScaleRows(const char* name) : OpDef(name) {
    this->Input("x").ParamType(REQUIRED).DataType({ge::DT_FLOAT});
    this->Output("y").ParamType(REQUIRED).DataType({ge::DT_FLOAT});
    this->AICore().AddConfig("ascend910b");
  }
};
OP_ADD(ScaleRows);
}  // namespace ops
