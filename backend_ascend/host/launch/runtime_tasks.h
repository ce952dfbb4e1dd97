// What one task does on the host: logical tiles to addresses, then a kernel.

#ifndef BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_TASKS_H_
#define BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_TASKS_H_

#include <cassert>
#include <cstdint>
#include <cstring>
#include <string>

#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/load/plan.h"
#include "backend_ascend/host/ranks/transport.h"
#include "backend_ascend/host/tiles/codes/code_gemm.h"
#include "backend_ascend/host/tiles/codes/code_tiles.h"
#include "backend_ascend/host/tiles/gemm.h"
#include "backend_ascend/host/tiles/tile_kernels.h"
#include "backend_ascend/image/image.h"
#include "backend_ascend/image/rows.h"

namespace hpmoe {

// A dense row-major array [slabs, rows, cols] of the heap.  A slab is a rank,
// or the expert of a weight: experts are dealt to ranks in order, so
// [R, L, ...] is [E, ...].  A rank in a process of its own holds only its own
// slabs, of which `first` is the first.
struct Array {
  char* data;
  int64_t slabs, rows, cols;
  int64_t element_bytes;
  int64_t first = 0;

  int64_t bytes() const { return slabs * rows * cols * element_bytes; }
  char* At(int64_t slab, int64_t row, int64_t col) const {
    assert(slab >= first && slab < first + slabs);
    return data + (((slab - first) * rows + row) * cols + col) * element_bytes;
  }
};

// What scales beside a buffer's codes are called.
inline std::string ScalesName(int buffer) {
  return std::string(kBuffers[buffer].name) + "_scales";
}

// Shape of a buffer as reference/contract/tensors.py says, without data.
Array ShapeOf(const ImageHeader& image, BufferId buffer);

// What the caller holds.  Buffers that tasks write are asked for where they are
// given; the others are only read.  Backward, `x` may stand for expert_in, and
// expert_out for returned.
struct LaunchTensors {
  const Plan* plan;  // of topk_ids, or null
  const int32_t* topk_ids;
  const float* topk_weights;
  int32_t* counts;  // or null, as the two below
  int32_t* row_base;
  int32_t* row_of_slot;
  void* buffers[kNumBuffers];
  // Beside codes: of weights given, of rows made where they are asked for.
  float* scales[kNumBuffers];
};

// All that a task reads and writes.  R below is the ranks held.
struct Layer {
  const ImageHeader* image;
  PlanView plan;
  const float* topk_weights;  // [R, T * K]
  // Where a token's slots lie with their owners; null where `returned` and
  // d_returned are made.
  const int32_t* topk_ids;     // [R, T * K]
  const int32_t* row_of_slot;  // [R, T * K]
  // Those that this launch does not have are without data.
  Array buffers[kNumBuffers];
  int32_t* header_slot;        // [R, N] row headers: token * K + slot, or -1
  float* header_weight;        // [R, N]
  float* scales[kNumBuffers];  // beside codes, NumScales of each, or null
  RowCopy* copies;             // [R, N, CopiesOf] beside relayed rows, or null
  // Gradients of the weights where an expert's rank applies them: with their
  // rows, then with their slots.
  float* d_row_weight;       // [R, N], or null
  float* d_slot_weight;      // [R, T * K], or null
  float* sums[kNumBuffers];  // float32 sums of a weight gradient between the
                             // links of its chain, or null
  Isa isa;
  // Ranks of this address space: all of them, or one and the way to the others.
  int32_t first_rank;
  int32_t ranks_held;
  Transport* transport;    // null where all ranks are held
  const HeapLayout* heap;  // of the other ranks

