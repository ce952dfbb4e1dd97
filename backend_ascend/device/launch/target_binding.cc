// Whether the device source can run an image, for Python.

#include "backend_ascend/device/launch/target.h"
#include "backend_ascend/host/binding.h"

namespace hpmoe {
namespace {

std::optional<std::string> FindRefusal(const LoadedImage& image) {
  if (image.header().span == kSublayer) {
    return "sublayer: expected False, got True, whose norm the NPU's source "
           "has no tiles for";
  }
  const Status status = CheckTarget(image.view());
  if (status.code == 0) return std::nullopt;
  return std::string(status.message);
}

}  // namespace

void BindTarget(nb::module_& m) {
  m.def("find_refusal", &FindRefusal, nb::arg("image"),
        "Why the device source cannot run an image, or None.");
}

}  // namespace hpmoe
