// The tables of kinds.h and their reading, for Python.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

#include "backend_ascend/kernels/regions.h"

namespace nb = nanobind;

namespace hpmoe {
namespace {

using Table = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

nb::list Kinds() {
  nb::list kinds;
  for (int k = 0; k < kNumTaskKinds; ++k) {
    const KindInfo& info = kKinds[k];
    nb::dict kind;
    kind["name"] = info.name;
    kind["unit"] = static_cast<int>(info.info().unit);
    kind["form"] = static_cast<int>(info.form());
    kind["direction"] = static_cast<int>(DirectionOf(k));
    kind["written"] = static_cast<int>(info.written);
    kinds.append(kind);
  }
  return kinds;
}

nb::list Buffers() {
  nb::list buffers;
  for (const BufferInfo& info : kBuffers) {
    nb::dict buffer;
    buffer["name"] = info.name;
    buffers.append(buffer);
  }
  return buffers;
}

const ImageHeader& Header(const Table& header) {
  if (header.nbytes() != sizeof(ImageHeader)) {
    throw nb::value_error("header: expected one layout.HEADER");
  }
  return *static_cast<const ImageHeader*>(header.data());
}

// (groups, rows, columns, columns beside the tensor's).
nb::tuple ExtentPy(const Table& header, int buffer, int view) {
  const ImageHeader& h = Header(header);
  const Extent extent = ExtentOf(h, buffer, view);
  return nb::make_tuple(extent.groups, extent.rows, extent.cols,
                        BesideOf(h, buffer));
}

// (reads [tasks, i], writes [tasks]) as the bytes of layout.REGION.
nb::tuple RegionsPy(const Table& header, const Table& tasks) {
  const ImageHeader& h = Header(header);
  const auto* const begin = static_cast<const TaskDesc*>(tasks.data());
  const auto* const end = begin + tasks.nbytes() / sizeof(TaskDesc);
  const Touched touched(h);
  std::vector<RegionDesc> reads, writes;
  for (const TaskDesc* task = begin; task != end; ++task) {
    for (const ReadSpec& spec : KindOf(*task).reads) {
      if (spec.buffer == kNumBuffers) break;
      if (Applies(h, spec.when)) reads.push_back(touched.Read(*task, spec));
    }
    writes.push_back(touched.Write(*task));
  }
  const auto bytes = [](const std::vector<RegionDesc>& regions) {
    return nb::bytes(reinterpret_cast<const char*>(regions.data()),
                     regions.size() * sizeof(RegionDesc));
  };
  return nb::make_tuple(bytes(reads), bytes(writes));
}

}  // namespace

void BindKinds(nb::module_& m) {
  m.def("kinds", &Kinds);
  m.def("buffers", &Buffers);
  m.def("extent", &ExtentPy);
  m.def("regions", &RegionsPy);
}

}  // namespace hpmoe
