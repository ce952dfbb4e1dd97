// Each vector tile on the twin against a loop, on data whose sums are exact:
// the same bits in all modes, nothing written beside the tile, no hazard.
// Prints what differs; returns 1 if anything does.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "backend_ascend/kernels/ascendc/twin/engine/launch.h"
#include "backend_ascend/kernels/ascendc/vector_core.h"

namespace {

using ascend_twin::GlobalKind;
using hpmoe::BufferId;
using hpmoe::ImageHeader;
using hpmoe::LaunchArgs;
using hpmoe::TaskDesc;

constexpr int kRanks = 2;
constexpr int kTopK = 2;

void Put(float value, float* to) { *to = value; }
void Put(float value, bfloat16_t* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  // Data is exact in bfloat16, results are rounded to it.
  bits += 0x7fff + (bits >> 16 & 1);
  to->bits = static_cast<uint16_t>(bits >> 16);
}
float Get(float value) { return value; }
float Get(bfloat16_t value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

struct Widths {
  int32_t tokens, d, f;
};

struct Policy {
  hpmoe::WeightPlacement placement;
  hpmoe::ActivationKind activation;
};

// Two ranks with an expert each; every token goes to both, so every slice has
// all tokens.  The slot of a token's expert e is (token + e) % 2.
template <typename T>
class World {
 public:
  World(const Widths& w, hpmoe::Direction direction, const Policy& policy)
      : w_(w) {
    image.num_ranks = image.num_experts = kRanks;
    image.top_k = kTopK;
    image.num_tokens = w.tokens;
    image.d_model = w.d;
    image.d_ff = w.f;
    image.num_rows = image.expert_capacity = kRanks * w.tokens;
    image.chain_rows = image.num_rows;
    image.direction = direction;
    image.placement = policy.placement;
    image.activation = policy.activation;
    for (int r = 0; r < kRanks; ++r) MakeRank(r);
    MakePlan();
  }

  int32_t Slot(int64_t token, int expert) const {
    return static_cast<int32_t>(token * kTopK + (token + expert) % 2);
  }
  int64_t Rows(BufferId b) const {
    const hpmoe::Axis rows = hpmoe::kBuffers[b].rows;
    return rows == hpmoe::Axis::kC ? image.num_rows : SizeOf(image, rows);
  }
  int64_t Cols(BufferId b) const {
    return SizeOf(image, hpmoe::kBuffers[b].cols);
  }
  T* At(int rank, BufferId b, int64_t row, int64_t col) {
    return reinterpret_cast<T*>(args[rank].buffers[b]) + row * Cols(b) + col;
  }
  // Small integers; of gates where silu and its slope are exact.
  void Fill(int rank, BufferId b, bool gates = false) {
    const float of_gate[] = {0, 40, 64, -120};
    for (int64_t i = 0; i < Rows(b); ++i) {
      for (int64_t j = 0; j < Cols(b); ++j) {
        const uint32_t h = Hash();
        Put(gates && j < w_.f ? of_gate[h % 4] : float(h % 7) - 3,
            At(rank, b, i, j));
      }
    }
  }
  void FillFloats(float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) values[i] = float(Hash() % 5) - 2;
  }

  // All of a rank's bytes, to compare.
  std::vector<std::vector<char>> Snapshot() const {
    std::vector<std::vector<char>> all;
    for (const auto& range : globals_) {
      const char* const begin = reinterpret_cast<const char*>(range.begin);
      all.emplace_back(begin, begin + range.bytes);
    }
    return all;
  }
  void Restore(const std::vector<std::vector<char>>& all) {
    for (size_t i = 0; i < all.size(); ++i) {
      std::memcpy(reinterpret_cast<void*>(globals_[i].begin), all[i].data(),
                  all[i].size());
    }
  }
  const std::vector<ascend_twin::GlobalRange>& globals() const {
    return globals_;
  }

  ImageHeader image = {};
  LaunchArgs args[kRanks] = {};

 private:
  uint32_t Hash() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state_ >> 40);
  }

  // Poisoned: NaN with a payload that no arithmetic makes.
  template <typename U>
  U* Take(const std::string& name, int rank, int64_t count) {
    const uint64_t bytes = (count * sizeof(U) + 63) / 64 * 64;
    auto* const begin = next_[rank];
    next_[rank] += bytes + 64;
    std::memset(begin, 0x7f, bytes);
    std::memset(begin + bytes, 0, 64);
    globals_.push_back({name, reinterpret_cast<uint64_t>(begin), bytes,
                        GlobalKind::kFilled, rank});
    return reinterpret_cast<U*>(begin);
  }

  void MakeRank(int r) {
    int64_t bytes = 1 << 16;
    for (int b = 0; b < hpmoe::kNumBuffers; ++b) {
      const auto id = static_cast<BufferId>(b);
      if (IsWeight(hpmoe::kBuffers[b].rows)) continue;
      bytes += Rows(id) * Cols(id) * 4 + 128;
    }
    bytes += 64 * int64_t{image.num_rows};
    heap_[r].resize(bytes / 64 + 1);
    next_[r] = reinterpret_cast<char*>(heap_[r].data());
    heaps_[r] = reinterpret_cast<uint64_t>(next_[r]);
    for (int b = 0; b < hpmoe::kNumBuffers; ++b) {
      const auto id = static_cast<BufferId>(b);
      if (IsWeight(hpmoe::kBuffers[b].rows)) continue;
      args[r].buffers[b] = reinterpret_cast<uint8_t*>(
          Take<float>(hpmoe::BufferName(b), r, Rows(id) * Cols(id)));
    }
    const int64_t slots = int64_t{w_.tokens} * kTopK;
    args[r].header_slot = Take<int32_t>("header_slot", r, image.num_rows);
    args[r].header_weight = Take<float>("header_weight", r, image.num_rows);
    args[r].d_row_weight = Take<float>("d_row_weight", r, image.num_rows);
    args[r].d_slot_weight = Take<float>("d_slot_weight", r, slots);
    float* const weights = Take<float>("topk_weights", r, slots);
    FillFloats(weights, slots);
    args[r].topk_weights = weights;
    args[r].heaps = heaps_;
    args[r].rank = r;
    if (image.placement == hpmoe::kAtCombine) {
      args[r].d_row_weight = args[r].d_slot_weight = nullptr;
    }
  }

  void MakePlan() {
    int32_t* const slots =
        Take<int32_t>("slice_slots", 0, int64_t{4} * w_.tokens);
    for (int r = 0; r < kRanks; ++r) {
      for (int e = 0; e < kRanks; ++e) {
        const int slice = r * kRanks + e;
        counts_[slice] = w_.tokens;
        row_base_[slice] = r * w_.tokens;
        slice_begin_[slice] = int64_t{slice} * w_.tokens;
        for (int t = 0; t < w_.tokens; ++t) {
          slots[slice * w_.tokens + t] = Slot(t, e);
        }
      }
    }
    for (LaunchArgs& a : args) {
      a.counts = counts_;
      a.row_base = row_base_;
      a.expert_rows = expert_rows_;
      a.expert_base = expert_base_;
      a.slice_begin = slice_begin_;
      a.slice_slots = slots;
    }
    expert_rows_[0] = expert_rows_[1] = kRanks * w_.tokens;
  }

  struct alignas(64) Line {
    char bytes[64];
  };
  const Widths w_;
  uint64_t state_ = 1;
  std::vector<Line> heap_[kRanks];
  char* next_[kRanks];
  uint64_t heaps_[kRanks];
  int32_t counts_[4], row_base_[4], expert_rows_[2], expert_base_[2] = {0, 0};
  int64_t slice_begin_[5];
  std::vector<ascend_twin::GlobalRange> globals_;
};

