// libFuzzer target: whatever an image file can reach, from its bytes alone.
//
// Any bytes are refused with a reason or load; what loads is safe to prove, to
// plan, to inspect, to simulate and to launch in every checking mode and for
// some tensors; what is proved runs to its end in any order and without a race,
// writes every element and gives the bits of the serial launch, which are those
// of a production launch.  `make fuzz` builds and runs it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <vector>

#include "backend_ascend/kernels/host/checks/launch_inspect.h"
#include "backend_ascend/kernels/host/launch/launch.h"
#include "backend_ascend/kernels/host/launch/runtime_tasks.h"
#include "backend_ascend/kernels/host/load/image_loader.h"
#include "backend_ascend/kernels/host/load/plan.h"
#include "backend_ascend/kernels/host/tiles/storage.h"
#include "backend_ascend/simulator/cost.h"
#include "backend_ascend/simulator/engine.h"
#include "backend_ascend/taskflow/fuzz/image_mutator_fuzz.h"
#include "backend_ascend/taskflow/proofs/proofs.h"

namespace hpmoe {
namespace {

// Larger layers are loaded and proved but not launched: the loader bounds
// indices, not sizes, and memory is the caller's to give.
constexpr int64_t kMaxBytes = 8 << 20;
constexpr int64_t kMaxWork = 1 << 24;
constexpr int kMaxViolations = 4;

void Require(bool held, const char* what) {
  if (held) return;
  std::fprintf(stderr, "image_fuzz: %s\n", what);
  std::abort();
}

void RequireRefusal(const Status& status) {
  Require(std::memchr(status.message, 0, sizeof(status.message)) != nullptr &&
              status.message[0] != 0 && !std::strchr(status.message, '\n'),
          "a refusal is one line");
}

// Saturates, so that sizes of any image can be multiplied.
int64_t Product(std::initializer_list<int64_t> factors) {
  double product = 1;
  for (const int64_t factor : factors) product *= static_cast<double>(factor);
  return product < 1e18 ? static_cast<int64_t>(product) : int64_t{1} << 60;
}

// A launch may compute d_activation in the tasks of d_gate_up.
int64_t WorkOf(const ImageHeader& h, const TaskDesc& t, int64_t longest,
               int64_t width) {
  const int64_t rows = std::min<int64_t>(t.row_end - t.row_begin, longest);
  const int64_t cols = KindOf(t).work == Work::kActivationGrad
                           ? h.d_ff
                           : t.col_end - t.col_begin;
  return Product({rows, cols + 1, width});
}

bool IsSmall(const ImageView& view) {
  const ImageHeader& h = *view.header;
  const int64_t width =
      std::max<int64_t>({h.d_model, 2 * int64_t{h.d_ff}, h.num_rows, h.top_k});
  if (Product({h.num_ranks, h.num_experts, 16}) > kMaxBytes ||
      Product({h.num_ranks, h.num_tokens, h.top_k, 32}) > kMaxBytes ||
      Product({h.num_ranks, h.num_rows, 16}) > kMaxBytes) {
    return false;
  }
  int64_t bytes = 0;
  for (int b = 0; b < kNumBuffers; ++b) {
    const Array shape = ShapeOf(h, static_cast<BufferId>(b));
    bytes += Product({shape.slabs, shape.rows, shape.cols, 4});
    if (bytes > kMaxBytes) return false;
  }
  const int32_t longest =
      std::max({h.num_rows, h.num_tokens, h.d_model, h.d_ff});
  int64_t work = 0;
  for (int32_t i = 0; i < view.num_tasks; ++i) {
    work += WorkOf(h, view.tasks[i], longest, width);
    if (work > kMaxWork) return false;
  }
  return true;
}

// Tensors of one launch, each of its exact size: a byte too far is seen.
struct Tensors {
  std::vector<int32_t> ids, counts, row_base, row_of_slot;
  std::vector<float> weights;
  std::unique_ptr<char[]> buffers[kNumBuffers];

