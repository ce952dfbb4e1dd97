// What the tensors of one rank are and where they lie: logical tiles to
// addresses, as host/launch/runtime_tasks.cc does for the host.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_RANK_TENSORS_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_RANK_TENSORS_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/device/megakernel/symmetric_memory.h"
#include "backend_ascend/image/image.h"
#include "backend_ascend/image/regions.h"
#include "backend_ascend/image/rows.h"

namespace hpmoe {

// A row of the table of kinds.
struct KindRow {
  Work work;
  BufferId left, right, written;
  When weighted;
};

// Compares instead of indexing: the table need not lie in a core's memory.
template <int kKind = 0>
HPMOE_FUNCTION KindRow KindRowOf(const TaskDesc& task) {
  if constexpr (kKind + 1 < kNumTaskKinds) {
    if (task.kind != kKind) return KindRowOf<kKind + 1>(task);
  }
  constexpr KindRow kRow = {kKinds[kKind].work, kKinds[kKind].left(),
                            kKinds[kKind].right(), kKinds[kKind].written,
                            kKinds[kKind].weighted};
  return kRow;
}

struct BufferAxes {
  Axis rows, cols;
};

template <int kBuffer = 0>
HPMOE_FUNCTION BufferAxes AxesOf(BufferId buffer) {
  if constexpr (kBuffer + 1 < kNumBuffers) {
    if (buffer != kBuffer) return AxesOf<kBuffer + 1>(buffer);
  }
  constexpr BufferAxes kAxes = {kBuffers[kBuffer].rows, kBuffers[kBuffer].cols};
  return kAxes;
}

// Of the rank that runs.  `args` and `header` must outlive it.
class RankTensors {
 public:
  HPMOE_FUNCTION RankTensors(const LaunchArgs& launch,
                             const ImageHeader& header)
      : args(launch),
        image(header),
        plan({{launch.counts, launch.row_base, launch.expert_rows,
               launch.expert_base, launch.slice_begin, launch.slice_slots},
              &header,
              {launch.once_counts, launch.once_row_base,
               launch.once_expert_rows, launch.once_expert_base,
               launch.once_slice_begin, launch.once_slice_slots},
              launch.copy_rows,
              launch.copy_slots}),
        heap(launch) {}

  HPMOE_FUNCTION int32_t Cols(BufferId buffer) const {
    return static_cast<int32_t>(SizeOf(image, AxesOf(buffer).cols));
  }
  // Where an element lies; of a weight, `row` counts through the experts.
  template <typename T>
  HPMOE_FUNCTION HPMOE_GM T* At(BufferId buffer, int64_t row,
                                int64_t col) const {
    return reinterpret_cast<HPMOE_GM T*>(args.buffers[buffer]) +
           row * Cols(buffer) + col;
  }
  // The first row of an expert's weight.
  HPMOE_FUNCTION int64_t WeightRow(BufferId buffer, int32_t expert) const {
    return expert % LocalExperts(image) * SizeOf(image, AxesOf(buffer).rows);
  }
  // Beside a row of codes, and of an expert's column.
  HPMOE_FUNCTION HPMOE_GM float* RowScale(BufferId buffer, int64_t row) const {
    return args.scales[buffer] + row;
  }
  HPMOE_FUNCTION HPMOE_GM float* ColScale(BufferId buffer, int32_t expert,
                                          int32_t col) const {
    const int64_t local = expert % LocalExperts(image);
    return args.scales[buffer] + local * Cols(buffer) + col;
  }
  HPMOE_FUNCTION int32_t OwnerOf(int32_t expert) const {
    return expert / LocalExperts(image);
  }
  HPMOE_FUNCTION bool IsWeighted(const KindRow& kind) const {
    return Applies(image, kind.weighted);
  }
  template <typename T>
  HPMOE_FUNCTION const HPMOE_GM T* Table(const TableRef& table) const {
    return reinterpret_cast<const HPMOE_GM T*>(args.image + table.offset);
  }