const char* g_case = "";
int g_failed = 0;

void Fail(const std::string& text) {
  if (++g_failed < 20) std::printf("%s: %s\n", g_case, text.c_str());
}

// Runs a task on the first vector core of rank 0 in all modes; `golden` does
// the same to the same world by loops.
template <typename T>
void Check(World<T>* world, const TaskDesc& task,
           const std::function<void()>& golden) {
  const auto before = world->Snapshot();
  golden();
  const auto want = world->Snapshot();
  using ascend_twin::Mode;
  for (const Mode mode : {Mode::kInOrder, Mode::kSeeded, Mode::kLate}) {
    world->Restore(before);
    ascend_twin::LaunchSpec spec;
    spec.kernel = "vector_test";
    spec.type = ascend_twin::TaskType::kAivOnly;
    spec.globals = world->globals();
    spec.mode = mode;
    spec.seed = 7;
    spec.entry = [&](int32_t rank) {
      AscendC::InitSocState();
      const hpmoe::RankTensors tensors(world->args[rank], world->image);
      hpmoe::VectorCore<T> core(tensors);
      core.Start();
      core.Run(task);
      core.Finish();
      AscendC::PipeBarrier<PIPE_ALL>();
    };
    const auto result = ascend_twin::Launch(spec);
    for (const auto& error : result.errors) Fail(error.text);
    const auto got = world->Snapshot();
    for (size_t i = 0; i < want.size(); ++i) {
      if (got[i] != want[i]) {
        Fail("mode " + std::to_string(static_cast<int>(mode)) + ": " +
             world->globals()[i].name + " of rank " +
             std::to_string(world->globals()[i].rank) + " differs");
      }
    }
  }
}