  LaunchTensors view() {
    LaunchTensors tensors = {nullptr,
                             ids.data(),
                             weights.data(),
                             counts.data(),
                             row_base.data(),
                             row_of_slot.data(),
                             {}};
    for (int b = 0; b < kNumBuffers; ++b) tensors.buffers[b] = buffers[b].get();
    return tensors;
  }
};

using Random = std::mt19937;  // its stream is the standard's

// One routing in 16 is not valid.
std::vector<int32_t> MakeIds(const ImageHeader& h, Random* random) {
  const int64_t slots = int64_t{h.num_tokens} * h.top_k;
  std::vector<int32_t> ids(h.num_ranks * slots);
  const uint32_t spread = (*random)() % h.num_experts + 1;
  for (size_t i = 0; i < ids.size(); i += h.top_k) {
    const int64_t first = (*random)() % spread;
    for (int32_t k = 0; k < h.top_k; ++k) {
      ids[i + k] = static_cast<int32_t>((first + k) % h.num_experts);
    }
  }
  if ((*random)() % 16 == 0) {
    ids[(*random)() % ids.size()] = static_cast<int32_t>((*random)());
  }
  return ids;
}

// Small finite values of the storage dtype.
void FillInput(const Array& shape, DType dtype, Random* random, char* data) {
  for (int64_t i = 0; i < shape.bytes() / shape.element_bytes; ++i) {
    const float value = static_cast<float>((*random)() % 17) / 8 - 1;
    HPMOE_STORED(dtype, StoreFloat(value, reinterpret_cast<T*>(data) + i));
  }
}

// The same for the same image: the seed is in its checksum.
Tensors MakeTensors(const ImageHeader& h) {
  Random random(h.crc32);
  Tensors tensors;
  tensors.ids = MakeIds(h, &random);
  const size_t experts = size_t(h.num_ranks) * h.num_experts;
  tensors.counts.resize(experts);
  tensors.row_base.resize(experts);
  tensors.row_of_slot.resize(tensors.ids.size());
  tensors.weights.resize(tensors.ids.size());
  for (float& weight : tensors.weights) {
    weight = static_cast<float>(random() % 9) / 8;
  }
  for (int b = 0; b < kNumBuffers; ++b) {
    const Use use = UseOf(h, b);
    if (use == Use::kAbsent) continue;
    const Array shape = ShapeOf(h, static_cast<BufferId>(b));
    tensors.buffers[b].reset(new char[shape.bytes()]());
    if (use == Use::kInput) {
      FillInput(shape, DType{h.dtype}, &random, tensors.buffers[b].get());
    }
  }
  return tensors;
}

bool IsNan(const Array& shape, DType dtype, int64_t i) {
  float value = 0.0f;
  HPMOE_STORED(dtype,
               value = LoadFloat(reinterpret_cast<const T*>(shape.data) + i));
  return std::isnan(value);
}

// Each element arrives as NaN, and inputs are small and finite.
void RequireWritten(const ImageHeader& h, const Plan& plan, Tensors* tensors) {
  for (int b = 0; b < kNumBuffers; ++b) {
    if (!IsWritten(h, b)) continue;
    Array shape = ShapeOf(h, static_cast<BufferId>(b));
    shape.data = tensors->buffers[b].get();
    const bool is_float = shape.element_bytes == sizeof(float);
    const DType dtype = is_float ? kFloat32 : DType{h.dtype};
    const bool packed = IsPacked(BufferForm(h, b));
    for (int64_t slab = 0; slab < shape.slabs; ++slab) {
      const int64_t rows =
          packed ? SlicesOf(plan, b).rank_rows[slab] : shape.rows;
      const int64_t begin = slab * shape.rows * shape.cols;
      for (int64_t i = 0; i < rows * shape.cols; ++i) {
        Require(!IsNan(shape, dtype, begin + i),
                "what is proved writes everything");
      }
    }
  }
}

// Of the buffers that both have.
void RequireEqual(const ImageHeader& h, const Tensors& a, const Tensors& b) {
  for (int i = 0; i < kNumBuffers; ++i) {
    if (!IsWritten(h, i) || !a.buffers[i] || !b.buffers[i]) continue;
    const int64_t bytes = ShapeOf(h, static_cast<BufferId>(i)).bytes();
    Require(!std::memcmp(a.buffers[i].get(), b.buffers[i].get(), bytes),
            "what is proved has the bits of the serial launch");
  }
}

// All checking modes at once, or, in half of all cases, none.
LaunchOptions Modal(const ImageHeader& h, bool checks) {
  LaunchOptions options;
  options.threads = 1;
  options.deadline_s = 5.0;
  if (!checks) return options;
  options.modes.start = Modes::Start::kPoison;
  options.modes.permute = h.crc32 % 2 == 0;
  options.modes.seed = h.crc32;
  options.modes.late_puts = h.crc32 % 4 < 2;
  options.modes.races = true;
  options.modes.guards = h.crc32 % 8 < 4;
  options.modes.trace = true;
  return options;
}

// Also what has no proof, but for a kernel's own writes, may not go wrong.
LaunchReport Run(Launch* launch, const LaunchTensors& tensors,
                 const LaunchOptions& options, bool proved) {
  LaunchReport report;
  const Status status = launch->Run(tensors, options, &report);
  // Without a proof an event may have more signals than waits are for.
  const bool is_of_events = !proved && options.modes.races &&
                            !std::strncmp(status.message, "event ", 6);
  Require(status.code == 0 || is_of_events,
          "a launch takes what another takes");
  if (!proved) return report;
  Require(report.diagnosis.reason == StopReason::kNone,
          "what is proved runs to its end in any order");
  Require(report.races.count == 0, "what is proved has no race");
  return report;
}

// With checking modes, on an image that a plain launch took.
void LaunchChecked(const ImageView& view, const Plan& plan, bool proved,
                   const Tensors& plain) {
  const ImageHeader& h = *view.header;
  Tensors tensors = MakeTensors(h);
  Launch launch(view);
  Run(&launch, tensors.view(), Modal(h, true), proved);
  Inspection inspection;
  Require(Inspect(view, plan, tensors.ids.data(), &inspection).code == 0,
          "what is launched can be inspected");
  if (proved) RequireEqual(h, tensors, plain);
}

// Drops tensors that nobody asks for, as the checksum and `turn` say.
void AskForSome(const ImageHeader& h, int turn, Tensors* tensors) {
  Random random(h.crc32 + turn);
  const uint32_t asked = random();
  for (int b = 0; b < kNumBuffers; ++b) {
    const bool kept = asked >> b & 1;
    if (IsWritten(h, b) && !kept) tensors->buffers[b].reset();
  }
}

// In one arena, which the launch before leaves as it is; the last one checks.
void LaunchSome(const ImageView& view, bool proved, const Tensors& plain) {
  const ImageHeader& h = *view.header;
  Launch launch(view);
  for (int turn = 0; turn < 3; ++turn) {
    Tensors tensors = MakeTensors(h);
    AskForSome(h, turn, &tensors);
    Run(&launch, tensors.view(), Modal(h, turn == 2), proved);
    if (proved) RequireEqual(h, tensors, plain);
  }
}

// The row of a token where its expert has it.
const char* OwnRow(const ImageHeader& h, const Plan& plan,
                   const Tensors& tensors, BufferId buffer, int64_t slot) {
  const Array shape = ShapeOf(h, buffer);
  const int64_t owner = tensors.ids[slot] / LocalExperts(h);
  const int64_t row = owner * h.num_rows + plan.row_of_slot[slot];
  return tensors.buffers[buffer].get() + row * shape.cols * shape.element_bytes;
}

// Fills x and expert_out at random and what is made of them to match.
void TieInputs(const ImageHeader& h, const Plan& plan, Tensors* tensors) {
  Random random(h.crc32);
  for (const BufferId b : {kX, kExpertOut}) {
    const Array shape = ShapeOf(h, b);
    tensors->buffers[b].reset(new char[shape.bytes()]());
    FillInput(shape, DType{h.dtype}, &random, tensors->buffers[b].get());
  }
  const int64_t row_bytes = int64_t{h.d_model} * BytesOf(DType{h.dtype});
  for (size_t slot = 0; slot < tensors->ids.size(); ++slot) {
    char* const expert_in =
        const_cast<char*>(OwnRow(h, plan, *tensors, kExpertIn, slot));
    std::memcpy(expert_in,
                tensors->buffers[kX].get() + slot / h.top_k * row_bytes,
                row_bytes);
    if (!tensors->buffers[kReturned]) continue;
    std::memcpy(tensors->buffers[kReturned].get() + slot * row_bytes,
                OwnRow(h, plan, *tensors, kExpertOut, slot), row_bytes);
  }
}

// Gradients from x and expert_out in place of the rows made of them.
void LaunchSpared(const ImageView& view, const Plan& plan, bool proved) {
  const ImageHeader& h = *view.header;
  if (h.direction != kBackward) return;
  Tensors launched[2] = {MakeTensors(h), MakeTensors(h)};
  Launch launch(view);
  for (int spared = 0; spared < 2; ++spared) {
    Tensors& tensors = launched[spared];
    TieInputs(h, plan, &tensors);
    for (const BufferId b : {kExpertIn, kReturned}) {
      if (spared == 1) tensors.buffers[b].reset();
    }
    for (const BufferId b : {kX, kExpertOut}) {
      if (spared == 0) tensors.buffers[b].reset();
    }
    if (spared == 1) AskForSome(h, 2, &tensors);
    Run(&launch, tensors.view(), Modal(h, h.crc32 % 3 == 0), proved);
  }
  if (proved) RequireEqual(h, launched[0], launched[1]);
}

// Each rank has one link, out.
sim::FabricTables MakeFabric(int32_t ranks) {
  sim::FabricTables fabric;
  fabric.capacity.assign(ranks, 1e9);
  fabric.factor.assign(ranks, 1);
  fabric.latency.assign(int64_t{ranks} * ranks, 1e-6);
  for (int32_t from = 0; from < ranks; ++from) {
    for (int32_t to = 0; to < ranks; ++to) {
      fabric.route_begin.push_back(
          static_cast<int32_t>(fabric.route_links.size()));
      if (from != to) fabric.route_links.push_back(from);
    }
  }
  fabric.route_begin.push_back(static_cast<int32_t>(fabric.route_links.size()));
  return fabric;
}

// The caches' table has an entry for each part of each group as tasks number
// them, also where groups share storage, as the links of a chain do.
bool HasSmallCaches(const ImageHeader& h) {
  int64_t parts = 0;
  for (int b = 0; b < kNumBuffers; ++b) {
    const Extent extent = ExtentOf(h, b, kRows);
    parts += Product({h.num_ranks, extent.groups, extent.rows, extent.cols});
  }
  return parts <= kMaxBytes;
}

// Whether a task waits for one of a kind after its own: nothing needs it, a
// proof allows it, and no run operator by operator comes to its end.
bool WaitsForLater(const ImageView& view) {
  std::vector<int> last(view.num_events, -1);  // kind that signals it
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    const TaskDesc& task = view.tasks[t];
    for (uint32_t i = 0; i < task.signal_count; ++i) {
      const SignalDesc& signal = view.signals[task.signal_begin + i];
      for (int32_t e = signal.event; e < signal.event + signal.span; ++e) {
        last[e] = std::max<int>(last[e], task.kind);
      }
    }
  }
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    const TaskDesc& task = view.tasks[t];
    for (uint32_t i = 0; i < task.wait_count; ++i) {
      const WaitDesc& wait = view.waits[task.wait_begin + i];
      if (last[wait.event] > task.kind) return true;
    }
  }
  return false;
}

