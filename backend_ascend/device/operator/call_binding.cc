// What a front end hands an operator beside tensors, for Python.

#include "backend_ascend/device/operator/call_binding.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "backend_ascend/device/launch/target.h"
#include "backend_ascend/device/npus/diagnose_cores.h"
#include "backend_ascend/device/operator/call_layout.h"
#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/load/plan.h"

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

// What a layout's address names, in its blob.
template <class T>
T* Find(T* address, const char* blob) {
  const uint64_t in_blob = (uint64_t{1} << kBlobBit) - 1;
  const uint64_t at = reinterpret_cast<uint64_t>(address) & in_blob;
  return reinterpret_cast<T*>(const_cast<char*>(blob) + at);
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
  const CallLayout layout = LayoutOf(h);
  std::vector<char> blob(layout.bytes[kTables]);
  std::memcpy(blob.data(), &layout.args, sizeof(layout.args));
  CopyTables(h, plan, layout.args,
             [&](void* to, const void* from, uint64_t size) {
               std::memcpy(Find(to, blob.data()), from, size);
             });
  FillConstants(
      const_cast<Constants*>(Find(layout.args.constants, blob.data())));
  return nb::bytes(blob.data(), blob.size());
}

nb::bytes State(const Bytes& bytes) {
  const LoadedImage image = Load(bytes);
  Check(CheckNpuTarget(image.view()));
  const CallLayout layout = LayoutOf(image.header());
  std::vector<char> blob(layout.bytes[kState]);
  std::fill_n(Find(layout.args.header_slot, blob.data()),
              image.header().num_rows, -1);
  return nb::bytes(blob.data(), blob.size());
}

std::string Told(const Bytes& bytes, const Bytes& state) {
  const LoadedImage image = Load(bytes);
  const ImageHeader& h = image.header();
  const CallLayout layout = LayoutOf(h);
  const uint64_t expected = layout.bytes[kState];
  if (state.nbytes() != expected) {
    throw nb::value_error(("state: expected " + std::to_string(expected) +
                           " bytes, got " + std::to_string(state.nbytes()))
                              .c_str());
  }
  // Of the alignment of what lies in it.
  const std::vector<char> copy(state.data(), state.data() + expected);
  const auto* const ends = Find(layout.args.diagnosis, copy.data());
  return EndOf(image.view(), 0, {ends, ends + h.num_aic + h.num_aiv}).text;
}

}  // namespace

void BindNpuCall(nb::module_& m) {
  m.def("npu_tables", &Tables, "image"_a, "topk_ids"_a,
        "Operand `tables` of an NPU's operator, of `[R, T, K]` ids.");
  m.def("npu_state", &State, "image"_a,
        "Operand `state` of an NPU's operator, for one launch.");
  m.def("npu_end", &Told, "image"_a, "state"_a,
        "What went wrong, out of `state` after a launch, or ''.");
}

}  // namespace hpmoe
