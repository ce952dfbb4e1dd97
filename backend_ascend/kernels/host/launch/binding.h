// What the bindings of launches share: arrays by name, and errors by type.

#ifndef BACKEND_ASCEND_KERNELS_HOST_LAUNCH_BINDING_H_
#define BACKEND_ASCEND_KERNELS_HOST_LAUNCH_BINDING_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <map>
#include <stdexcept>
#include <string>

#include "backend_ascend/kernels/host/load/image_loader.h"
#include "backend_ascend/kernels/host/tiles/cpu_features.h"

namespace hpmoe {

namespace nb = nanobind;

using OutArray = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ConstArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
// By tensor name.
using Arrays = std::map<std::string, OutArray>;
using ConstArrays = std::map<std::string, ConstArray>;

// Not the caller's fault: our own tables contradict each other.
struct BrokenError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The blob is no image.
struct ImageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void Refuse(const std::string& text) {
  throw nb::value_error(text.c_str());
}

inline void Check(const Status& status) {
  if (status.code == kBroken) throw BrokenError(status.message);
  if (status.code != 0) Refuse(status.message);
}

// The last line of defence: Python checks shapes, this checks sizes.
inline void CheckBytes(const std::string& name, int64_t expected, int64_t got) {
  if (expected == got) return;
  Refuse(name + ": expected " + std::to_string(expected) + " bytes, got " +
         std::to_string(got));
}

template <class T>
auto* Find(const std::map<std::string, T>& arrays, const std::string& name,
           int64_t bytes) {
  const auto found = arrays.find(name);
  if (found == arrays.end()) Refuse(name + ": expected an array, got none");
  CheckBytes(name, bytes, found->second.nbytes());
  return found->second.data();
}

inline ImageView Load(const void* data, size_t size) {
  ImageView view;
  const Status status = LoadImage(data, size, &view);
  if (status.code != 0) throw ImageError(status.message);
  return view;
}
inline ImageView Load(const ConstArray& image) {
  return Load(image.data(), image.nbytes());
}

inline Isa IsaByName(const std::string& name) {
  if (name.empty()) return BestIsa();
  for (const Isa isa : kAllIsas) {
    if (IsaSupported(isa) && name == IsaName(isa)) return isa;
  }
  Refuse("isa: expected one that this CPU runs, got '" + name + "'");
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_LAUNCH_BINDING_H_