// In modelled time, with what the checksum says of barriers and sharing.
void SimulateSmall(const ImageView& view, const Plan& plan, bool proved) {
  const ImageHeader& h = *view.header;
  sim::Figures figures;
#define HPMOE_FIGURE(name, unit) figures.name = 1e3;
  HPMOE_FIGURES(HPMOE_FIGURE)
#undef HPMOE_FIGURE
  figures.threads = h.crc32 / 4 % 4;
  figures.collective = 0.5;
  sim::Pricing pricing = {};
  pricing.cube = 1e9;
  pricing.cube_depth = 16;
  std::fill_n(pricing.element_bytes, int{kNumBuffers}, 2.0);
  pricing.skipped[h.crc32 / 16 % kNumTaskKinds] = true;
  const sim::Launch launch = sim::MakeLaunch(view, plan);
  std::vector<sim::TaskTime> times(view.num_tasks);
  sim::SimTotals totals;
  const bool barriers = figures.threads == 0 && h.crc32 % 2 == 0;
  const Status status =
      sim::Simulate(launch, figures, MakeFabric(h.num_ranks), pricing,
                    {barriers, h.crc32 % 4 < 2}, times.data(), &totals);
  if (status.code != 0) {
    RequireRefusal(status);
    Require(!proved || (barriers && WaitsForLater(view)),
            "what is proved ends in modelled time");
  }
  Require(std::isfinite(totals.total) && totals.total >= 0,
          "modelled time is a time");
}

