#include "backend_ascend/host/checks/faults.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "backend_ascend/host/tiles/storage.h"
#include "backend_ascend/host/tiles/tile_rows.h"

namespace hpmoe {
namespace {

#define HPMOE_NAME(kind, name) name,
constexpr const char* kFaultNames[] = {HPMOE_FAULTS(HPMOE_NAME)};
#undef HPMOE_NAME

// What a call writes, one entry a row: so that it can be spoilt, and seen to
// be.
struct Bytes {
  char* data;
  int64_t size;
};
using Rows = std::vector<Bytes>;

void Add(void* data, int64_t count, int64_t stride, int64_t size, Rows* rows) {
  for (int64_t i = 0; i < count; ++i) {
    rows->push_back({static_cast<char*>(data) + i * stride, size});
  }
}

Rows RowsAt(void* data, int64_t count, int64_t cols, int64_t ld,
            int64_t element_bytes) {
  Rows rows;
  Add(data, count, ld * element_bytes, cols * element_bytes, &rows);
  return rows;
}

std::vector<char> Gather(const Rows& rows) {
  std::vector<char> bytes;
  for (const Bytes& row : rows) {
    bytes.insert(bytes.end(), row.data, row.data + row.size);
  }
  return bytes;
}

void Scatter(const std::vector<char>& bytes, const Rows& rows) {
  const char* from = bytes.data();
  for (const Bytes& row : rows) {
    std::memcpy(row.data, from, row.size);
    from += row.size;
  }
}

// Calls rewrite(i) for the first row i that changes by it, and for those
// before it, which do not.
template <class Rewrite>
void UntilOneChanges(const Rows& rows, Rewrite rewrite) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<char> right = Gather({rows[i]});
    rewrite(static_cast<int32_t>(i));
    if (Gather({rows[i]}) != right) return;
  }
}

float LoadAs(const void* data, int64_t at, DType dtype) {
  float value = 0.0f;
  HPMOE_STORED(dtype, value = LoadFloat(static_cast<const T*>(data) + at));
  return value;
}

void StoreAs(float value, void* data, int64_t at, DType dtype) {
  HPMOE_STORED(dtype, StoreFloat(value, static_cast<T*>(data) + at));
}

// silu(gate) * up as a wrong kernel computes it.
void RunSpoiltSwiglu(const SwigluTile& tile, FaultKind kind, Isa isa) {
  SwigluTile wrong = tile;
  wrong.early_rounding = kind == FaultKind::kEarlyRounding;
  if (kind != FaultKind::kSiluOff) return RunSwigluTile(wrong, isa);
  // In float32, so that it is rounded once.
  const int64_t count = int64_t{tile.rows} * tile.cols;
  std::vector<float> gate(count), up(count), out(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i / tile.cols * tile.ld_in + i % tile.cols;
    gate[i] = LoadAs(tile.gate, at, tile.dtype);
    up[i] = LoadAs(tile.up, at, tile.dtype);
  }
  wrong.gate = gate.data();
  wrong.up = up.data();
  wrong.out = out.data();
  wrong.ld_in = wrong.ld_out = tile.cols;
  wrong.dtype = kFloat32;
  RunSwigluTile(wrong, isa);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i / tile.cols * tile.ld_out + i % tile.cols;
    StoreAs(out[i] * 1.0001f, tile.out, at, tile.dtype);
  }
}

// d_up is silu(gate) * d_out [* row_weight]: the forward's tile with d_out for
// up, a row at a time since it is not stored beside gate.
void RunSpoiltSiluGrad(const SwigluGradTile& grad, FaultKind kind, Isa isa) {
  for (int32_t i = 0; i < grad.rows; ++i) {
    const SwigluGradTile of = RowsOf(grad, i, 1);
    SwigluTile row{};
    row.gate = of.gate;
    row.up = of.d_out;
    row.out = of.d_up;
    row.rows = 1;
    row.cols = of.cols;
    row.row_weight = of.row_weight;
    row.dtype = of.dtype;
    row.activation = of.activation;
    RunSpoiltSwiglu(row, kind, isa);
  }
}