TaskDesc TaskOf(hpmoe::TaskKind kind, int32_t expert, int32_t peer,
                int32_t begin, int32_t end) {
  TaskDesc task = {};
  task.kind = kind;
  task.expert = expert;
  task.peer = peer;
  task.row_begin = begin;
  task.row_end = end;
  return task;
}

// Rank 0's rows [1, tokens - 1] for expert 1, some of them without a reason to
// start at an aligned row.
template <typename T>
void TestPutRows(const Widths& w, hpmoe::TaskKind kind, bool weighted) {
  const bool forward = kind == hpmoe::kDispatch;
  World<T> world(w, forward ? hpmoe::kForward : hpmoe::kBackward,
                 {hpmoe::kAtCombine, hpmoe::kAbsolute});
  const BufferId from = hpmoe::kKinds[kind].left();
  const BufferId to = hpmoe::kKinds[kind].written;
  world.Fill(0, from);
  Check(&world, TaskOf(kind, 1, 1, 1, w.tokens + 9), [&] {
    for (int i = 1; i < w.tokens; ++i) {
      const int32_t slot = world.Slot(i, 1);
      const float weight = world.args[0].topk_weights[slot];
      for (int j = 0; j < w.d; ++j) {
        const float x = Get(*world.At(0, from, i, j));
        Put(weighted ? weight * x : x, world.At(1, to, i, j));
      }
      world.args[1].header_slot[i] = slot;
      world.args[1].header_weight[i] = weight;
    }
  });
}

// Rows of both ranks from expert 0, but every third that was lost.
template <typename T>
void TestPutHome(const Widths& w, hpmoe::TaskKind kind,
                 hpmoe::WeightPlacement placement, int32_t peer) {
  const bool forward = kind == hpmoe::kReturn;
  World<T> world(w, forward ? hpmoe::kForward : hpmoe::kBackward,
                 {placement, hpmoe::kAbsolute});
  if (forward) {
    for (LaunchArgs& args : world.args) args.d_slot_weight = nullptr;
  }
  const BufferId from = hpmoe::kKinds[kind].left();
  const BufferId to = hpmoe::kKinds[kind].written;
  world.Fill(0, from);
  if (!forward && placement == hpmoe::kBeforeDown) {
    world.FillFloats(world.args[0].d_row_weight, world.image.num_rows);
  }
  for (int row = 0; row < world.image.num_rows; ++row) {
    world.args[0].header_slot[row] =
        row % 3 == 1 ? -1 : world.Slot(row % w.tokens, 0);
  }
  const int32_t begin = peer < 0 ? 1 : 0;
  const int32_t end = peer < 0 ? world.image.num_rows : w.tokens;
  Check(&world, TaskOf(kind, 0, peer, begin, end), [&] {
    for (int row = 0; row < world.image.num_rows; ++row) {
      const int source = row / w.tokens;
      const int32_t slot = world.args[0].header_slot[row];
      if (slot < 0 || row < begin || (peer >= 0 && source != peer)) continue;
      std::memcpy(world.At(source, to, slot, 0), world.At(0, from, row, 0),
                  w.d * sizeof(T));
      if (world.args[0].d_slot_weight == nullptr) continue;
      world.args[source].d_slot_weight[slot] = world.args[0].d_row_weight[row];
    }
  });
}