void LaunchSmall(const ImageView& view, bool proved) {
  const ImageHeader& h = *view.header;
  Tensors tensors = MakeTensors(h);
  Plan plan;
  const Status planned = MakePlan(h, tensors.ids.data(), &plan);
  LaunchOptions options = Modal(h, false);
  options.modes.start = Modes::Start::kPoison;
  LaunchReport report;
  const Status status = Launch(view).Run(tensors.view(), options, &report);
  Require(status.code == planned.code, "a launch plans as MakePlan does");
  if (status.code != 0) return RequireRefusal(status);
  if (HasSmallCaches(h)) SimulateSmall(view, plan, proved);
  LaunchChecked(view, plan, proved, tensors);
  LaunchSome(view, proved, tensors);
  LaunchSpared(view, plan, proved);
  if (!proved) return;
  Require(report.diagnosis.reason == StopReason::kNone,
          "what is proved runs to its end");
  RequireWritten(h, plan, &tensors);
  // The serial launch takes the links of a chain in the order of the table.
  if (h.direction == kBackward && LinksOf(h) > 1) return;
  Tensors serial = MakeTensors(h);
  Require(LaunchSerial(view, serial.view(), options).code == 0,
          "the serial launch takes what the launch takes");
  RequireEqual(h, tensors, serial);
}

}  // namespace
}  // namespace hpmoe

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hpmoe::ImageView view;
  const hpmoe::Status status = hpmoe::LoadImage(data, size, &view);
  if (status.code != 0) {
    hpmoe::RequireRefusal(status);
    return 0;
  }
  const hpmoe::ProofResult result = hpmoe::Prove(view, hpmoe::kMaxViolations);
  if (hpmoe::IsSmall(view)) {
    hpmoe::LaunchSmall(view, result.violations.empty());
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned int seed) {
  return hpmoe::MutateImage(data, size, max_size, seed);
}
