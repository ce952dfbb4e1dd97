#include "backend_ascend/kernels/ascendc/twin/launch/twin_patches.h"

#include <cstring>

#include "backend_ascend/kernels/host/tiles/storage.h"
#include "backend_ascend/kernels/rows.h"

namespace hpmoe {
namespace {

// Rows of a rank's buffer, all of one length.
struct RowsOfBuffer {
  char* begin;
  uint64_t row_bytes;

  char* At(int64_t row) const { return begin + row * row_bytes; }
};

class Patches {
 public:
  Patches(const ImageView& view, const Plan& plan, const DeviceMemory& memory,
          const TaskDesc& task)
      : header_(*view.header),
        plan_(ViewOf(*view.header, plan)),
        memory_(memory),
        task_(task),
        kind_(KindOf(task)),
        element_(BytesOf(DType{view.header->dtype})) {}

  std::vector<Patch> Of(FaultKind kind) {
    switch (kind) {
      case FaultKind::kSwappedExperts:
        SwapExperts();
        break;
      case FaultKind::kStaleRow:
        StaleRow();
        break;
      case FaultKind::kLostKSlot:
        LoseSlot();
        break;
      case FaultKind::kMisplacedWeight:
        MisplaceWeight();
        break;
      case FaultKind::kWrongOffset:
        ShiftRows();
        break;
      case FaultKind::kOffByOneRow:
        RotateRows(kind_.left(), Rows(), 1);
        break;
      case FaultKind::kDroppedKTerm:
        DropTerm();
        break;
      case FaultKind::kSwappedGateUp:
        SwapGateUp();
        break;
      case FaultKind::kWeightGradTwice:
        if (kind_.work == Work::kWeightGrad) DoubleRows();
        break;
      case FaultKind::kBlocksOutOfOrder:
        if (kind_.work != Work::kWeightGrad) break;
        for (const BufferId b : {kind_.left(), kind_.right()}) {
          RotateRows(b, Summed(), Summed().count() / 2);
        }
        break;
      default:
        break;
    }
    return std::move(patches_);
  }

 private:
  const LaunchArgs& ArgsOf(int32_t rank) const { return *memory_.args(rank); }

  // Of this rank; of a weight, those of the task's expert.
  RowsOfBuffer Of(BufferId buffer, int32_t rank, int32_t slab) const {
    const Array shape = ShapeOf(header_, buffer);
    const uint64_t row_bytes = shape.cols * shape.element_bytes;
    char* const begin = reinterpret_cast<char*>(ArgsOf(rank).buffers[buffer]);
    return {begin + slab * shape.rows * row_bytes, row_bytes};
  }
  RowsOfBuffer Of(BufferId buffer) const { return Of(buffer, task_.rank, 0); }
  RowsOfBuffer OfExpert(BufferId buffer, int32_t expert) const {
    const int32_t local = LocalExperts(header_);
    return Of(buffer, expert / local, expert % local);
  }

  // In memory, of an expert's tile.
  RowRange Rows() const {
    const int32_t first = FirstRow(task_, plan_);
    return {first, first + RealRows(task_, plan_).count()};
  }
  RowRange Summed() const {
    const RowRange rows = SummedRows(task_, plan_);
    const int32_t base = plan_.expert_base[task_.expert];
    return {base + rows.begin, base + rows.end};
  }

  void Add(const void* begin, uint64_t bytes,
           std::function<void(uint64_t, uint64_t, char*)> make) {
    patches_.push_back(
        {reinterpret_cast<uint64_t>(begin), bytes, std::move(make)});
  }
  // In place of `bytes` bytes, as many others.
  void Replace(const void* begin, const char* with, uint64_t bytes) {
    Add(begin, bytes, [with](uint64_t offset, uint64_t count, char* to) {
      std::memcpy(to, with + offset, count);
    });
  }
  void Clear(const void* begin, uint64_t bytes) {
    Add(begin, bytes,
        [](uint64_t, uint64_t count, char* to) { std::memset(to, 0, count); });
  }
  // `bytes` bytes begin `shift` too late, and wrap.
  void Shift(const char* begin, uint64_t bytes, uint64_t shift) {
    Add(begin, bytes, [=](uint64_t offset, uint64_t count, char* to) {
      for (uint64_t i = 0; i < count; ++i) {
        to[i] = begin[(offset + i + shift) % bytes];
      }
    });
  }
  void RotateRows(BufferId buffer, RowRange rows, int32_t by) {
    const RowsOfBuffer all = Of(buffer);
    for (int32_t i = 0; i < rows.count(); ++i) {
      const int32_t other = rows.begin + (i + by) % rows.count();
      Replace(all.At(rows.begin + i), all.At(other), all.row_bytes);
    }
  }

  void SwapExperts() {
    if (kind_.form() != Form::kExpertTile || kind_.info().unit != kAic) return;
    const int32_t next = (task_.expert + 1) % header_.num_experts;
    const BufferId weight = kind_.right();
    const uint64_t bytes = ShapeOf(header_, weight).rows * Of(weight).row_bytes;
    Replace(OfExpert(weight, task_.expert).begin, OfExpert(weight, next).begin,
            bytes);
  }