float Activated(hpmoe::ActivationKind activation, float gate) {
  return activation == hpmoe::kAbsolute ? std::fabs(gate) : gate > 0 ? gate : 0;
}

// Of gates where it is exact.
float SlopeAt(hpmoe::ActivationKind activation, float gate) {
  if (gate == 0) return activation == hpmoe::kAbsolute ? 0 : 0.5f;
  return gate > 0 ? 1 : activation == hpmoe::kAbsolute ? -1 : 0;
}

template <typename T>
void TestSwiglu(const Widths& w, const Policy& policy) {
  World<T> world(w, hpmoe::kForward, policy);
  const bool silu = policy.activation == hpmoe::kSwigluActivation;
  world.Fill(0, hpmoe::kGateUpBuffer, silu);
  world.FillFloats(world.args[0].header_weight, world.image.num_rows);
  TaskDesc task = TaskOf(hpmoe::kSwiglu, 0, -1, 1, world.image.num_rows);
  task.col_begin = w.f / 8;
  task.col_end = w.f - 1;
  Check(&world, task, [&] {
    for (int i = task.row_begin; i < task.row_end; ++i) {
      for (int j = task.col_begin; j < task.col_end; ++j) {
        const float gate = Get(*world.At(0, hpmoe::kGateUpBuffer, i, j));
        const float up = Get(*world.At(0, hpmoe::kGateUpBuffer, i, w.f + j));
        // silu(-120) is -0.
        float out = Activated(policy.activation, gate) *
                    (silu && gate < 0 ? -1.0f : 1.0f) * up;
        if (policy.placement == hpmoe::kBeforeDown) {
          out *= world.args[0].header_weight[i];
        }
        Put(out, world.At(0, hpmoe::kActivation, i, j));
      }
    }
  });
}

template <typename T>
void TestSwigluGrad(const Widths& w, const Policy& policy) {
  World<T> world(w, hpmoe::kBackward, policy);
  const bool silu = policy.activation == hpmoe::kSwigluActivation;
  const bool weighted = policy.placement == hpmoe::kBeforeDown;
  world.Fill(0, hpmoe::kGateUpBuffer, silu);
  world.Fill(0, hpmoe::kDActivation);
  world.FillFloats(world.args[0].header_weight, world.image.num_rows);
  const TaskDesc task =
      TaskOf(hpmoe::kSwigluGrad, 0, -1, 1, world.image.num_rows);
  Check(&world, task, [&] {
    for (int i = task.row_begin; i < task.row_end; ++i) {
      float dot = 0;
      for (int j = 0; j < w.f; ++j) {
        const float gate = Get(*world.At(0, hpmoe::kGateUpBuffer, i, j));
        const float up = Get(*world.At(0, hpmoe::kGateUpBuffer, i, w.f + j));
        float d = Get(*world.At(0, hpmoe::kDActivation, i, j));
        const float act = Activated(policy.activation, gate) *
                          (silu && gate < 0 ? -1.0f : 1.0f);
        dot += d * (act * up);
        if (weighted) d *= world.args[0].header_weight[i];
        const float slope = SlopeAt(policy.activation, gate);
        Put(d * up * slope, world.At(0, hpmoe::kDGateUp, i, j));
        Put(d * act, world.At(0, hpmoe::kDGateUp, i, w.f + j));
      }
      if (weighted) world.args[0].d_row_weight[i] = dot;
    }
  });
}