  const LaunchArgs& args;
  const ImageHeader& image;
  const PlanView plan;
  const SymmetricMemory heap;
};

// One GEMM tile of a cube core: what host/tiles/gemm.h says of the host's, with
// addresses of global memory.
//
// c[m, n] = a[m, k] @ b[k, n], in float32 sums over the whole depth that are
// rounded once.  The order of a sum is that of the cube unit.  Sums of codes
// are int32, and stored so.
struct CubeTile {
  HPMOE_GM uint8_t* a;  // elements are of the image's storage, or codes
  HPMOE_GM uint8_t* b;
  HPMOE_GM uint8_t* c;
  int64_t lda, ldb, ldc;  // elements
  int32_t m, n, k;        // k = 0: an empty sum, zeros
  bool trans_a;           // a is stored [k, m], rows lda apart
  bool trans_b;           // b is stored [n, k], rows ldb apart
  HPMOE_GM float* carry;  // [m, n], rows ld_carry apart; null: the flags below
                          // have no effect
  int64_t ld_carry;
  bool carry_in;   // sums start from carry, whose elements are finite: an
                   // infinity makes NaN of its column
  bool carry_out;  // sums end in carry; c is not touched
};

// left[rows] @ right of the expert.
template <typename T>
HPMOE_FUNCTION CubeTile MakeGemmTile(const TaskDesc& task, const KindRow& kind,
                                     const RankTensors& rank) {
  const int64_t row = FirstRow(task, rank.plan);
  const int64_t weight = rank.WeightRow(kind.right, task.expert);
  CubeTile tile = {};
  tile.trans_b = kind.work == Work::kGemmTransposed;
  tile.a = reinterpret_cast<HPMOE_GM uint8_t*>(rank.At<T>(kind.left, row, 0));
  const int64_t b_row = tile.trans_b ? weight + task.col_begin : weight;
  const int64_t b_col = tile.trans_b ? 0 : task.col_begin;
  tile.b =
      reinterpret_cast<HPMOE_GM uint8_t*>(rank.At<T>(kind.right, b_row, b_col));
  tile.c = reinterpret_cast<HPMOE_GM uint8_t*>(
      rank.At<typename Product<T>::Stored>(kind.written, row, task.col_begin));
  tile.lda = rank.Cols(kind.left);
  tile.ldb = rank.Cols(kind.right);
  tile.ldc = rank.Cols(kind.written);
  tile.m = RealRows(task, rank.plan).count();
  tile.n = task.col_end - task.col_begin;
  tile.k = rank.Cols(kind.left);
  return tile;
}

// += left[rows]^T @ right[rows], over the rows that the link sums.
template <typename T>
HPMOE_FUNCTION CubeTile MakeWeightGradTile(const TaskDesc& task,
                                           const KindRow& kind,
                                           const RankTensors& rank) {
  const RowRange rows = SummedRows(task, rank.plan);
  const int64_t row = rank.plan.expert_base[task.expert] + rows.begin;
  const int64_t out =
      rank.WeightRow(kind.written, task.expert) + task.row_begin;
  CubeTile tile = {};
  tile.trans_a = true;
  tile.a = reinterpret_cast<HPMOE_GM uint8_t*>(
      rank.At<T>(kind.left, row, task.row_begin));
  tile.b = reinterpret_cast<HPMOE_GM uint8_t*>(
      rank.At<T>(kind.right, row, task.col_begin));
  tile.c = reinterpret_cast<HPMOE_GM uint8_t*>(
      rank.At<T>(kind.written, out, task.col_begin));
  tile.lda = rank.Cols(kind.left);
  tile.ldb = rank.Cols(kind.right);
  tile.ldc = rank.Cols(kind.written);
  tile.m = task.row_end - task.row_begin;
  tile.n = task.col_end - task.col_begin;
  tile.k = rows.count();
  HPMOE_GM float* const sums = rank.args.sums[kind.written];
  if (sums == nullptr) return tile;
  tile.carry = sums + out * tile.ldc + task.col_begin;
  tile.ld_carry = tile.ldc;
  tile.carry_in = task.peer > 0;
  tile.carry_out = task.peer + 1 < LinksOf(rank.image);
  return tile;
}

// Of a task of an AIC with real rows.
template <typename T>
HPMOE_FUNCTION CubeTile MakeCubeTile(const TaskDesc& task,
                                     const RankTensors& rank) {
  const KindRow kind = KindRowOf(task);
  return kind.work == Work::kWeightGrad
             ? MakeWeightGradTile<T>(task, kind, rank)
             : MakeGemmTile<T>(task, kind, rank);
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_RANK_TENSORS_H_
