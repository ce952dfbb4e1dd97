// What the bindings share: arrays, errors by type, and what calls hand on.

#ifndef BACKEND_ASCEND_HOST_BINDING_H_
#define BACKEND_ASCEND_HOST_BINDING_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/load/plan.h"
#include "backend_ascend/host/tiles/cpu_features.h"
#include "backend_ascend/image/dtypes.h"

namespace hpmoe {

namespace nb = nanobind;
using nb::literals::operator""_a;

using OutArray = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ConstArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
// By tensor name.
using Arrays = std::map<std::string, OutArray>;
using ConstArrays = std::map<std::string, ConstArray>;

// bfloat16, which array protocols do not know, is passed as its bits.
inline nb::dlpack::dtype PassedAs(DType dtype) {
  using nb::dlpack::dtype_code;
  const dtype_code code =
      dtype == kBFloat16 ? dtype_code::UInt : dtype_code::Float;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * BytesOf(dtype)),
          1};
}

// kNumDTypes: none of them.
template <class Array>
DType StoredAs(const Array& array) {
  uint32_t dtype = 0;
  while (dtype < kNumDTypes && !(array.dtype() == PassedAs(DType{dtype}))) {
    ++dtype;
  }
  return DType{dtype};
}

// A routing on an image, planned once.
struct Routing {
  int32_t rank = -1;  // whose slots; -1: all ranks'
  std::vector<int32_t> topk_ids;
  Plan plan;
  std::vector<size_t> by_expert, by_slot;  // shapes
};

// Not the caller's fault: our own tables contradict each other.
struct BrokenError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The blob is no image.
struct ImageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void Refuse(const std::string& name,
                                const std::string& expected,
                                const std::string& got) {
  throw nb::value_error(
      (name + ": expected " + expected + ", got " + got).c_str());
}

inline void Check(const Status& status) {
  if (status.code == kBroken) throw BrokenError(status.message);
  if (status.code != 0) throw nb::value_error(status.message);
}

// The last line of defence: Python checks shapes, this checks sizes.
inline void CheckBytes(const std::string& name, int64_t expected, int64_t got) {
  if (expected == got) return;
  Refuse(name, std::to_string(expected) + " bytes", std::to_string(got));
}

template <class T>
auto* Find(const std::map<std::string, T>& arrays, const std::string& name,
           int64_t bytes) {
  const auto found = arrays.find(name);
  if (found == arrays.end()) Refuse(name, "an array", "none");
  CheckBytes(name, bytes, found->second.nbytes());
  return found->second.data();
}

// None: the best one.
inline Isa IsaOf(const std::optional<std::string>& name) {
  if (!name) return BestIsa();
  std::string supported;
  for (const Isa isa : kAllIsas) {
    if (!IsaSupported(isa)) continue;
    if (*name == IsaName(isa)) return isa;
    supported += (supported.empty() ? "" : ", ") + std::string(IsaName(isa));
  }
  Refuse("isa", "one of " + supported, "'" + *name + "'");
}

// A vector of `owner`, in place and read-only; none: of what a method is of.
template <class T>
auto ViewOfVector(const std::vector<T>& values, std::vector<size_t> shape,
                  nb::handle owner = {}) {
  return nb::ndarray<nb::numpy, const T>(values.data(), shape.size(),
                                         shape.data(), owner);
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_BINDING_H_
