// What a launch runs on: an image, a routing on it, and the tables of kinds.h
// and dtypes.h.

#include <utility>

#include "backend_ascend/host/binding.h"
#include "backend_ascend/host/launch/tensors_binding.h"
#include "backend_ascend/host/ranks/symmetric_heap.h"
#include "backend_ascend/image/dtypes.h"
#include "backend_ascend/image/kinds.h"

namespace hpmoe {
namespace {

// Any contiguous buffer: bytes, bytearray, memoryview, mmap, array.
void InitImage(LoadedImage* self, const nb::object& data) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(data.ptr(), &buffer, PyBUF_SIMPLE) != 0) {
    throw nb::python_error();
  }
  LoadedImage image;
  Status status;
  {
    const nb::gil_scoped_release release;
    status = image.Load(buffer.buf, static_cast<size_t>(buffer.len));
  }
  PyBuffer_Release(&buffer);
  if (status.code != 0) throw ImageError(status.message);
  new (self) LoadedImage(std::move(image));
}

// Python reads the image in place.
int GetBuffer(PyObject* self, Py_buffer* buffer, int flags) {
  if (!nb::inst_ready(self)) {
    PyErr_SetString(PyExc_BufferError, "image: expected one that is loaded");
    return -1;
  }
  const auto& image = *nb::inst_ptr<LoadedImage>(self);
  return PyBuffer_FillInfo(buffer, self, const_cast<void*>(image.data()),
                           static_cast<Py_ssize_t>(image.size()),
                           /*readonly=*/1, flags);
}

PyType_Slot kImageSlots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&GetBuffer)}, {0, nullptr}};

// Where in a rank's heap each buffer lies.
std::map<std::string, int64_t> HeapOffsets(const LoadedImage& image) {
  const HeapLayout heap = MakeHeapLayout(image.header());
  std::map<std::string, int64_t> offsets;
  for (int b = 0; b < kNumBuffers; ++b) {
    if (heap.buffers[b] < 0) continue;
    offsets[ArrayName(image.header(), b)] = heap.buffers[b];
    if (heap.scales[b] >= 0) offsets[ScalesName(b)] = heap.scales[b];
  }
  return offsets;
}

std::vector<size_t> Shape(std::initializer_list<int32_t> sizes) {
  return {sizes.begin(), sizes.end()};
}

// A table in place; flat without a shape.
auto TableOf(const std::vector<int32_t>& table,
             std::vector<size_t> shape = {}) {
  if (shape.empty()) shape = {table.size()};
  return ViewOfVector(table, std::move(shape));
}

// Ids of all ranks, or those of `rank` beside all ranks' counts.
void InitRouting(Routing* self, const LoadedImage& image, const Ints& topk_ids,
                 std::optional<int32_t> rank,
                 const std::optional<Ints>& counts) {
  const ImageHeader& h = image.header();
  Routing routing;
  routing.rank = rank.value_or(-1);
  routing.by_expert = Shape({h.num_ranks, h.num_experts});
  routing.by_slot = rank ? Shape({h.num_tokens, h.top_k})
                         : Shape({h.num_ranks, h.num_tokens, h.top_k});
  CheckBytes("topk_ids",
             (rank ? 1 : h.num_ranks) * int64_t{h.num_tokens} * h.top_k * 4,
             topk_ids.nbytes());
  routing.topk_ids.assign(topk_ids.data(), topk_ids.data() + topk_ids.size());
  if (!rank) {
    Check(MakePlan(h, routing.topk_ids.data(), &routing.plan));
  } else {
    if (!counts) Refuse("counts", "those of all ranks", "none");
    CheckBytes("counts", h.num_ranks * CountsOf(h) * 4, counts->nbytes());
    Check(MakeRankPlan(h, *rank, routing.topk_ids.data(), counts->data(),
                       &routing.plan));
  }
  new (self) Routing(std::move(routing));
}

// A rank's row of counts, [E]; with relay, [2E].
std::vector<int32_t> CountSlotsPy(const LoadedImage& image, int32_t rank,
                                  const Ints& topk_ids) {
  const ImageHeader& h = image.header();
  CheckBytes("topk_ids", int64_t{h.num_tokens} * h.top_k * 4,
             topk_ids.nbytes());
  std::vector<int32_t> counts(CountsOf(h));
  Check(CountSlots(h, rank, topk_ids.data(), counts.data()));
  return counts;
}

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
    kind["left"] = static_cast<int>(info.left());
    kind["right"] = static_cast<int>(info.right());
    kind["path"] = static_cast<int>(info.info().path);
    kinds.append(kind);
  }
  return kinds;
}

template <class Table>
std::vector<std::string> Names(const Table& table) {
  std::vector<std::string> names;
  for (const auto& info : table) names.emplace_back(info.name);
  return names;
}

}  // namespace

void BindImage(nb::module_& m) {
  nb::exception<BrokenError>(m, "BrokenError", PyExc_RuntimeError);
  nb::exception<ImageError>(m, "ImageError", PyExc_ValueError);
  m.def("kinds", &Kinds, "The table of kinds, in order.");
  m.def(
      "buffers", [] { return Names(kBuffers); },
      "The names of the buffers, in order.");
  m.def(
      "dtypes", [] { return Names(kDTypes); },
      "The names of storage dtypes, by their codes.");
  nb::class_<LoadedImage>(m, "Image", nb::type_slots(kImageSlots),
                          "An image, read and checked once; a buffer of bytes.")
      .def(
          "__init__", &InitImage, "data"_a,
          nb::sig("def __init__(self, data: typing_extensions.Buffer) -> None"),
          "Copies any contiguous buffer; raises ImageError.")
      .def("__len__", &LoadedImage::size)
      .def_prop_ro(
          "heap_bytes",
          [](const LoadedImage& image) {
            return MakeHeapLayout(image.header()).bytes;
          },
          "What other ranks write on each rank.")
      .def_prop_ro("heap_offsets", &HeapOffsets,
                   "Where in the heap each of its buffers lies, by name.");
  using R = Routing;
  nb::class_<R>(m, "Routing", "A routing on an image, planned once.")
      .def("__init__", &InitRouting, "image"_a, "topk_ids"_a, nb::kw_only(),
           "rank"_a = nb::none(), "counts"_a = nb::none(),
           "topk_ids: `[R, T, K]`; with a rank, `[T, K]` of it beside all\n"
           "ranks' counts, `[R, E]`.  Raises ValueError.")
      .def_prop_ro(
          "counts",
          [](const R& r) { return TableOf(r.plan.counts, r.by_expert); })
      .def_prop_ro("relayed_counts",
                   [](const R& r) {
                     const auto& counts = r.plan.once.counts;
                     return TableOf(
                         counts, counts.empty() ? Shape({0, 0}) : r.by_expert);
                   })
      .def_prop_ro(
          "row_base",
          [](const R& r) { return TableOf(r.plan.row_base, r.by_expert); })
      .def_prop_ro(
          "row_of_slot",
          [](const R& r) { return TableOf(r.plan.row_of_slot, r.by_slot); })
      .def_prop_ro("copy_rows",
                   [](const R& r) { return TableOf(r.plan.copy_rows); })
      .def_prop_ro("copy_slots",
                   [](const R& r) { return TableOf(r.plan.copy_slots); })
      .def_prop_ro("slice_slots",
                   [](const R& r) { return TableOf(r.plan.slice_slots); });
  m.def("count_slots", &CountSlotsPy, "image"_a, "rank"_a, "topk_ids"_a,
        "A rank's `[E]` counts from its own `[T, K]` ids; with relay `[2E]`.");
}

}  // namespace hpmoe
