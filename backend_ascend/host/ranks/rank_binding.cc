#include <nanobind/stl/pair.h>

#include <memory>
#include <utility>

#include "backend_ascend/host/binding.h"
#include "backend_ascend/host/launch/tensors_binding.h"
#include "backend_ascend/host/ranks/launch_rank.h"
#include "backend_ascend/host/ranks/mapped_transport.h"
#include "backend_ascend/host/ranks/symmetric_heap.h"

namespace hpmoe {
namespace {

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

// Heap and counters of every rank, where they are mapped here; or none.
using Peers = std::vector<std::pair<OutArray, OutArray>>;

// Keeps alive the arrays that a launch points to.
class PyRankLaunch {
 public:
  PyRankLaunch(const LoadedImage& image, const Routing& routing,
               const ConstArrays& inputs, const Arrays& outputs,
               const OutArray& heap, const OutArray& counters,
               const nb::object& transport,
               const std::optional<std::string>& isa, const Peers& peers)
      : inputs_(inputs),
        outputs_(outputs),
        heap_(heap),
        counters_(counters),
        transport_(transport),
        peers_(peers),
        view_(image.view()) {
    MapPeers();
    Check(launch_.Prepare(view_, Tensors(routing), IsaOf(isa)));
  }

  bool Run(double deadline_s) { return launch_.Run(deadline_s); }
  int RunSome(int64_t max_tasks) {
    return static_cast<int>(launch_.RunSome(max_tasks));
  }
  Diagnosis Blocked() const { return launch_.FindBlocked(); }

 private:
  void MapPeers() {
    if (peers_.empty()) return;
    const ImageHeader& header = *view_.header;
    if (static_cast<int64_t>(peers_.size()) != header.num_ranks) {
      Refuse("peers", std::to_string(header.num_ranks) + " ranks",
             std::to_string(peers_.size()));
    }
    std::vector<MappedRank> ranks;
    for (const auto& [heap, counters] : peers_) {
      CheckBytes("heap of a peer", MakeHeapLayout(header).bytes, heap.nbytes());
      CheckBytes("counters of a peer", int64_t{view_.num_events} * 4,
                 counters.nbytes());
      ranks.push_back({static_cast<char*>(heap.data()),
                       static_cast<int32_t*>(counters.data())});
    }
    mapped_ = std::make_unique<MappedTransport>(std::move(ranks), &transport_);
  }

  RankTensors Tensors(const Routing& routing) {
    const ImageHeader& header = *view_.header;
    const int64_t by_slot = int64_t{header.num_tokens} * header.top_k * 4;
    RankTensors tensors{};
    tensors.rank = routing.rank;
    tensors.plan = &routing.plan;
    tensors.topk_ids =
        static_cast<const int32_t*>(Find(inputs_, "topk_ids", by_slot));
    tensors.topk_weights =
        static_cast<const float*>(Find(inputs_, "topk_weights", by_slot));
    const HeapLayout heap = MakeHeapLayout(header);
    CheckBytes("heap", heap.bytes, heap_.nbytes());
    tensors.heap = static_cast<char*>(heap_.data());
    CheckBytes("counters", int64_t{view_.num_events} * 4, counters_.nbytes());
    tensors.counters = static_cast<int32_t*>(counters_.data());
    tensors.transport = &transport_;
    if (mapped_ != nullptr) tensors.transport = mapped_.get();
    for (int b = 0; b < kNumBuffers; ++b) {
      if (heap.buffers[b] < 0) tensors.buffers[b] = Buffer(b);
      if (heap.scales[b] < 0) tensors.scales[b] = Scales(b);
    }
    return tensors;
  }

  void* Buffer(int b) const {
    const ImageHeader& header = *view_.header;
    const std::string name = ArrayName(header, b);
    const Use use = UseOf(header, b);
    const int64_t bytes =
        ShapeOf(header, static_cast<BufferId>(b)).bytes() / header.num_ranks;
    if (use == Use::kWritten) return Find(outputs_, name, bytes);
    if (use != Use::kInput) return nullptr;
    return const_cast<void*>(
        static_cast<const void*>(Find(inputs_, name, bytes)));
  }

  float* Scales(int b) const {
    const ImageHeader& header = *view_.header;
    const int64_t bytes = NumScales(header, b) * 4 / header.num_ranks;
    if (bytes == 0) return nullptr;
    const void* const scales = PassUse(header, b) == Use::kWritten
                                   ? Find(outputs_, ScalesName(b), bytes)
                                   : Find(inputs_, ScalesName(b), bytes);
    return static_cast<float*>(const_cast<void*>(scales));
  }

  const ConstArrays inputs_;
  const Arrays outputs_;
  const OutArray heap_, counters_;
  PyTransport transport_;
  const Peers peers_;
  std::unique_ptr<MappedTransport> mapped_;
  const ImageView& view_;
  RankLaunch launch_;
};

}  // namespace

void BindRanks(nb::module_& m) {
  nb::class_<PyRankLaunch>(m, "RankLaunch", "One rank of a launch, prepared.")
      .def(nb::init<const LoadedImage&, const Routing&, const ConstArrays&,
                    const Arrays&, const OutArray&, const OutArray&,
                    const nb::object&, const std::optional<std::string>&,
                    const Peers&>(),
           "image"_a, "routing"_a, "inputs"_a, "outputs"_a, "heap"_a,
           "counters"_a, "transport"_a, "isa"_a = nb::none(),
           "peers"_a = Peers(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
           "routing: the rank's.  transport: of rank_runtime.Transport.\n"
           "peers: of all ranks, where puts need no transport.")
      .def("run", &PyRankLaunch::Run, "deadline_s"_a,
           "Whether all tasks ran before none ended in time.")
      .def("run_some", &PyRankLaunch::RunSome, "max_tasks"_a,
           "0: some ran, 1: none can, 2: all have.")
      .def("blocked", &PyRankLaunch::Blocked, "Why nothing runs.");
}

}  // namespace hpmoe