// Puts rows of `a` that are gathered side by side: what is returned holds them.
std::vector<char> SideBySide(GemmTile* tile) {
  std::vector<char> rows;
  if (tile->a_rows == nullptr) return rows;
  const int32_t count = tile->trans_a ? tile->k : tile->m;
  tile->lda = tile->trans_a ? tile->m : tile->k;
  const int64_t bytes = tile->lda * BytesOf(tile->dtype);
  rows.resize(count * bytes);
  for (int32_t i = 0; i < count; ++i) {
    std::memcpy(rows.data() + i * bytes, tile->a_rows[i], bytes);
  }
  tile->a = rows.data();
  tile->a_rows = nullptr;
  return rows;
}

bool IsIn(const Array& array, const void* at) {
  const auto* const byte = static_cast<const char*>(at);
  return byte >= array.data && byte < array.data + array.bytes();
}

// An operand, rows of `cols` side by side, with fewer bits.
template <typename T>
std::vector<T> Narrowed(const void* data, int64_t rows, int64_t cols,
                        int64_t ld, FaultKind kind) {
  const T* from = static_cast<const T*>(data);
  const int dropped = kind == FaultKind::kNarrowOperandsTf32 ? 13 : 16;
  std::vector<T> narrow(rows * cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const uint32_t bits = FloatBits(LoadFloat(from + i / cols * ld + i % cols));
    const uint32_t half = (1u << (dropped - 1)) - 1 + ((bits >> dropped) & 1u);
    StoreFloat(BitsFloat((bits + half) >> dropped << dropped), &narrow[i]);
  }
  return narrow;
}

template <typename T>
void RunNarrowGemm(const GemmTile& tile, FaultKind kind, Isa isa,
                   GemmScratch* scratch) {
  GemmTile narrow = tile;
  narrow.lda = tile.trans_a ? tile.m : tile.k;
  narrow.ldb = tile.trans_b ? tile.k : tile.n;
  const std::vector<T> a = Narrowed<T>(tile.a, tile.trans_a ? tile.k : tile.m,
                                       narrow.lda, tile.lda, kind);
  const std::vector<T> b = Narrowed<T>(tile.b, tile.trans_b ? tile.n : tile.k,
                                       narrow.ldb, tile.ldb, kind);
  narrow.a = a.data();
  narrow.b = b.data();
  RunGemmTile(narrow, isa, scratch);
}

// Sums ranges of a tile's terms one after the other, from what it starts from
// to where it ends; `narrow`: in between, the sum is rounded to bfloat16.
void SumRanges(const GemmTile& tile, const std::vector<RowRange>& ranges,
               Isa isa, GemmScratch* scratch, bool narrow = false) {
  std::vector<float> sums(int64_t{tile.m} * tile.n, 0.0f);
  for (int64_t i = 0; tile.carry_in && i < tile.m; ++i) {
    std::copy_n(tile.carry + i * tile.ld_carry, tile.n,
                sums.data() + i * tile.n);
  }
  GemmTile part = tile;
  part.carry = sums.data();
  part.ld_carry = tile.n;
  part.carry_in = true;
  for (size_t r = 0; r < ranges.size(); ++r) {
    part.a = Advance(tile.a, ranges[r].begin * (tile.trans_a ? tile.lda : 1),
                     tile.dtype);
    part.b = Advance(tile.b, ranges[r].begin * (tile.trans_b ? 1 : tile.ldb),
                     tile.dtype);
    part.k = ranges[r].count();
    const bool last = r + 1 == ranges.size();
    part.carry_out = tile.carry_out || !last;
    RunGemmTile(part, isa, scratch);
    for (float& sum : sums) sum = narrow && !last ? RoundToBf16(sum) : sum;
  }
  for (int64_t i = 0; tile.carry_out && i < tile.m; ++i) {
    std::copy_n(sums.data() + i * tile.n, tile.n,
                tile.carry + i * tile.ld_carry);
  }
}

