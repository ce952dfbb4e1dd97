#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "backend_ascend/host/checks/replay.h"
#include "backend_ascend/host/launch/launch.h"
#include "backend_ascend/host/splitmix.h"
#include "backend_ascend/host/tiles/codes/code_rows.h"
#include "backend_ascend/host/tiles/float_environment.h"
#include "backend_ascend/host/tiles/storage.h"
#include "backend_ascend/host/tiles/tile_rows.h"

namespace hpmoe {
namespace {

template <class T>
float Term(const void* data, int64_t at) {
  return LoadFloat(static_cast<const T*>(data) + at);
}

// The sum of one element as gemm.h defines it, from `sum` on.
template <class T>
float SumOf(const GemmTile& t, int32_t i, int32_t j, float sum) {
  const auto add = [&](int32_t p, float to) {
    return __builtin_fmaf(
        Term<T>(t.a, t.trans_a ? p * t.lda + i : i * t.lda + p),
        Term<T>(t.b, t.trans_b ? j * t.ldb + p : p * t.ldb + j), to);
  };
  if (t.order == kAscending) {
    for (int32_t p = 0; p < t.k; ++p) sum = add(p, sum);
    return sum;
  }
  for (int32_t p = 0; p < t.k; p += kEvenOddTerms) {
    float parts[2] = {0.0f, 0.0f};
    for (int32_t q = 0; q < kEvenOddTerms && p + q < t.k; ++q) {
      parts[q % 2] = add(p + q, parts[q % 2]);
    }
    sum += parts[0] + parts[1];
  }
  return sum;
}

// Of a tile of one row, as float32, before they are weighted or rounded:
// nothing of what other GEMMs do, no panels, no vectors, no tables of kernels.
template <class T>
void SumRow(const GemmTile& t, float* sums) {
  for (int32_t j = 0; j < t.n; ++j) {
    const bool carries = t.carry != nullptr && t.carry_in;
    sums[j] = CanonicalNan(SumOf<T>(t, 0, j, carries ? t.carry[j] : 0.0f));
  }
}

template <class T>
void StoreRow(const GemmTile& t, const float* sums) {
  for (int32_t j = 0; j < t.n; ++j) {
    if (t.carry != nullptr && t.carry_out) {
      t.carry[j] = sums[j];
    } else if (t.row_weight == nullptr) {
      StoreFloat(sums[j], static_cast<T*>(t.c) + j);
    } else {
      StoreFloat(t.row_weight[0] * sums[j], static_cast<T*>(t.c) + j);
    }
  }
}

// Kernels of an instruction set, but for a row of the first call and of each
// kEvery-th after it, which plain C++ computes: what all launches of a machine
// have in common, its instruction set, has a witness.  Of products the sums of
// that row are compared before they are rounded: in two bytes nearly all orders
// of a sum are the same.  Rows are drawn, the same ones every time.  All rows
// lie where their buffers have them.
class PinnedKernels final : public Kernels {
 public:
  PinnedKernels(uint64_t seed, Kernels* fast, Kernels* plain)
      : fast_(*fast), plain_(*plain), draw_(seed, 0) {}

  void Gemm(const GemmTile& t) override {
    Pin(t, t.m, &Kernels::Gemm, [this](const GemmTile& row) { Witness(row); });
  }
  void Swiglu(const SwigluTile& t) override {
    Pin(t, t.rows, &Kernels::Swiglu);
  }
  void SwigluGrad(const SwigluGradTile& t) override {
    Pin(t, t.rows, &Kernels::SwigluGrad);
  }
  void Combine(const CombineTile& t) override {
    Pin(t, t.tokens, &Kernels::Combine);
  }
  void RowDots(const RowDotTile& t) override {
    Pin(t, t.rows, &Kernels::RowDots);
  }
  // One row each: all of a call, or none.
  void ScaleRows(const ScaleRowsTile& t) override {
    (calls_++ % kEvery == 0 ? plain_ : fast_).ScaleRows(t);
  }
  // Sums over tokens have no rows.
  void Norm(const NormTile& t) override {
    if (t.work != Work::kGainGrad) return Pin(t, t.rows, &Kernels::Norm);
    (calls_++ % kEvery == 0 ? plain_ : fast_).Norm(t);
  }
  void CodeGemm(const CodeGemmTile& t) override {
    Pin(t, t.m, &Kernels::CodeGemm);
  }
  void QuantiseRows(const QuantiseRowsTile& t) override {
    Pin(t, t.rows, &Kernels::QuantiseRows);
  }
  void CodeSwiglu(const CodeSwigluTile& t) override {
    Pin(t, t.rows, &Kernels::CodeSwiglu);
  }
  void DequantiseRows(const DequantiseRowsTile& t) override {
    Pin(t, t.rows, &Kernels::DequantiseRows);
  }
  void* Scratch(GemmScratch::Slot slot, int64_t elements,
                int64_t element_bytes) override {
    return plain_.Scratch(slot, elements, element_bytes);
  }

