// What a front end hands an operator beside tensors, for Python.

#include "backend_ascend/kernels/ascendc/operator/call_binding.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backend_ascend/kernels/ascendc/operator/call_blobs.h"
#include "backend_ascend/kernels/host/load/image_loader.h"
#include "backend_ascend/kernels/host/load/plan.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace hpmoe {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;

void Check(const Status& status) {
  if (status.code != 0) throw nb::value_error(status.message);
}

LoadedImage Load(const Bytes& bytes) {
  LoadedImage image;
  Check(image.Load(bytes.data(), bytes.nbytes()));
  return image;
}

nb::bytes BytesOf(const std::vector<char>& blob) {
  return nb::bytes(blob.data(), blob.size());
}

nb::bytes Tables(const Bytes& bytes, const Ids& topk_ids) {
  const LoadedImage image = Load(bytes);
  const ImageHeader& h = image.header();
  const size_t slots = size_t(h.num_ranks) * h.num_tokens * h.top_k;
  if (topk_ids.size() != slots) {
    throw nb::value_error(("topk_ids: expected " + std::to_string(slots) +
                           " ids, got " + std::to_string(topk_ids.size()))
                              .c_str());
  }
  Plan plan;
  Check(MakePlan(h, topk_ids.data(), &plan));
  return BytesOf(MakeTables(h, plan));
}

nb::bytes State(const Bytes& bytes) {
  return BytesOf(MakeState(Load(bytes).header()));
}

std::string End(const Bytes& bytes, const Bytes& state) {
  const LoadedImage image = Load(bytes);
  const size_t expected = MakeState(image.header()).size();
  if (state.nbytes() != expected) {
    throw nb::value_error(("state: expected " + std::to_string(expected) +
                           " bytes, got " + std::to_string(state.nbytes()))
                              .c_str());
  }
  // Of the alignment of what lies in it.
  std::vector<char> copy(expected);
  std::copy_n(reinterpret_cast<const char*>(state.data()), expected,
              copy.data());
  return EndOf(image.view(), copy);
}

}  // namespace

void BindNpuCall(nb::module_& m) {
  m.def("npu_tables", &Tables, "image"_a, "topk_ids"_a,
        "Operand `tables` of an NPU's operator, of `[R, T, K]` ids.");
  m.def("npu_state", &State, "image"_a,
        "Operand `state` of an NPU's operator, for one launch.");
  m.def("npu_end", &End, "image"_a, "state"_a,
        "What went wrong, out of `state` after a launch, or ''.");
}

}  // namespace hpmoe