// Kernels of one task: each call that writes what the task makes is done
// rightly, then wrongly.
class FaultyKernels final : public Kernels {
 public:
  FaultyKernels(const TaskDesc& task, FaultKind kind, const Layer& layer,
                GemmScratch* scratch, Kernels* right)
      : task_(task),
        kind_(kind),
        layer_(layer),
        scratch_(scratch),
        right_(*right) {}

  bool changed() const { return changed_; }

  void Gemm(const GemmTile& t) override {
    const bool sums = t.carry != nullptr && t.carry_out;
    if (!sums && !IsWritten(t.c)) return right_.Gemm(t);
    const Rows rows = sums
                          ? RowsAt(t.carry, t.m, t.n, t.ld_carry, sizeof(float))
                          : RowsAt(t.c, t.m, t.n, t.ldc, BytesOf(t.dtype));
    const std::vector<char> found = Gather(rows);
    Spoil(
        rows, [&] { right_.Gemm(t); },
        [&] {
          const std::vector<char> right = Gather(rows);
          Scatter(found, rows);  // what sums start from
          if (!SpoilGemm(t, rows)) Scatter(right, rows);
        });
  }

  void Swiglu(const SwigluTile& t) override {
    if (!IsWritten(t.out)) return right_.Swiglu(t);
    const Rows rows = RowsAt(t.out, t.rows, t.cols, t.ld_out, BytesOf(t.dtype));
    Spoil(rows, [&] { right_.Swiglu(t); }, [&] { SpoilSwiglu(t, rows); });
  }

  void SwigluGrad(const SwigluGradTile& t) override {
    const int64_t bytes = BytesOf(t.dtype);
    const Rows d_gate = RowsAt(t.d_gate, t.rows, t.cols, t.ld_grad, bytes);
    Rows rows = d_gate;
    Add(t.d_up, t.rows, t.ld_grad * bytes, t.cols * bytes, &rows);
    if (t.d_row_weight != nullptr) Add(t.d_row_weight, t.rows, 4, 4, &rows);
    Spoil(
        rows, [&] { right_.SwigluGrad(t); },
        [&] { SpoilSwigluGrad(t, d_gate); });
  }

  void Combine(const CombineTile& t) override {
    const Rows rows = RowsAt(t.y, t.tokens, t.cols, t.ld_y, BytesOf(t.dtype));
    Spoil(rows, [&] { right_.Combine(t); }, [&] { SpoilCombine(t, rows); });
  }

  void RowDots(const RowDotTile& t) override {
    Spoil(
        RowsAt(t.out, 1, t.rows, t.rows, sizeof(float)),
        [&] { right_.RowDots(t); }, [] {});
  }

  // Of one row.
  void ScaleRows(const ScaleRowsTile& t) override {
    if (!IsWritten(t.out)) return right_.ScaleRows(t);
    const Rows row = RowsAt(t.out, 1, t.cols, t.ld_out, BytesOf(t.dtype));
    Spoil(row, [&] { right_.ScaleRows(t); }, [&] { SpoilRow(t, row); });
    ++num_rows_;
  }

  void Norm(const NormTile& t) override {
    const bool sums = t.work == Work::kGainGrad;
    const Rows rows =
        sums ? RowsAt(t.out, 1, t.out_cols, t.out_cols, sizeof(float))
             : RowsAt(t.out, t.rows, t.cols, t.ld, BytesOf(t.dtype));
    Spoil(rows, [&] { right_.Norm(t); }, [] {});
  }

  void CodeGemm(const CodeGemmTile& t) override {
    const Rows rows = RowsAt(t.c, t.m, t.n, t.ldc, sizeof(int32_t));
    Spoil(rows, [&] { right_.CodeGemm(t); }, [&] { SpoilCodeGemm(t); });
  }

  void QuantiseRows(const QuantiseRowsTile& t) override {
    Rows rows = RowsAt(t.codes, t.rows, t.cols, t.ld_codes, 1);
    Add(t.scales, t.rows, 4, 4, &rows);
    Spoil(rows, [&] { right_.QuantiseRows(t); }, [&] { SpoilCodes(t, rows); });
  }