  // The first sum that differs from plain C++, or ''.
  const std::string& found() const { return found_; }

 private:
  static constexpr uint64_t kEvery = 64;

  void Witness(const GemmTile& row) {
    std::vector<float> want(row.n), got(row.n);
    {
      const FlushedSubnormals flushed(row.dtype == kBFloat16);
      HPMOE_STORED(row.dtype, SumRow<T>(row, want.data()));
    }
    GemmTile summed = row;
    summed.carry = got.data();
    summed.carry_in = row.carry != nullptr && row.carry_in;
    summed.carry_out = true;
    if (summed.carry_in) std::copy_n(row.carry, row.n, got.begin());
    fast_.Gemm(summed);
    for (int32_t j = 0; found_.empty() && j < row.n; ++j) {
      if (FloatBits(want[j]) == FloatBits(got[j])) continue;
      char text[96];
      std::snprintf(text, sizeof(text),
                    "sum of column %d: expected %.9g as in plain C++, got %.9g",
                    j, want[j], got[j]);
      found_ = text;
    }
    const FlushedSubnormals flushed(row.dtype == kBFloat16);
    HPMOE_STORED(row.dtype, StoreRow<T>(row, want.data()));
  }

  template <class Tile>
  void Pin(const Tile& tile, int32_t rows, void (Kernels::*run)(const Tile&)) {
    Pin(tile, rows, run, [&](const Tile& row) { (plain_.*run)(row); });
  }

  template <class Tile, class Plain>
  void Pin(const Tile& tile, int32_t rows, void (Kernels::*run)(const Tile&),
           Plain plain) {
    if (calls_++ % kEvery != 0) return (fast_.*run)(tile);
    const auto row = static_cast<int32_t>(draw_.Below(rows));
    const int32_t after = rows - row - 1;
    if (row > 0) (fast_.*run)(RowsOf(tile, 0, row));
    plain(RowsOf(tile, row, 1));
    if (after > 0) (fast_.*run)(RowsOf(tile, row + 1, after));
  }

  Kernels& fast_;
  Kernels& plain_;
  SplitMix draw_;
  uint64_t calls_ = 0;
  std::string found_;
};

}  // namespace

Status LaunchSerial(const ImageView& view, const LaunchTensors& tensors,
                    const LaunchOptions& asked) {
  const DefaultFloatEnvironment environment;
  LaunchOptions options = asked;
  options.modes.start = Modes::Start::kPoison;
  Held held;
  Layer layer{};
  Status status = Prepare(view, tensors, options, &held, &layer);
  if (status.code != 0) return status;
  GemmScratch scratch;
  std::unique_ptr<Replay> replay;
  if (options.modes.actions != nullptr) {
    replay = std::make_unique<Replay>(layer, options.modes);
  }
  HostKernels fast(options.isa, &scratch), plain(Isa::kPortable, &scratch);
  for (int turn = 0; turn < kNumTaskKinds; ++turn) {
    const auto kind =
        static_cast<uint16_t>((FirstKind(*view.header) + turn) % kNumTaskKinds);
    PinnedKernels kernels(kind, &fast, &plain);
    for (uint64_t t = 0; t < view.header->tasks.count; ++t) {
      const TaskDesc& task = view.tasks[t];
      if (task.kind != kind) continue;
      const auto run = [&] { RunTask(task, layer, &kernels); };
      replay == nullptr ? run() : replay->Do(task, t, run);
      if (kernels.found().empty()) continue;
      return Refused(kBroken, "%s: %s", TaskText(view, t).c_str(),
                     kernels.found().c_str());
    }
  }
  return status;
}

}  // namespace hpmoe
