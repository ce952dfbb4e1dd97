#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <string>

#include "backend_ascend/kernels/host/launch/binding.h"
#include "backend_ascend/kernels/host/ranks/launch_rank.h"
#include "backend_ascend/kernels/host/ranks/symmetric_heap.h"

namespace hpmoe {
namespace {

void CheckRank(const ImageHeader& header, int32_t rank) {
  if (rank >= 0 && rank < header.num_ranks) return;
  Refuse("rank: expected one in [0, " + std::to_string(header.num_ranks) +
         "), got " + std::to_string(rank));
}

// A transport written in Python.
class PyTransport final : public Transport {
 public:
  explicit PyTransport(const nb::object& transport)
      : put_(transport.attr("put")),
        flush_(transport.attr("flush")),
        add_(transport.attr("add")),
        sync_(transport.attr("sync")),
        progress_(transport.attr("progress")) {}

  void Put(int32_t rank, int64_t offset, const void* data,
           int64_t bytes) override {
    PyObject* const view = PyMemoryView_FromMemory(
        const_cast<char*>(static_cast<const char*>(data)), bytes, PyBUF_READ);
    if (view == nullptr) throw nb::python_error();
    put_(rank, offset, nb::steal(view));
  }
  void Flush(int32_t rank) override { flush_(rank); }
  void Add(int32_t rank, int32_t event, int32_t amount) override {
    add_(rank, event, amount);
  }
  void Sync() override { sync_(); }
  void Progress() override { progress_(); }

 private:
  const nb::object put_, flush_, add_, sync_, progress_;
};

// Keeps alive what a launch points to.
class PyRankLaunch {
 public:
  PyRankLaunch(const ConstArray& image, int32_t rank, const ConstArrays& inputs,
               const Arrays& outputs, const OutArray& heap,
               const OutArray& counters, const nb::object& transport,
               const std::string& isa, const Plan* plan)
      : image_(image),
        inputs_(inputs),
        outputs_(outputs),
        heap_(heap),
        counters_(counters),
        transport_(transport),
        view_(Load(image)) {
    CheckRank(*view_.header, rank);
    RankTensors tensors = Tensors(rank);
    tensors.plan = plan;
    Check(launch_.Prepare(view_, tensors, IsaByName(isa)));
    plan = &launch_.plan();
    const int64_t experts = view_.header->num_experts;
    std::copy_n(plan->row_base.begin() + rank * experts, experts,
                Ints("row_base", experts));
    std::copy(plan->row_of_slot.begin(), plan->row_of_slot.end(),
              Ints("row_of_slot", Slots()));
  }

  bool Run(double deadline_s) { return launch_.Run(deadline_s); }
  int RunSome(int64_t max_tasks) {
    return static_cast<int>(launch_.RunSome(max_tasks));
  }
  Diagnosis Blocked() const { return launch_.FindBlocked(); }

 private:
  int64_t Slots() const {
    return int64_t{view_.header->num_tokens} * view_.header->top_k;
  }
  int32_t* Ints(const char* name, int64_t count) const {
    return static_cast<int32_t*>(Find(outputs_, name, count * 4));
  }

  RankTensors Tensors(int32_t rank) {
    const ImageHeader& header = *view_.header;
    RankTensors tensors{};
    tensors.rank = rank;
    tensors.topk_ids =
        static_cast<const int32_t*>(Find(inputs_, "topk_ids", Slots() * 4));
    tensors.topk_weights =
        static_cast<const float*>(Find(inputs_, "topk_weights", Slots() * 4));
    tensors.counts = static_cast<const int32_t*>(Find(
        inputs_, "counts", int64_t{header.num_ranks} * header.num_experts * 4));
    const HeapLayout heap = MakeHeapLayout(header);
    CheckBytes("heap", heap.bytes, heap_.nbytes());
    tensors.heap = static_cast<char*>(heap_.data());
    CheckBytes("counters", int64_t{view_.num_events} * 4, counters_.nbytes());
    tensors.counters = static_cast<int32_t*>(counters_.data());
    tensors.transport = &transport_;
    for (int b = 0; b < kNumBuffers; ++b) {
      if (heap.buffers[b] < 0) tensors.buffers[b] = Buffer(b);
    }
    return tensors;
  }

  void* Buffer(int b) const {
    const ImageHeader& header = *view_.header;
    const BufferInfo& info = kBuffers[b];
    const Use use = UseOf(header, b);
    const int64_t bytes =
        ShapeOf(header, static_cast<BufferId>(b)).bytes() / header.num_ranks;
    if (use == Use::kWritten) return Find(outputs_, info.name, bytes);
    if (use != Use::kInput) return nullptr;
    return const_cast<void*>(
        static_cast<const void*>(Find(inputs_, info.name, bytes)));
  }

  const ConstArray image_;
  const ConstArrays inputs_;
  const Arrays outputs_;
  const OutArray heap_, counters_;
  PyTransport transport_;
  const ImageView view_;
  RankLaunch launch_;
};

// Bytes of a rank's heap, and where in it each buffer lies.
nb::tuple RankHeapPy(const ConstArray& image) {
  const ImageView view = Load(image);
  const HeapLayout heap = MakeHeapLayout(*view.header);
  std::map<std::string, int64_t> offsets;
  for (int b = 0; b < kNumBuffers; ++b) {
    if (heap.buffers[b] >= 0) offsets[kBuffers[b].name] = heap.buffers[b];
  }
  return nb::make_tuple(heap.bytes, offsets);
}

// Fills the rank's row of counts, [E].
void CountSlotsPy(const ConstArray& image, int32_t rank,
                  const ConstArray& topk_ids, const OutArray& counts) {
  const ImageView view = Load(image);
  const ImageHeader& header = *view.header;
  CheckRank(header, rank);
  CheckBytes("topk_ids", int64_t{header.num_tokens} * header.top_k * 4,
             topk_ids.nbytes());
  CheckBytes("counts", int64_t{header.num_experts} * 4, counts.nbytes());
  Check(CountSlots(header, rank, static_cast<const int32_t*>(topk_ids.data()),
                   static_cast<int32_t*>(counts.data())));
}

// The rank's plan: row_of_slot and slice_slots are its own.
Plan RankPlanPy(const ConstArray& image, int32_t rank,
                const ConstArray& topk_ids, const ConstArray& counts) {
  const ImageView view = Load(image);
  const ImageHeader& header = *view.header;
  CheckRank(header, rank);
  CheckBytes("topk_ids", int64_t{header.num_tokens} * header.top_k * 4,
             topk_ids.nbytes());
  CheckBytes("counts", int64_t{header.num_ranks} * header.num_experts * 4,
             counts.nbytes());
  Plan plan;
  Check(MakeRankPlan(header, rank, static_cast<const int32_t*>(topk_ids.data()),
                     static_cast<const int32_t*>(counts.data()), &plan));
  return plan;
}

}  // namespace

void BindRanks(nb::module_& m) {
  nb::class_<PyRankLaunch>(m, "RankLaunch")
      .def(nb::init<const ConstArray&, int32_t, const ConstArrays&,
                    const Arrays&, const OutArray&, const OutArray&,
                    const nb::object&, const std::string&, const Plan*>(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg("plan").none(),
           nb::keep_alive<1, 10>())
      .def("run", &PyRankLaunch::Run)
      .def("run_some", &PyRankLaunch::RunSome)
      .def("blocked", &PyRankLaunch::Blocked);
  m.def("rank_heap", &RankHeapPy);
  m.def("count_slots", &CountSlotsPy);
  m.def("rank_plan", &RankPlanPy);
}

}  // namespace hpmoe