  void CodeSwiglu(const CodeSwigluTile& t) override {
    Rows rows = RowsAt(t.codes, t.rows, t.cols, t.ld_codes, 1);
    Add(t.scales, t.rows, 4, 4, &rows);
    Spoil(
        rows, [&] { right_.CodeSwiglu(t); },
        [&] {
          if (kind_ != FaultKind::kSwappedGateUp) return;
          CodeSwigluTile wrong = t;
          std::swap(wrong.gate, wrong.up);
          right_.CodeSwiglu(wrong);
        });
  }

  void DequantiseRows(const DequantiseRowsTile& t) override {
    const Rows rows = RowsAt(t.out, t.rows, t.cols, t.ld_out, BytesOf(t.dtype));
    Spoil(
        rows, [&] { right_.DequantiseRows(t); },
        [&] {
          if (kind_ != FaultKind::kOffByOneRow) return;
          DequantiseRowsTile wrong = t;
          const int64_t bytes = t.ld_sums * int64_t{sizeof(int32_t)};
          wrong.sums = static_cast<const int32_t*>(NextReturned(t.sums, bytes));
          right_.DequantiseRows(wrong);
        });
  }

  void Copy(const void* from, size_t bytes, void* to) override {
    const auto copy = [&] { right_.Copy(from, bytes, to); };
    if (KindOf(task_).work != Work::kPutHome) return copy();
    const auto size = static_cast<int64_t>(bytes);
    Spoil(RowsAt(to, 1, size, size, 1), copy, [&] {
      if (kind_ != FaultKind::kOffByOneRow) return;
      right_.Copy(NextReturned(from, size), bytes, to);
    });
  }

  void* Scratch(GemmScratch::Slot slot, int64_t elements,
                int64_t element_bytes) override {
    return right_.Scratch(slot, elements, element_bytes);
  }

 private:
  // Of a tile that the task hands on to itself: false.
  bool IsWritten(const void* to) const {
    return IsIn(layer_.buffers[KindOf(task_).written], to);
  }

  template <class Right, class Wrong>
  void Spoil(const Rows& rows, Right right, Wrong wrong) {
    right();
    const std::vector<char> expected = Gather(rows);
    if (kind_ == FaultKind::kZeroOutput) {
      Scatter(std::vector<char>(expected.size(), 0), rows);
    } else {
      wrong();
    }
    changed_ = changed_ || Gather(rows) != expected;
  }

  // False: a fault of other calls.
  bool SpoilGemm(GemmTile t, const Rows& rows) {
    const std::vector<char> gathered = SideBySide(&t);
    const int32_t half = t.k / 2;
    switch (kind_) {
      case FaultKind::kWrongAccumulation:
        RunGemmTileBf16Accumulate(t);
        return true;
      case FaultKind::kNarrowOperandsTf32:
      case FaultKind::kNarrowOperandsBf16:
        HPMOE_STORED(t.dtype, RunNarrowGemm<T>(t, kind_, layer_.isa, scratch_));
        return true;
      case FaultKind::kNarrowAccumulator:
        Sum(t, {{0, half}, {half, t.k}}, /*narrow=*/true);
        return true;
      case FaultKind::kDroppedKTerm:
        Sum(t, {{0, std::max(t.k - 1, 0)}});
        return true;
      case FaultKind::kSwappedExperts:
        if (t.trans_a) return false;
        t.b = OfNextExpert(t.b);
        right_.Gemm(t);
        return true;
      case FaultKind::kWeightGradTwice:
        if (t.trans_a) Sum(t, {{0, t.k}, {0, t.k}});
        return t.trans_a;
      case FaultKind::kBlocksOutOfOrder:
        if (t.trans_a) Sum(t, {{half, t.k}, {0, half}});
        return t.trans_a;
      case FaultKind::kMisplacedWeight:
        if (t.row_weight == nullptr) return false;
        right_.Gemm(t);
        UntilOneChanges(rows, [&](int32_t i) {
          GemmTile one = RowsOf(t, i, 1);
          one.row_weight = t.row_weight + (i + 1) % t.m;
          right_.Gemm(one);
        });
        return true;
      case FaultKind::kEmptyGradNotZeroed:
        return t.trans_a && layer_.plan.expert_rows[task_.expert] == 0;
      default:
        return false;
    }
  }

