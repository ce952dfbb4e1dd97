// Tests' view of the tile kernels: structs of tiles as bytes, which
// tiles_testing.py makes.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "backend_ascend/host/binding.h"
#include "backend_ascend/host/tiles/codes/code_gemm.h"
#include "backend_ascend/host/tiles/codes/code_tiles.h"
#include "backend_ascend/host/tiles/gemm.h"
#include "backend_ascend/host/tiles/gemm_kernels.h"
#include "backend_ascend/host/tiles/tile_kernels.h"

namespace hpmoe {
namespace {

using In = nb::ndarray<nb::ro, nb::device::cpu>;
using Result = nb::ndarray<nb::numpy>;
using MaybeIsa = std::optional<std::string>;

// `run` is given the struct and the instruction set.
template <class Tile, class Run>
void BindTile(nb::module_& m, const char* name, Run run) {
  const auto call = [run](const nb::bytes& bytes, const MaybeIsa& isa) {
    if (bytes.size() != sizeof(Tile)) {
      Refuse("tile", std::to_string(sizeof(Tile)) + " bytes",
             std::to_string(bytes.size()));
    }
    Tile tile;
    std::memcpy(static_cast<void*>(&tile), bytes.c_str(), sizeof(tile));
    const Isa chosen = IsaOf(isa);
    const nb::gil_scoped_release release;
    run(tile, chosen);
  };
  m.def(name, call, "tile"_a, "isa"_a = nb::none(),
        "Runs the tile whose struct the bytes are.");
}

void RunGemm(const GemmTile& tile, Isa isa) {
  thread_local GemmScratch scratch;
  RunGemmTile(tile, isa, &scratch);
}

void RunCodeGemm(const CodeGemmTile& tile, Isa isa) {
  thread_local GemmScratch scratch;
  RunCodeGemmTile(tile, isa, &scratch);
}

double MaxUlp(uint64_t begin, uint64_t end, const MaybeIsa& isa) {
  const Isa chosen = IsaOf(isa);
  const nb::gil_scoped_release release;
  return ExpMaxUlp(begin, end, chosen);
}

// [rows, cols] of a storage dtype in another, row by row.
Result Convert(const In& x, const std::string& to, const MaybeIsa& isa) {
  const DType from = StoredAs(x);
  if (from == kNumDTypes || x.ndim() != 2) {
    Refuse("x", "float32, float16 or uint16 of 2 dimensions", "another array");
  }
  const auto named = [&](const DTypeInfo& info) { return info.name == to; };
  const auto* const found =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), named);
  if (found == std::end(kDTypes)) Refuse("to", "a storage dtype", to);
  const auto dtype = DType(found - std::begin(kDTypes));
  const size_t rows = x.shape(0), cols = x.shape(1);
  void* const data = std::malloc(rows * cols * BytesOf(dtype) + 1);
  if (data == nullptr) throw std::bad_alloc();
  const nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
  const GemmKernels& kernels = GemmKernelsOf(IsaOf(isa));
  std::vector<float> wide(cols);
  for (size_t i = 0; i < rows; ++i) {
    HPMOE_STORED(from, kernels.Moves<T>().widen(
                           static_cast<const T*>(x.data()) + i * x.stride(0),
                           wide.data(), cols));
    HPMOE_STORED(dtype,
                 kernels.Moves<T>().narrow(
                     wide.data(), static_cast<T*>(data) + i * cols, cols));
  }
  return Result(data, {rows, cols}, owner, {}, PassedAs(dtype));
}

std::vector<std::string> Isas() {
  std::vector<std::string> names;
  for (const Isa isa : kAllIsas) {
    if (IsaSupported(isa)) names.push_back(IsaName(isa));
  }
  return names;
}

}  // namespace

void BindKernels(nb::module_& m) {
  const auto none = nb::none();
  m.def("isas", &Isas, "Instruction sets of this build that this CPU runs.");
  BindTile<GemmTile>(m, "gemm_tile", &RunGemm);
  BindTile<GemmTile>(m, "gemm_tile_of_bf16_sums", [](const auto& tile, Isa) {
    RunGemmTileBf16Accumulate(tile);
  });
  BindTile<SwigluTile>(m, "swiglu_tile", &RunSwigluTile);
  BindTile<SwigluGradTile>(m, "swiglu_grad_tile", &RunSwigluGradTile);
  BindTile<ScaleRowsTile>(m, "scale_rows_tile", &RunScaleRowsTile);
  BindTile<RowDotTile>(m, "row_dot_tile", &RunRowDotTile);
  BindTile<CombineTile>(m, "combine_tile", &RunCombineTile);
  BindTile<CodeGemmTile>(m, "code_gemm_tile", &RunCodeGemm);
  BindTile<QuantiseRowsTile>(m, "quantise_rows_tile", &RunQuantiseRowsTile);
  BindTile<CodeSwigluTile>(m, "code_swiglu_tile", &RunCodeSwigluTile);
  BindTile<DequantiseRowsTile>(m, "dequantise_rows_tile",
                               &RunDequantiseRowsTile);
  m.def("convert", &Convert, "x"_a, "to"_a, "isa"_a = none,
        "`[rows, cols]` of a storage dtype in the one named `to`.\n\nAs GEMM "
        "tiles convert.");
  m.def(
      "exp_max_ulp", &MaxUlp, "begin_bits"_a, "end_bits"_a, "isa"_a = none,
      "Largest error of the kernels' exp, in ulp.\n\nOver float32 inputs with "
      "bits in [begin_bits, end_bits).");
}

}  // namespace hpmoe
