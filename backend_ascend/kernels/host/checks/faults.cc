#include "backend_ascend/kernels/host/checks/faults.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "backend_ascend/kernels/host/checks/faults_writes.h"
#include "backend_ascend/kernels/host/tiles/storage.h"
#include "backend_ascend/kernels/host/tiles/tile_rows.h"

namespace hpmoe {
namespace {

constexpr const char* kFaultNames[] = {"none",
                                       "zero_output",
                                       "dropped_tile",
                                       "swapped_experts",
                                       "stale_row",
                                       "lost_k_slot",
                                       "misplaced_weight",
                                       "missing_wait",
                                       "missing_signal",
                                       "early_signal",
                                       "wrong_offset",
                                       "off_by_one_row",
                                       "early_rounding",
                                       "wrong_accumulation",
                                       "narrow_operands_tf32",
                                       "narrow_operands_bf16",
                                       "narrow_accumulator",
                                       "dropped_k_term",
                                       "swapped_gate_up",
                                       "silu_off",
                                       "empty_grad_not_zeroed",
                                       "weight_grad_twice",
                                       "blocks_out_of_order",
                                       "skipped_wait"};
static_assert(sizeof(kFaultNames) / sizeof(kFaultNames[0]) ==
                  static_cast<size_t>(FaultKind::kNumFaultKinds),
              "every fault has a name");

bool IsGemm(const TaskDesc& task) {
  const Work work = KindOf(task).work;
  return work == Work::kGemm || work == Work::kGemmTransposed;
}

// Calls rewrite(i) for the first row i that changes by it, and for those
// before it, which do not.
template <class Rewrite>
void UntilOneChanges(const std::vector<Bytes>& rows, Rewrite rewrite) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<char> right(rows[i].data, rows[i].data + rows[i].size);
    rewrite(static_cast<int32_t>(i));
    if (std::memcmp(right.data(), rows[i].data, rows[i].size) != 0) return;
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

float WeightOf(const TaskDesc& task, const Layer& layer, int32_t slot) {
  return layer.topk_weights[task.rank * layer.Slots() + slot];
}

// Another token of the rank overwrites the first row that it would change.
void SpoilStaleRow(const TaskDesc& task, const Layer& layer,
                   const Writes& writes) {
  UntilOneChanges(writes.rows, [&](int32_t i) {
    const Bytes& row = writes.rows[i];
    const std::vector<char> right(row.data, row.data + row.size);
    const float weight = WeightOf(task, layer, SentSlot(task, layer, i));
    for (int32_t t = 0; t < layer.image->num_tokens; ++t) {
      WriteSentRow(task, layer, t, weight, row.data);
      if (std::memcmp(right.data(), row.data, row.size) != 0) return;
    }
  });
}

void SpoilWrongOffset(const Layer& layer, const Writes& writes) {
  const size_t shift = BytesOf(DType{layer.image->dtype});
  for (const Bytes& row : writes.rows) {
    std::rotate(row.data, row.data + shift, row.data + row.size);
  }
}

void SpoilOffByOneRow(const Writes& writes) {
  for (const std::vector<Bytes>* rows : {&writes.rows, &writes.weights}) {
    if (rows->empty()) continue;
    std::vector<char> sent = Gather(*rows);
    std::rotate(sent.begin(), sent.begin() + rows->front().size, sent.end());
    Scatter(sent.data(), *rows);
  }
}

// The first token whose sum changes is summed without its last slot.  The
// kernel reads [tokens, top_k] rows, so it is a tile of its own.
void SpoilLostSlot(const TaskDesc& task, const Layer& layer,
                   const Writes& writes) {
  const CombineTile tile = MakeCombineTile(task, layer);
  UntilOneChanges(writes.rows, [&](int32_t token) {
    CombineTile one = RowsOf(tile, token, 1);
    one.top_k -= 1;
    RunCombineTile(one, layer.isa);
  });
}

// The first token whose sum changes takes every weight from its next slot.
void SpoilTokenWeight(const TaskDesc& task, const Layer& layer,
                      const Writes& writes) {
  const CombineTile tile = MakeCombineTile(task, layer);
  if (tile.weights == nullptr) return;
  UntilOneChanges(writes.rows, [&](int32_t token) {
    CombineTile one = RowsOf(tile, token, 1);
    std::vector<float> weights(one.weights + 1, one.weights + one.top_k);
    weights.push_back(one.weights[0]);
    one.weights = weights.data();
    RunCombineTile(one, layer.isa);
  });
}

// The first copy that changes takes the weight of the next one.
void SpoilCopiedWeight(const TaskDesc& task, const Layer& layer,
                       const Writes& writes) {
  const int32_t per = CopiesOf(*layer.image);
  const RowCopy* const copies = layer.CopiesAt(task.rank, 0);
  std::vector<int64_t> at;
  ForEachCopy(task, layer.plan, CopyRowsOf(layer, task.rank),
              [&](int64_t place, int32_t) { at.push_back(place); });
  UntilOneChanges(writes.rows, [&](int32_t i) {
    const RowCopy& next = copies[at[(i + 1) % at.size()]];
    WriteSentRow(task, layer, static_cast<int32_t>(at[i] / per), next.weight,
                 writes.rows[i].data);
  });
}

// The first row that changes takes the weight of its token's next slot.
void SpoilSentWeight(const TaskDesc& task, const Layer& layer,
                     const Writes& writes) {
  const int32_t top_k = layer.image->top_k;
  UntilOneChanges(writes.rows, [&](int32_t i) {
    const int32_t slot = SentSlot(task, layer, i), token = slot / top_k;
    const int32_t next = token * top_k + (slot + 1) % top_k;
    WriteSentRow(task, layer, token, WeightOf(task, layer, next),
                 writes.rows[i].data);
  });
}

// The first row that changes takes the weight of the next row of the tile.
void SpoilRowWeight(const TaskDesc& task, const Layer& layer,
                    const Writes& writes) {
  const SwigluTile tile = MakeSwigluTile(task, layer);
  if (tile.row_weight == nullptr) return;
  UntilOneChanges(writes.rows, [&](int32_t i) {
    SwigluTile one = RowsOf(tile, i, 1);
    one.row_weight = tile.row_weight + (i + 1) % tile.rows;
    RunSwigluTile(one, layer.isa);
  });
}

void SpoilRowWeightGrad(const TaskDesc& task, const Layer& layer,
                        const Writes& writes) {
  const SwigluGradTile tile = MakeSwigluGradTile(task, layer);
  if (tile.row_weight == nullptr) return;
  UntilOneChanges(writes.rows, [&](int32_t i) {
    SwigluGradTile one = RowsOf(tile, i, 1);
    one.row_weight = tile.row_weight + (i + 1) % tile.rows;
    one.d_row_weight = nullptr;
    RunSwigluGradTile(one, layer.isa);
  });
}

void SpoilMisplacedWeight(const TaskDesc& task, const Layer& layer,
                          const Writes& writes) {
  switch (KindOf(task).work) {
    case Work::kPutRows:
      return SpoilSentWeight(task, layer, writes);
    case Work::kRelayRows:
      return SpoilCopiedWeight(task, layer, writes);
    case Work::kSumSlots:
      return SpoilTokenWeight(task, layer, writes);
    case Work::kActivation:
      return SpoilRowWeight(task, layer, writes);
    case Work::kActivationGrad:
      return SpoilRowWeightGrad(task, layer, writes);
    default:
      return;
  }
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
void SpoilSiluGrad(const TaskDesc& task, FaultKind kind, const Layer& layer) {
  const SwigluGradTile grad = MakeSwigluGradTile(task, layer);
  for (int32_t i = 0; i < grad.rows; ++i) {
    SwigluTile row{};
    row.gate = Advance(grad.gate, i * grad.ld_in, grad.dtype);
    row.up = Advance(grad.d_out, i * grad.ld_d_out, grad.dtype);
    row.out = Advance(grad.d_up, i * grad.ld_grad, grad.dtype);
    row.rows = 1;
    row.cols = grad.cols;
    row.row_weight = grad.row_weight ? grad.row_weight + i : nullptr;
    row.dtype = grad.dtype;
    row.activation = grad.activation;
    RunSpoiltSwiglu(row, kind, layer.isa);
  }
}

void SpoilSwappedGateUp(const TaskDesc& task, const Layer& layer) {
  if (KindOf(task).work == Work::kActivation) {
    SwigluTile tile = MakeSwigluTile(task, layer);
    std::swap(tile.gate, tile.up);
    RunSwigluTile(tile, layer.isa);
  } else {
    SwigluGradTile tile = MakeSwigluGradTile(task, layer);
    std::swap(tile.gate, tile.up);
    tile.d_row_weight = nullptr;
    RunSwigluGradTile(tile, layer.isa);
  }
}

void SpoilActivation(const TaskDesc& task, FaultKind kind, const Layer& layer) {
  if (kind == FaultKind::kSwappedGateUp) {
    SpoilSwappedGateUp(task, layer);
  } else if (kind != FaultKind::kEarlyRounding && kind != FaultKind::kSiluOff) {
    return;
  } else if (KindOf(task).work == Work::kActivationGrad) {
    SpoilSiluGrad(task, kind, layer);
  } else {
    RunSpoiltSwiglu(MakeSwigluTile(task, layer), kind, layer.isa);
  }
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

// Faults of any GEMM; false: not one of them.
bool RunSpoiltGemm(const GemmTile& tile, FaultKind kind, Isa isa,
                   GemmScratch* scratch) {
  switch (kind) {
    case FaultKind::kWrongAccumulation:
      RunGemmTileBf16Accumulate(tile);
      return true;
    case FaultKind::kNarrowOperandsTf32:
    case FaultKind::kNarrowOperandsBf16:
      HPMOE_STORED(tile.dtype, RunNarrowGemm<T>(tile, kind, isa, scratch));
      return true;
    case FaultKind::kNarrowAccumulator:
      SumRanges(tile, {{0, tile.k / 2}, {tile.k / 2, tile.k}}, isa, scratch,
                true);
      return true;
    case FaultKind::kDroppedKTerm:
      SumRanges(tile, {{0, std::max(tile.k - 1, 0)}}, isa, scratch);
      return true;
    default:
      return false;
  }
}

// `found`: what stood before the task ran where it writes.
void SpoilWeightGrad(const TaskDesc& task, FaultKind kind, const Layer& layer,
                     const Writes& writes, const std::vector<char>& found,
                     GemmScratch* scratch) {
  Scatter(found.data(), writes.rows);
  const GemmTile tile = MakeWeightGradTile(task, layer);
  const int32_t half = tile.k / 2;
  const bool empty = layer.plan.expert_rows[task.expert] == 0;
  if (RunSpoiltGemm(tile, kind, layer.isa, scratch)) {
    return;
  } else if (kind == FaultKind::kWeightGradTwice) {
    SumRanges(tile, {{0, tile.k}, {0, tile.k}}, layer.isa, scratch);
  } else if (kind == FaultKind::kBlocksOutOfOrder) {
    SumRanges(tile, {{half, tile.k}, {0, half}}, layer.isa, scratch);
  } else if (kind != FaultKind::kEmptyGradNotZeroed || !empty) {
    RunGemmTile(tile, layer.isa, scratch);  // no fault of this task
  }
}

void Spoil(const TaskDesc& task, FaultKind kind, const Layer& layer,
           const Writes& writes, const std::vector<char>& found,
           GemmScratch* scratch) {
  const ImageHeader& image = *layer.image;
  const Work work = KindOf(task).work;
  const bool put = IsPut(FormOf(task));
  const bool of_tokens = work == Work::kPutRows || work == Work::kPutOnce;
  if (kind == FaultKind::kZeroOutput) {
    const std::vector<char> zeros(found.size(), 0);
    Scatter(zeros.data(), writes.rows);
    Scatter(zeros.data(), writes.weights);
  } else if (work == Work::kWeightGrad) {
    SpoilWeightGrad(task, kind, layer, writes, found, scratch);
  } else if (kind == FaultKind::kSwappedExperts && IsGemm(task)) {
    const int32_t next = (task.expert + 1) % image.num_experts;
    RunGemmTile(MakeGemmTile(task, next, layer), layer.isa, scratch);
  } else if (IsGemm(task)) {
    RunSpoiltGemm(MakeGemmTile(task, task.expert, layer), kind, layer.isa,
                  scratch);
  } else if (kind == FaultKind::kStaleRow && of_tokens) {
    SpoilStaleRow(task, layer, writes);
  } else if (kind == FaultKind::kWrongOffset && put) {
    SpoilWrongOffset(layer, writes);
  } else if (kind == FaultKind::kOffByOneRow && work == Work::kPutHome) {
    SpoilOffByOneRow(writes);
  } else if (kind == FaultKind::kLostKSlot && work == Work::kSumSlots) {
    if (image.top_k > 1) SpoilLostSlot(task, layer, writes);
  } else if (kind == FaultKind::kMisplacedWeight) {
    SpoilMisplacedWeight(task, layer, writes);
  } else if (work == Work::kActivation || work == Work::kActivationGrad) {
    SpoilActivation(task, kind, layer);
  }
}

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
               GemmScratch* scratch) {
  if (RealRows(task, layer).count() == 0) return false;
  if (kind == FaultKind::kDroppedTile) return true;
  const Writes writes = WritesOf(task, layer);
  const std::vector<char> found = Gather(writes);
  RunTask(task, layer, scratch);
  const std::vector<char> right = Gather(writes);
  Spoil(task, kind, layer, writes, found, scratch);
  return Gather(writes) != right;
}

}  // namespace hpmoe