  void SpoilCodeGemm(CodeGemmTile t) {
    if (kind_ == FaultKind::kDroppedKTerm) {
      t.k = std::max(t.k - 1, 0);
    } else if (kind_ == FaultKind::kSwappedExperts) {
      t.b = static_cast<const int8_t*>(OfNextExpert(t.b));
    } else {
      return;
    }
    right_.CodeGemm(t);
  }

  // As SpoilRow does, of codes.
  void SpoilCodes(QuantiseRowsTile t, const Rows& rows) {
    if (kind_ == FaultKind::kWrongOffset) {
      std::rotate(t.codes, t.codes + 1, t.codes + t.cols);
    } else if (kind_ == FaultKind::kStaleRow && !changed_) {
      const std::vector<char> right = Gather(rows);
      const Array& tokens = layer_.buffers[KindOf(task_).left()];
      for (int32_t i = 0; i < tokens.rows && Gather(rows) == right; ++i) {
        t.x = tokens.At(task_.rank, i, 0);
        right_.QuantiseRows(t);
      }
    }
  }

  void Sum(const GemmTile& t, const std::vector<RowRange>& ranges,
           bool narrow = false) {
    SumRanges(t, ranges, layer_.isa, scratch_, narrow);
  }

  const void* OfNextExpert(const void* weights) const {
    const Array& all = layer_.buffers[KindOf(task_).right()];
    const int64_t at = static_cast<const char*>(weights) - all.data;
    return all.data + (at + all.bytes() / all.slabs) % all.bytes();
  }

  void SpoilSwiglu(SwigluTile t, const Rows& rows) {
    if (kind_ == FaultKind::kSwappedGateUp) {
      std::swap(t.gate, t.up);
      right_.Swiglu(t);
    } else if (IsOfSilu()) {
      RunSpoiltSwiglu(t, kind_, layer_.isa);
    } else if (IsOfWeights() && t.row_weight != nullptr) {
      UntilOneChanges(rows, [&](int32_t i) {
        SwigluTile one = RowsOf(t, i, 1);
        one.row_weight = t.row_weight + (i + 1) % t.rows;
        right_.Swiglu(one);
      });
    }
  }

  void SpoilSwigluGrad(SwigluGradTile t, const Rows& rows) {
    t.d_row_weight = nullptr;
    if (kind_ == FaultKind::kSwappedGateUp) {
      std::swap(t.gate, t.up);
      right_.SwigluGrad(t);
    } else if (IsOfSilu()) {
      RunSpoiltSiluGrad(t, kind_, layer_.isa);
    } else if (IsOfWeights() && t.row_weight != nullptr) {
      UntilOneChanges(rows, [&](int32_t i) {
        SwigluGradTile one = RowsOf(t, i, 1);
        one.row_weight = t.row_weight + (i + 1) % t.rows;
        right_.SwigluGrad(one);
      });
    }
  }

  // The first token whose sum changes is summed without its last slot, or takes
  // every weight from its next slot.
  void SpoilCombine(const CombineTile& t, const Rows& rows) {
    const bool lost = kind_ == FaultKind::kLostKSlot && t.top_k > 1;
    if (!lost && (!IsOfWeights() || t.weights == nullptr)) return;
    UntilOneChanges(rows, [&](int32_t token) {
      CombineTile one = RowsOf(t, token, 1);
      std::vector<float> weights;
      if (lost) {
        --one.top_k;
      } else {
        weights.assign(one.weights, one.weights + one.top_k);
        std::rotate(weights.begin(), weights.begin() + 1, weights.end());
        one.weights = weights.data();
      }
      right_.Combine(one);
    });
  }