  bool Has(int buffer) const { return buffers[buffer].data != nullptr; }
  bool Holds(int32_t rank) const {
    return rank >= first_rank && rank < first_rank + ranks_held;
  }
  // Into [R, N] and [R, T * K].
  int64_t RowAt(int32_t rank, int64_t row) const {
    assert(Holds(rank));
    return int64_t{rank - first_rank} * image->num_rows + row;
  }
  // Beside a row of codes on a rank; or the column of an expert's weight.
  float* RowScales(int buffer, int32_t rank, int64_t row) const {
    return scales[buffer] + RowAt(rank, row);
  }
  const float* ColScales(int buffer, int32_t expert, int64_t col) const {
    const Array& weight = buffers[buffer];
    return scales[buffer] + (expert - weight.first) * weight.cols + col;
  }
  // Whether rows bring their headers.  In a sub-layer headers are complete from
  // the start, and puts home read them before rows come: nobody writes them.
  bool BringsHeaders() const { return image->span == kLayer; }
  // Slots of a rank's row headers, [N].
  const int32_t* HeaderSlots(int32_t rank) const {
    return header_slot + RowAt(rank, 0);
  }
  RowCopy* CopiesAt(int32_t rank, int64_t row) const {
    return copies + RowAt(rank, row) * CopiesOf(*image);
  }
  int64_t SlotAt(int32_t rank, int64_t slot) const {
    assert(Holds(rank));
    return (rank - first_rank) * Slots() + slot;
  }
  int64_t Slots() const { return int64_t{image->num_tokens} * image->top_k; }
  int32_t Owner(int32_t expert) const {
    return expert / (image->num_experts / image->num_ranks);
  }
};

// Rows of a task in this launch; see rows.h.
inline RowRange RealRows(const TaskDesc& task, const Layer& layer) {
  return RealRows(task, layer.plan);
}
inline int32_t FirstRow(const TaskDesc& task, const Layer& layer) {
  return FirstRow(task, layer.plan);
}
inline RowRange SummedRows(const TaskDesc& task, const Layer& layer) {
  return SummedRows(task, layer.plan);
}
inline int32_t SentSlot(const TaskDesc& task, const Layer& layer, int32_t i) {
  return SentSlot(task, layer.plan, i);
}
// Where relayed rows of a rank go, as ForEachCopy reads it.
struct CopyRows {
  const RowCopy* copies;
  int32_t operator[](int64_t at) const { return copies[at].row; }
};
inline CopyRows CopyRowsOf(const Layer& layer, int32_t rank) {
  return {layer.CopiesAt(rank, 0)};
}
template <class Visit>
void ForEachReturned(const TaskDesc& task, const Layer& layer, Visit visit) {
  ForEachReturned(task, layer.plan, layer.HeaderSlots(task.rank), visit);
}

// All that touches tensors: every address that a task's work reads or writes
// on its own ranks passes here.
class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual void Gemm(const GemmTile& tile) = 0;
  virtual void Swiglu(const SwigluTile& tile) = 0;
  virtual void SwigluGrad(const SwigluGradTile& tile) = 0;
  virtual void Combine(const CombineTile& tile) = 0;
  virtual void RowDots(const RowDotTile& tile) = 0;
  virtual void ScaleRows(const ScaleRowsTile& tile) = 0;
  virtual void Norm(const NormTile& tile) = 0;
  virtual void CodeGemm(const CodeGemmTile& tile) = 0;
  virtual void QuantiseRows(const QuantiseRowsTile& tile) = 0;
  virtual void CodeSwiglu(const CodeSwigluTile& tile) = 0;
  virtual void DequantiseRows(const DequantiseRowsTile& tile) = 0;
  virtual void Copy(const void* from, size_t bytes, void* to) {
    std::memcpy(to, from, bytes);
  }
  virtual void WriteHeader(int32_t slot, float weight, int32_t* slot_to,
                           float* weight_to) {
    *slot_to = slot;
    *weight_to = weight;
  }
  // Puts home and relays read where their rows belong, not what is there.
  virtual void ReadHeader(const int32_t*) {}
  // A tile of the thread's own, of so many elements, contents undefined.
  virtual void* Scratch(GemmScratch::Slot slot, int64_t elements,
                        int64_t element_bytes) = 0;
};

// Those that compute.
class HostKernels final : public Kernels {
 public:
  // `poison`: scratch tiles start as NaN.
  HostKernels(Isa isa, GemmScratch* scratch, bool poison = false)
      : isa_(isa), scratch_(scratch), poison_(poison) {}

  void Gemm(const GemmTile& tile) override;
  void Swiglu(const SwigluTile& tile) override;
  void SwigluGrad(const SwigluGradTile& tile) override;
  void Combine(const CombineTile& tile) override;
  void RowDots(const RowDotTile& tile) override;
  void ScaleRows(const ScaleRowsTile& tile) override;
  void Norm(const NormTile& tile) override;
  void CodeGemm(const CodeGemmTile& tile) override;
  void QuantiseRows(const QuantiseRowsTile& tile) override;
  void CodeSwiglu(const CodeSwigluTile& tile) override;
  void DequantiseRows(const DequantiseRowsTile& tile) override;
  void* Scratch(GemmScratch::Slot slot, int64_t elements,
                int64_t element_bytes) override;

 private:
  const Isa isa_;
  GemmScratch* const scratch_;
  const bool poison_;
};

// Does the task's work, once.  Tasks without real rows do nothing, nor do those
// whose buffer is not made.  A buffer that its readers find not made,
//
//   expert_in, d_expert_out at    is read where its tokens lie
//     no weight
//   gate_up                       is computed by the activation's task
//   activation                    by the task of `down`, which has all columns
//   d_activation                  by the task of d_gate_up
//   returned, d_returned          is read where the owners of its rows have it
//
// so every element that is made comes from the same values by the same chain,
// rounded at the same places.  Where products are of codes, all are made.
void RunTask(const TaskDesc& task, const Layer& layer, Kernels* kernels);
void RunTask(const TaskDesc& task, const Layer& layer, GemmScratch* scratch);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LAUNCH_RUNTIME_TASKS_H_