  // Another token's data in the first row where that differs.
  void StaleRow() {
    if (kind_.form() != Form::kSlicePut) return;
    const RowsOfBuffer rows = Of(kind_.left());
    for (int32_t i = 0; i < RealRows(task_, plan_).count(); ++i) {
      const char* const mine =
          rows.At(SentSlot(task_, plan_, i) / header_.top_k);
      for (int32_t t = 0; t < header_.num_tokens; ++t) {
        if (std::memcmp(mine, rows.At(t), rows.row_bytes) == 0) continue;
        return Replace(mine, rows.At(t), rows.row_bytes);
      }
    }
  }

  void LoseSlot() {
    if (kind_.work != Work::kSumSlots || header_.top_k < 2) return;
    const RowsOfBuffer rows = Of(kind_.left());
    const int64_t last = int64_t{task_.row_begin + 1} * header_.top_k - 1;
    Clear(rows.At(last), rows.row_bytes);
  }

  void MisplaceWeight() {
    if (kind_.work == Work::kActivation ||
        kind_.work == Work::kActivationGrad) {
      const RowRange rows = Rows();
      const char* const weights = reinterpret_cast<const char*>(
          ArgsOf(task_.rank).header_weight + rows.begin);
      return Shift(weights, rows.count() * sizeof(float), sizeof(float));
    }
    if (kind_.work == Work::kRelayRows) {
      const int64_t per = CopiesOf(header_);
      const char* const weights = reinterpret_cast<const char*>(
          ArgsOf(task_.rank).copy_weight + Rows().begin * per);
      return Shift(weights, Rows().count() * per * sizeof(float),
                   sizeof(float));
    }
    const bool put = kind_.work == Work::kPutRows;
    if (!put && kind_.work != Work::kSumSlots) return;
    const float* const weights = ArgsOf(task_.rank).topk_weights;
    const int32_t count = RealRows(task_, plan_).count();
    for (int32_t i = 0; i < count; ++i) {
      const int32_t token =
          put ? SentSlot(task_, plan_, i) / header_.top_k : task_.row_begin + i;
      const float* const mine = weights + int64_t{token} * header_.top_k;
      bool same = true;
      for (int32_t k = 1; k < header_.top_k; ++k) same &= mine[k] == mine[0];
      if (same) continue;
      return Shift(reinterpret_cast<const char*>(mine),
                   header_.top_k * sizeof(float), sizeof(float));
    }
  }

  void ShiftRows() {
    if (!IsPut(kind_.form())) return;
    const RowsOfBuffer all = Of(kind_.left());
    for (int32_t i = 0; i < RealRows(task_, plan_).count(); ++i) {
      const bool here = kind_.form() != Form::kSlicePut;
      const int32_t row =
          here ? Rows().begin + i : SentSlot(task_, plan_, i) / header_.top_k;
      Shift(all.At(row), all.row_bytes, element_);
    }
  }

  // The last factor of each sum is zero on the left.
  void DropTerm() {
    if (kind_.info().unit != kAic) return;
    const RowsOfBuffer left = Of(kind_.left());
    if (kind_.work == Work::kWeightGrad) {
      if (Summed().count() == 0) return;
      return Clear(left.At(Summed().end - 1), left.row_bytes);
    }
    for (int32_t row = Rows().begin; row < Rows().end; ++row) {
      Clear(left.At(row + 1) - element_, element_);
    }
  }

  void SwapGateUp() {
    if (kind_.work != Work::kActivation &&
        kind_.work != Work::kActivationGrad) {
      return;
    }
    const RowsOfBuffer all = Of(kGateUpBuffer);
    for (int32_t row = Rows().begin; row < Rows().end; ++row) {
      Shift(all.At(row), all.row_bytes, all.row_bytes / 2);
    }
  }

  void DoubleRows() {
    const RowsOfBuffer all = Of(kind_.left());
    for (int32_t row = Summed().begin; row < Summed().end; ++row) {
      const char* const from = all.At(row);
      const bool wide = element_ == 4;
      // Moves start and end at elements.
      Add(from, all.row_bytes, [=](uint64_t offset, uint64_t count, char* to) {
        std::memcpy(to, from + offset, count);
        for (uint64_t i = 0; i < count; i += wide ? 4 : 2) {
          if (wide) {
            auto* const value = reinterpret_cast<float*>(to + i);
            *value *= 2;
          } else {
            auto* const value = reinterpret_cast<Bf16*>(to + i);
            StoreFloat(2 * LoadFloat(value), value);
          }
        }
      });
    }
  }

  const ImageHeader& header_;
  const PlanView plan_;
  const DeviceMemory& memory_;
  const TaskDesc& task_;
  const KindInfo& kind_;
  const uint64_t element_;
  std::vector<Patch> patches_;
};

}  // namespace

std::vector<Patch> PatchesOf(const ImageView& view, const Plan& plan,
                             const DeviceMemory& memory,
                             const FaultSpec& fault) {
  if (fault.task < 0) return {};
  return Patches(view, plan, memory, view.tasks[fault.task]).Of(fault.kind);
}

}  // namespace hpmoe