  // Of a put or relay: another token overwrites the first row that it would
  // change, or the first row that changes takes another weight.
  void SpoilRow(ScaleRowsTile t, const Rows& row) {
    if (kind_ == FaultKind::kWrongOffset) {
      char* const out = row[0].data;
      std::rotate(out, out + BytesOf(t.dtype), out + row[0].size);
    } else if (changed_) {
      return;
    } else if (IsOfWeights() && t.weight != nullptr) {
      const float next = NextWeight();
      t.weight = &next;
      right_.ScaleRows(t);
    } else if (kind_ == FaultKind::kStaleRow) {
      const std::vector<char> right = Gather(row);
      const Array& tokens = layer_.buffers[KindOf(task_).left()];
      for (int32_t i = 0; i < tokens.rows && Gather(row) == right; ++i) {
        t.x = tokens.At(task_.rank, i, 0);
        right_.ScaleRows(t);
      }
    }
  }

  // What the task's next copy has, or the next slot of a put row's token.
  float NextWeight() const {
    if (KindOf(task_).work == Work::kRelayRows) {
      const RowCopy* const copies = layer_.CopiesAt(task_.rank, 0);
      std::vector<float> weights;
      ForEachCopy(
          task_, layer_.plan, CopyRowsOf(layer_, task_.rank),
          [&](int64_t at, int32_t) { weights.push_back(copies[at].weight); });
      return weights[(num_rows_ + 1) % weights.size()];
    }
    const int32_t top_k = layer_.image->top_k;
    const int32_t slot = SentSlot(task_, layer_, num_rows_);
    const int32_t next = slot / top_k * top_k + (slot + 1) % top_k;
    return layer_.topk_weights[layer_.SlotAt(task_.rank, next)];
  }

  // The row, or gradient of its weight, behind one of a put home; the first
  // behind the last.
  const void* NextReturned(const void* from, int64_t bytes) const {
    const Array& rows = layer_.buffers[KindOf(task_).left()];
    const int32_t first = FirstRow(task_, layer_);
    const void* const begin =
        IsIn(rows, from)
            ? rows.At(task_.rank, first, 0)
            : static_cast<const void*>(layer_.d_row_weight +
                                       layer_.RowAt(task_.rank, first));
    const auto* const base = static_cast<const char*>(begin);
    const int64_t next = static_cast<const char*>(from) - base + bytes;
    return base + next % (RealRows(task_, layer_).count() * bytes);
  }

  bool IsOfSilu() const {
    return kind_ == FaultKind::kEarlyRounding || kind_ == FaultKind::kSiluOff;
  }
  bool IsOfWeights() const { return kind_ == FaultKind::kMisplacedWeight; }

  const TaskDesc& task_;
  const FaultKind kind_;
  const Layer& layer_;
  GemmScratch* const scratch_;
  Kernels& right_;
  int32_t num_rows_ = 0;  // that a put or relay wrote
  bool changed_ = false;
};

}  // namespace

const char* FaultName(FaultKind kind) {
  const auto number = static_cast<int32_t>(kind);
  if (number < 0 || kind >= FaultKind::kNumFaultKinds) return nullptr;
  return kFaultNames[number];
}

FaultKind FaultByName(const char* name) {
  for (int32_t i = 1; i < static_cast<int32_t>(FaultKind::kNumFaultKinds);
       ++i) {
    if (std::strcmp(name, kFaultNames[i]) == 0) return FaultKind{i};
  }
  return FaultKind::kNone;
}

bool IsOrderFault(FaultKind kind) {
  return IsMoved(kind) || kind == FaultKind::kMissingSignal ||
         kind == FaultKind::kSkippedWait;
}

bool IsMoved(FaultKind kind) {
  return kind == FaultKind::kMissingWait || kind == FaultKind::kEarlySignal;
}

bool RunFaulty(const TaskDesc& task, FaultKind kind, const Layer& layer,
               GemmScratch* scratch, Kernels* right) {
  if (kind == FaultKind::kDroppedTile) {
    return RealRows(task, layer).count() > 0 && layer.Has(KindOf(task).written);
  }
  FaultyKernels kernels(task, kind, layer, scratch, right);
  RunTask(task, layer, &kernels);
  return kernels.changed();
}

}  // namespace hpmoe
