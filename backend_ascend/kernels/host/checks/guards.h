// Kernels on copies of their tiles, each between margins of NaN: what a kernel
// does beyond the addresses that it is given.
//
// A read beyond a tile makes NaN of what it computes; a write beyond it, or
// into what it should only read, is found as soon as the kernel is done, so the
// task is known.  The addresses themselves are what `runtime_accesses.h`
// records.

#ifndef BACKEND_ASCEND_KERNELS_HOST_GUARDS_H_
#define BACKEND_ASCEND_KERNELS_HOST_GUARDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend_ascend/kernels/host/launch/runtime_tasks.h"

namespace hpmoe {

// A row-major rectangle in memory; null is none.
struct TileOperand {
  const char* name;
  const void* data;
  int64_t rows, cols, ld;  // ld in elements
  int64_t element_bytes;
  // Addresses of the rows, in place of `data` and `ld`; or null.
  const void* const* at = nullptr;

  bool IsNone() const { return data == nullptr && at == nullptr; }
  char* Row(int64_t row) const {
    const void* const begin = at != nullptr ? at[row] : data;
    const int64_t past = at != nullptr ? 0 : row * ld * element_bytes;
    return static_cast<char*>(const_cast<void*>(begin)) + past;
  }
};

// Copies of the operands of one kernel call; one per OS thread.
class Margins {
 public:
  // Returns where the copy's first element is; its rows are `Pitch` apart.
  const void* Read(const TileOperand& operand);
  void* Write(const TileOperand& operand);
  static int64_t Pitch(int64_t cols) { return cols + 2 * kCols; }
  // Copies back what was written, and forgets all copies.  Says what lies
  // beyond them, or was only to be read, and changed; '' if nothing did.
  std::string Finish();

 private:
  static constexpr int64_t kRows = 2, kCols = 16;

  struct Copy {
    TileOperand of;
    bool written;
    std::vector<char> bytes;
    std::vector<char> kept;  // the bytes of what is only read, as they came
  };

  char* Place(const TileOperand& operand, bool written);
  static char* At(Copy* copy, int64_t row, int64_t col);
  static std::string Changed(Copy* copy);

  std::vector<Copy> copies_;  // the first `used_`; memory is kept between calls
  size_t used_ = 0;
};

// Every kernel of `kernels`, so guarded.
class GuardedKernels final : public Kernels {
 public:
  GuardedKernels(Kernels* kernels, Margins* margins)
      : kernels_(*kernels), margins_(*margins) {}

  void Gemm(const GemmTile& tile) override;
  void Swiglu(const SwigluTile& tile) override;
  void SwigluGrad(const SwigluGradTile& tile) override;
  void Combine(const CombineTile& tile) override;
  void RowDots(const RowDotTile& tile) override;
  void ScaleRows(const ScaleRowsTile& tile) override;
  void Norm(const NormTile& tile) override;
  void Copy(const void* from, size_t bytes, void* to) override;
  void WriteHeader(int32_t slot, float weight, int32_t* slot_to,
                   float* weight_to) override;
  void* Scratch(GemmScratch::Slot slot, int64_t elements,
                int64_t element_bytes) override;

  // The first thing that went wrong, or ''.
  const std::string& found() const { return found_; }

 private:
  void Finish();
  // Copies rows that lie anywhere; returns where each copy is.
  const void* const* ReadRows(const TileOperand& operand);

  Kernels& kernels_;
  Margins& margins_;
  std::string found_;
  std::vector<const void*> rows_;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_GUARDS_H_
