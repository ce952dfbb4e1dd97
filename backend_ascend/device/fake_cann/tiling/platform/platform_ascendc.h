// A stand-in for CANN's header of this name; see op_def_registry.h.

#ifndef BACKEND_ASCEND_DEVICE_FAKE_CANN_TILING_PLATFORM_PLATFORM_ASCENDC_H_
#define BACKEND_ASCEND_DEVICE_FAKE_CANN_TILING_PLATFORM_PLATFORM_ASCENDC_H_

#include "register/op_def_registry.h"

namespace platform_ascendc {

class PlatformAscendC {
 public:
  explicit PlatformAscendC(const gert::TilingContext* context)
      : context_(context) {}
  uint32_t GetCoreNumAic() const { return context_->cores; }
  uint32_t GetLibApiWorkSpaceSize() const { return 16 << 20; }

 private:
  const gert::TilingContext* const context_;
};

}  // namespace platform_ascendc

#endif  // BACKEND_ASCEND_DEVICE_FAKE_CANN_TILING_PLATFORM_PLATFORM_ASCENDC_H_