template <typename T>
void TestSlotSum(const Widths& w, hpmoe::TaskKind kind,
                 hpmoe::WeightPlacement placement) {
  const bool forward = kind == hpmoe::kCombine;
  World<T> world(w, forward ? hpmoe::kForward : hpmoe::kBackward,
                 {placement, hpmoe::kAbsolute});
  const BufferId from = hpmoe::kKinds[kind].left();
  const BufferId to = hpmoe::kKinds[kind].written;
  const bool weighted = forward && placement == hpmoe::kAtCombine;
  world.Fill(0, from);
  TaskDesc task = TaskOf(kind, -1, -1, 1, w.tokens);
  task.col_begin = w.d / 8;
  task.col_end = w.d - 1;
  Check(&world, task, [&] {
    for (int t = task.row_begin; t < task.row_end; ++t) {
      for (int j = task.col_begin; j < task.col_end; ++j) {
        float sum = 0;
        for (int k = 0; k < kTopK; ++k) {
          const int64_t slot = t * kTopK + k;
          const float x = Get(*world.At(0, from, slot, j));
          const float term =
              weighted ? world.args[0].topk_weights[slot] * x : x;
          sum = k == 0 ? term : sum + term;
        }
        Put(sum, world.At(0, to, t, j));
      }
    }
  });
}

template <typename T>
void TestWeightDots(const Widths& w, hpmoe::WeightPlacement placement) {
  World<T> world(w, hpmoe::kBackward, {placement, hpmoe::kAbsolute});
  const bool came_home = placement == hpmoe::kBeforeDown;
  world.Fill(0, hpmoe::kDy);
  world.Fill(0, hpmoe::kReturned);
  if (came_home) {
    world.FillFloats(world.args[0].d_slot_weight, int64_t{w.tokens} * kTopK);
  }
  const TaskDesc task = TaskOf(hpmoe::kTopkWeightGrad, -1, -1, 1, w.tokens);
  Check(&world, task, [&] {
    auto* const out =
        reinterpret_cast<float*>(world.args[0].buffers[hpmoe::kDTopkWeights]);
    for (int slot = kTopK; slot < w.tokens * kTopK; ++slot) {
      float dot = 0;
      for (int j = 0; j < w.d; ++j) {
        dot += Get(*world.At(0, hpmoe::kDy, slot / kTopK, j)) *
               Get(*world.At(0, hpmoe::kReturned, slot, j));
      }
      out[slot] = came_home ? world.args[0].d_slot_weight[slot] : dot;
    }
  });
}

template <typename T>
void TestAll(const Widths& w) {
  g_case = "dispatch";
  TestPutRows<T>(w, hpmoe::kDispatch, false);
  g_case = "dispatch_grad";
  TestPutRows<T>(w, hpmoe::kDispatchGrad, true);
  g_case = "return";
  TestPutHome<T>(w, hpmoe::kReturn, hpmoe::kAtCombine, -1);
  TestPutHome<T>(w, hpmoe::kReturn, hpmoe::kAtCombine, 1);
  g_case = "return_grad";
  TestPutHome<T>(w, hpmoe::kReturnGrad, hpmoe::kBeforeDown, -1);
  g_case = "combine";
  TestSlotSum<T>(w, hpmoe::kCombine, hpmoe::kAtCombine);
  TestSlotSum<T>(w, hpmoe::kCombine, hpmoe::kBeforeDown);
  g_case = "combine_grad";
  TestSlotSum<T>(w, hpmoe::kCombineGrad, hpmoe::kAtCombine);
  for (const auto activation : {hpmoe::kSwigluActivation, hpmoe::kAbsolute}) {
    for (const auto placement : {hpmoe::kAtCombine, hpmoe::kBeforeDown}) {
      g_case = "swiglu";
      TestSwiglu<T>(w, {placement, activation});
      g_case = "swiglu_grad";
      TestSwigluGrad<T>(w, {placement, activation});
    }
  }
  g_case = "topk_weight_grad";
  TestWeightDots<T>(w, hpmoe::kAtCombine);
  TestWeightDots<T>(w, hpmoe::kBeforeDown);
}

}  // namespace

int main() {
  // More rows than a window holds; widths that no block divides.
  TestAll<float>({150, 37, 29});
  TestAll<bfloat16_t>({150, 37, 29});
  // Rows that no set holds whole.
  TestAll<float>({3, 25003, 9001});
  TestAll<bfloat16_t>({3, 50003, 9001});
  if (g_failed > 0) std::printf("%d failures\n", g_failed);
  return g_failed > 0;
}
