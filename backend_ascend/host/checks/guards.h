// Kernels on copies of their tiles, each between margins of NaN: what a kernel
// does beyond the addresses that it is given.
//
// A read beyond a tile makes NaN of what it computes; a write beyond it, or
// into what it should only read, is found as soon as the kernel is done, so the
// task is known.  The addresses themselves are what `runtime_accesses.h`
// records.

#ifndef BACKEND_ASCEND_HOST_CHECKS_GUARDS_H_
#define BACKEND_ASCEND_HOST_CHECKS_GUARDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "backend_ascend/host/checks/tile_operands.h"
#include "backend_ascend/host/launch/runtime_tasks.h"

namespace hpmoe {

// Copies of the operands of one kernel call; one per OS thread.
class Margins {
 public:
  // Returns where the copy's first element is; its rows are `Pitch` apart.
  void* Place(const TileOperand& operand, bool written);
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

  void Gemm(const GemmTile& t) override { Run(&Kernels::Gemm, t); }
  void Swiglu(const SwigluTile& t) override { Run(&Kernels::Swiglu, t); }
  void SwigluGrad(const SwigluGradTile& t) override {
    Run(&Kernels::SwigluGrad, t);
  }
  void Combine(const CombineTile& t) override { Run(&Kernels::Combine, t); }
  void RowDots(const RowDotTile& t) override { Run(&Kernels::RowDots, t); }
  void ScaleRows(const ScaleRowsTile& t) override {
    Run(&Kernels::ScaleRows, t);
  }
  void Norm(const NormTile& t) override { Run(&Kernels::Norm, t); }
  void CodeGemm(const CodeGemmTile& t) override { Run(&Kernels::CodeGemm, t); }
  void QuantiseRows(const QuantiseRowsTile& t) override {
    Run(&Kernels::QuantiseRows, t);
  }
  void CodeSwiglu(const CodeSwigluTile& t) override {
    Run(&Kernels::CodeSwiglu, t);
  }
  void DequantiseRows(const DequantiseRowsTile& t) override {
    Run(&Kernels::DequantiseRows, t);
  }
  void Copy(const void* from, size_t bytes, void* to) override;
  void WriteHeader(int32_t slot, float weight, int32_t* slot_to,
                   float* weight_to) override;
  void* Scratch(GemmScratch::Slot slot, int64_t elements,
                int64_t element_bytes) override;

  // The first thing that went wrong, or ''.
  const std::string& found() const { return found_; }

 private:
  // Runs a kernel on copies of all that its tile names.
  template <class Tile>
  void Run(void (Kernels::*kernel)(const Tile&), const Tile& tile) {
    Tile copy = tile;
    const auto place = [&](TileUse use, const TileOperand& operand, auto field,
                           int64_t Tile::* ld) {
      using Address = std::remove_reference_t<decltype(copy.*field)>;
      if (use == TileUse::kInPlace) return;
      if constexpr (std::is_same_v<Address, const void* const*>) {
        copy.*field = ReadRows(operand);
      } else {
        const bool written = use != TileUse::kRead;
        copy.*field = static_cast<Address>(margins_.Place(operand, written));
      }
      if (ld != nullptr && tile.*ld != 0) {
        copy.*ld = Margins::Pitch(operand.cols);
      }
    };
    VisitOperands(tile, place);
    (kernels_.*kernel)(copy);
    Finish();
  }
  void Finish();
  // Copies rows that lie anywhere; returns where each copy is.
  const void* const* ReadRows(const TileOperand& operand);

  Kernels& kernels_;
  Margins& margins_;
  std::string found_;
  std::vector<const void*> rows_;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_CHECKS_GUARDS_H_
