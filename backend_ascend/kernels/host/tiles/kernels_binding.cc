// Python's view of the tile kernels: numpy arrays of float32 or float16, or of
// uint16 that hold bfloat16 bits.  Rows may be strided, columns are contiguous.

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "backend_ascend/kernels/host/binding.h"
#include "backend_ascend/kernels/host/tiles/gemm.h"
#include "backend_ascend/kernels/host/tiles/gemm_kernels.h"
#include "backend_ascend/kernels/host/tiles/tile_kernels.h"

namespace hpmoe {
namespace {

using In = nb::ndarray<nb::ro, nb::device::cpu>;
using Out = nb::ndarray<nb::device::cpu>;
using Weights = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<nb::numpy>;

template <typename Array>
std::string ShapeOf(const Array& x) {
  std::string text = "[";
  for (size_t i = 0; i < x.ndim(); ++i) {
    text += (i ? ", " : "") + std::to_string(x.shape(i));
  }
  return text + "]";
}

template <typename Array>
void CheckShape(const char* name, const Array& x,
                const std::vector<size_t>& shape) {
  bool same = x.ndim() == shape.size();
  std::string text;
  for (size_t i = 0; i < shape.size(); ++i) {
    same = same && x.shape(i) == shape[i];
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  if (!same) Refuse(name, "shape [" + text + "]", ShapeOf(x));
}

template <typename Array>
DType DTypeOf(const char* name, const Array& x) {
  const DType dtype = StoredAs(x);
  if (dtype != kNumDTypes) return dtype;
  Refuse(name, "float32, float16 or uint16 (bfloat16 bits)", "another dtype");
}

// Checks dtype, rank, extents and contiguous columns.
template <typename Array>
void CheckArray(const char* name, const Array& x, size_t ndim, DType dtype) {
  if (DTypeOf(name, x) != dtype) {
    Refuse(name, "the dtype of the first array", "another");
  }
  if (x.ndim() != ndim) {
    Refuse(name, std::to_string(ndim) + " dimensions", ShapeOf(x));
  }
  for (size_t i = 0; i < ndim; ++i) {
    if (x.shape(i) > INT32_MAX) Refuse(name, "int32 extents", ShapeOf(x));
  }
  // numpy 2 gives an array without elements stride 0.
  if (x.size() > 0 && x.shape(ndim - 1) > 1 && x.stride(ndim - 1) != 1) {
    Refuse(name, "contiguous columns",
           "column stride " + std::to_string(x.stride(ndim - 1)));
  }
}

Result NewArray(size_t rows, size_t cols, DType dtype) {
  void* data = std::malloc(rows * cols * BytesOf(dtype) + 1);
  if (data == nullptr) throw std::bad_alloc();
  const nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
  return Result(data, {rows, cols}, owner, {}, PassedAs(dtype));
}

AccumulationOrder OrderOf(const std::string& name, DType dtype) {
  if (name == "ascending") return kAscending;
  if (name == "even_odd_32" && dtype == kBFloat16) return kEvenOdd32;
  Refuse("order", "'ascending', or 'even_odd_32' of bfloat16",
         "'" + name + "' of " + kDTypes[dtype].name);
}

GemmTile MakeGemm(const In& a, const In& b, bool trans_a, bool trans_b,
                  const std::string& order = "ascending") {
  const DType dtype = DTypeOf("a", a);
  CheckArray("a", a, 2, dtype);
  CheckArray("b", b, 2, dtype);
  const size_t k = a.shape(trans_a ? 0 : 1), n = b.shape(trans_b ? 0 : 1);
  if (b.shape(trans_b ? 1 : 0) != k) {
    Refuse("b",
           std::to_string(k) + (trans_b ? " columns" : " rows") +
               ", as a has " + (trans_a ? "rows" : "columns"),
           ShapeOf(b));
  }
  GemmTile tile{a.data(),
                b.data(),
                /*c=*/nullptr,
                a.stride(0),
                b.stride(0),
                static_cast<int64_t>(n),
                static_cast<int32_t>(a.shape(trans_a ? 1 : 0)),
                static_cast<int32_t>(n),
                static_cast<int32_t>(k),
                dtype,
                trans_a,
                trans_b};
  tile.order = OrderOf(order, dtype);
  return tile;
}

template <typename Array>
void CheckCarry(const Array& carry, const GemmTile& tile) {
  if (carry.dtype() != nb::dtype<float>()) {
    Refuse("carry", "float32", "another dtype");
  }
  CheckArray("carry", carry, 2, kFloat32);
  CheckShape("carry", carry,
             {static_cast<size_t>(tile.m), static_cast<size_t>(tile.n)});
}

// The tile only reads a carry that it does not end in.
void StartFrom(const std::optional<In>& carry, GemmTile* tile) {
  if (!carry) return;
  CheckCarry(*carry, *tile);
  tile->carry = static_cast<float*>(const_cast<void*>(carry->data()));
  tile->ld_carry = carry->stride(0);
  tile->carry_in = true;
}

void RunGemm(const GemmTile& tile, Isa isa) {
  thread_local GemmScratch scratch;
  const nb::gil_scoped_release release;
  RunGemmTile(tile, isa, &scratch);
}

Result Gemm(const In& a, const In& b, const std::optional<std::string>& isa,
            bool trans_a, bool trans_b, const std::optional<In>& carry,
            const std::string& order,
            const std::optional<Weights>& row_weight) {
  GemmTile tile = MakeGemm(a, b, trans_a, trans_b, order);
  StartFrom(carry, &tile);
  if (row_weight) {
    CheckShape("row_weight", *row_weight, {static_cast<size_t>(tile.m)});
    tile.row_weight = row_weight->data();
  }
  const Result c = NewArray(tile.m, tile.n, tile.dtype);
  tile.c = c.data();
  RunGemm(tile, IsaOf(isa));
  return c;
}

void GemmInto(const In& a, const In& b, const Out& c,
              const std::optional<std::string>& isa, bool trans_a, bool trans_b,
              const std::optional<In>& carry, const std::string& order) {
  GemmTile tile = MakeGemm(a, b, trans_a, trans_b, order);
  StartFrom(carry, &tile);
  CheckArray("c", c, 2, tile.dtype);
  CheckShape("c", c,
             {static_cast<size_t>(tile.m), static_cast<size_t>(tile.n)});
  tile.c = c.data();
  tile.ldc = c.stride(0);
  RunGemm(tile, IsaOf(isa));
}

void GemmCarry(const In& a, const In& b, const Out& carry,
               const std::optional<std::string>& isa, bool trans_a,
               bool trans_b, bool carry_in, const std::string& order) {
  GemmTile tile = MakeGemm(a, b, trans_a, trans_b, order);
  CheckCarry(carry, tile);
  tile.carry = static_cast<float*>(carry.data());
  tile.ld_carry = carry.stride(0);
  tile.carry_in = carry_in;
  tile.carry_out = true;
  RunGemm(tile, IsaOf(isa));
}

Result GemmBf16Accumulate(const In& a, const In& b, bool trans_a, bool trans_b,
                          const std::optional<In>& carry) {
  GemmTile tile = MakeGemm(a, b, trans_a, trans_b);
  StartFrom(carry, &tile);
  const Result c = NewArray(tile.m, tile.n, tile.dtype);
  tile.c = c.data();
  const nb::gil_scoped_release release;
  RunGemmTileBf16Accumulate(tile);
  return c;
}

ActivationKind ActivationOf(const std::string& name) {
  if (name == "swiglu") return kSwigluActivation;
  if (name == "absolute") return kAbsolute;
  Refuse("activation", "'swiglu' or 'absolute'", "'" + name + "'");
}

Result Swiglu(const In& gate, const In& up,
              const std::optional<Weights>& row_weight,
              const std::string& activation, bool early_rounding,
              const std::optional<std::string>& isa) {
  const DType dtype = DTypeOf("gate", gate);
  CheckArray("gate", gate, 2, dtype);
  CheckArray("up", up, 2, dtype);
  CheckShape("up", up, {gate.shape(0), gate.shape(1)});
  if (gate.shape(0) > 1 && up.stride(0) != gate.stride(0)) {
    Refuse("up", "row stride " + std::to_string(gate.stride(0)) + " of gate",
           std::to_string(up.stride(0)));
  }
  if (row_weight) CheckShape("row_weight", *row_weight, {gate.shape(0)});
  const Result out = NewArray(gate.shape(0), gate.shape(1), dtype);
  const SwigluTile tile = {gate.data(),
                           up.data(),
                           out.data(),
                           gate.stride(0),
                           static_cast<int64_t>(gate.shape(1)),
                           static_cast<int32_t>(gate.shape(0)),
                           static_cast<int32_t>(gate.shape(1)),
                           row_weight ? row_weight->data() : nullptr,
                           dtype,
                           ActivationOf(activation),
                           early_rounding};
  const Isa chosen = IsaOf(isa);
  const nb::gil_scoped_release release;
  RunSwigluTile(tile, chosen);
  return out;
}

void CheckSameShape(const char* name, const In& x, const In& first,
                    DType dtype) {
  CheckArray(name, x, first.ndim(), dtype);
  CheckShape(name, x, {first.shape(0), first.shape(1)});
}

// d_gate, d_up and, where asked for, d_row_weight [rows, 1].
nb::tuple SwigluGrad(const In& d_out, const In& gate, const In& up,
                     const std::optional<Weights>& row_weight,
                     const std::string& activation, bool want_d_row_weight,
                     const std::optional<std::string>& isa) {
  const DType dtype = DTypeOf("d_out", d_out);
  CheckArray("d_out", d_out, 2, dtype);
  CheckSameShape("gate", gate, d_out, dtype);
  CheckSameShape("up", up, d_out, dtype);
  const size_t rows = d_out.shape(0), cols = d_out.shape(1);
  if (rows > 1 && up.stride(0) != gate.stride(0)) {
    Refuse("up", "row stride " + std::to_string(gate.stride(0)) + " of gate",
           std::to_string(up.stride(0)));
  }
  if (row_weight) CheckShape("row_weight", *row_weight, {rows});
  const Result d_gate = NewArray(rows, cols, dtype);
  const Result d_up = NewArray(rows, cols, dtype);
  const Result d_row_weight = NewArray(rows, 1, kFloat32);
  const SwigluGradTile tile = {
      d_out.data(),
      gate.data(),
      up.data(),
      d_gate.data(),
      d_up.data(),
      d_out.stride(0),
      gate.stride(0),
      static_cast<int64_t>(cols),
      static_cast<int32_t>(rows),
      static_cast<int32_t>(cols),
      row_weight ? row_weight->data() : nullptr,
      want_d_row_weight ? static_cast<float*>(d_row_weight.data()) : nullptr,
      dtype,
      ActivationOf(activation)};
  const Isa chosen = IsaOf(isa);
  {
    const nb::gil_scoped_release release;
    RunSwigluGradTile(tile, chosen);
  }
  if (!want_d_row_weight) return nb::make_tuple(d_gate, d_up);
  return nb::make_tuple(d_gate, d_up, d_row_weight);
}

Result ScaleRows(const In& x, const std::optional<Weights>& weight,
                 const std::optional<std::string>& isa) {
  const DType dtype = DTypeOf("x", x);
  CheckArray("x", x, 2, dtype);
  if (weight) CheckShape("weight", *weight, {x.shape(0)});
  const Result out = NewArray(x.shape(0), x.shape(1), dtype);
  const ScaleRowsTile tile = {x.data(),
                              out.data(),
                              weight ? weight->data() : nullptr,
                              x.stride(0),
                              static_cast<int64_t>(x.shape(1)),
                              static_cast<int32_t>(x.shape(0)),
                              static_cast<int32_t>(x.shape(1)),
                              dtype};
  const Isa chosen = IsaOf(isa);
  const nb::gil_scoped_release release;
  RunScaleRowsTile(tile, chosen);
  return out;
}

Result RowDot(const In& a, const In& b, const std::optional<std::string>& isa) {
  const DType dtype = DTypeOf("a", a);
  CheckArray("a", a, 2, dtype);
  CheckSameShape("b", b, a, dtype);
  const Result out = NewArray(a.shape(0), 1, kFloat32);
  const RowDotTile tile = {a.data(),
                           b.data(),
                           static_cast<float*>(out.data()),
                           a.stride(0),
                           b.stride(0),
                           static_cast<int32_t>(a.shape(0)),
                           static_cast<int32_t>(a.shape(1)),
                           dtype};
  const Isa chosen = IsaOf(isa);
  const nb::gil_scoped_release release;
  RunRowDotTile(tile, chosen);
  return out;
}

Result Combine(const In& returned, const std::optional<Weights>& weights,
               const std::optional<std::string>& isa) {
  const DType dtype = DTypeOf("returned", returned);
  CheckArray("returned", returned, 3, dtype);
  const size_t tokens = returned.shape(0), top_k = returned.shape(1);
  if (top_k == 0) Refuse("returned", "at least one slot", ShapeOf(returned));
  if (tokens > 1 &&
      returned.stride(0) != static_cast<int64_t>(top_k) * returned.stride(1)) {
    Refuse("returned", "rows at one stride", "tokens apart from slots");
  }
  if (weights) CheckShape("weights", *weights, {tokens, top_k});
  const Result y = NewArray(tokens, returned.shape(2), dtype);
  const CombineTile tile = {returned.data(),
                            weights ? weights->data() : nullptr,
                            y.data(),
                            returned.stride(1),
                            static_cast<int64_t>(returned.shape(2)),
                            static_cast<int32_t>(tokens),
                            static_cast<int32_t>(top_k),
                            static_cast<int32_t>(returned.shape(2)),
                            dtype};
  const Isa chosen = IsaOf(isa);
  const nb::gil_scoped_release release;
  RunCombineTile(tile, chosen);
  return y;
}

double MaxUlp(uint64_t begin, uint64_t end,
              const std::optional<std::string>& isa) {
  constexpr uint64_t kEnd = uint64_t{1} << 32;
  if (begin > end || end > kEnd) {
    Refuse("begin_bits, end_bits", "0 <= begin_bits <= end_bits <= 2^32",
           std::to_string(begin) + ", " + std::to_string(end));
  }
  const Isa chosen = IsaOf(isa);
  const nb::gil_scoped_release release;
  return ExpMaxUlp(begin, end, chosen);
}

// [rows, cols] of a storage dtype in another, row by row.
Result Convert(const In& x, const std::string& to,
               const std::optional<std::string>& isa) {
  const DType from = DTypeOf("x", x);
  CheckArray("x", x, 2, from);
  const auto named = [&](const DTypeInfo& info) { return info.name == to; };
  const auto* const found =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), named);
  if (found == std::end(kDTypes)) Refuse("to", "a storage dtype", to);
  const auto dtype = DType(found - std::begin(kDTypes));
  const size_t rows = x.shape(0), cols = x.shape(1);
  const Result out = NewArray(rows, cols, dtype);
  const GemmKernels& kernels = GemmKernelsOf(IsaOf(isa));
  std::vector<float> wide(cols);
  for (size_t i = 0; i < rows; ++i) {
    HPMOE_STORED(from, kernels.Moves<T>().widen(
                           static_cast<const T*>(x.data()) + i * x.stride(0),
                           wide.data(), cols));
    HPMOE_STORED(
        dtype, kernels.Moves<T>().narrow(
                   wide.data(), static_cast<T*>(out.data()) + i * cols, cols));
  }
  return out;
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
  m.def("gemm_tile", &Gemm, "a"_a, "b"_a, "isa"_a = none, "trans_a"_a = false,
        "trans_b"_a = false, "carry"_a = none, "order"_a = "ascending",
        "row_weight"_a = none,
        "`[m, k] @ [k, n] -> [m, n]`, float32, float16 or bfloat16 bits "
        "(uint16).\n\n"
        "isa: None for the best.  trans_a, trans_b: stored [k, m], [n, k].\n"
        "carry: `[m, n] f32` that the sums start from.  order: of the sum,\n"
        "'ascending' or, of bfloat16, 'even_odd_32'.  row_weight: `[m] f32`\n"
        "that multiply sums.  Raises ValueError.");
  m.def("gemm_tile_into", &GemmInto, "a"_a, "b"_a, "c"_a, "isa"_a = none,
        "trans_a"_a = false, "trans_b"_a = false, "carry"_a = none,
        "order"_a = "ascending",
        "gemm_tile into `c`, which overlaps none of the others.");
  m.def("gemm_tile_carry", &GemmCarry, "a"_a, "b"_a, "carry"_a, "isa"_a = none,
        "trans_a"_a = false, "trans_b"_a = false, "carry_in"_a = true,
        "order"_a = "ascending",
        "gemm_tile whose sums end in `carry`, `[m, n] f32`, unrounded; they\n"
        "start from it where carry_in, else from zero.");
  m.def("gemm_tile_bf16_accumulate", &GemmBf16Accumulate, "a"_a, "b"_a,
        "trans_a"_a = false, "trans_b"_a = false, "carry"_a = none,
        "gemm_tile with every partial sum rounded to bfloat16: a fault.");
  m.def("swiglu_tile", &Swiglu, "gate"_a, "up"_a, "row_weight"_a = none,
        "activation"_a = "swiglu", "early_rounding"_a = false, "isa"_a = none,
        "`[rows, cols] x2 (, [rows] f32) -> [rows, cols]`:\nact(gate) * up "
        "* row_weight.");
  m.def("swiglu_grad_tile", &SwigluGrad, "d_out"_a, "gate"_a, "up"_a,
        "row_weight"_a = none, "activation"_a = "swiglu",
        "d_row_weight"_a = false, "isa"_a = none,
        "`[rows, cols] x3 (, [rows] f32) -> d_gate, d_up` and, where\n"
        "d_row_weight, `[rows, 1] f32`.");
  m.def("scale_rows_tile", &ScaleRows, "x"_a, "weight"_a = none, "isa"_a = none,
        "`[rows, cols] (, [rows] f32) -> [rows, cols]`: weight * x, or x.");
  m.def("row_dot_tile", &RowDot, "a"_a, "b"_a, "isa"_a = none,
        "`[rows, cols] x2 -> [rows, 1] f32`: a dot per row.");
  m.def("combine_tile", &Combine, "returned"_a, "weights"_a = none,
        "isa"_a = none,
        "`[T, K, D] (, [T, K] f32) -> [T, D]`: sum in slot order.");
  m.def("convert", &Convert, "x"_a, "to"_a, "isa"_a = none,
        "`[rows, cols]` of a storage dtype in the one named `to`.\n\nAs GEMM "
        "tiles convert.");
  m.def(
      "exp_max_ulp", &MaxUlp, "begin_bits"_a, "end_bits"_a, "isa"_a = none,
      "Largest error of the kernels' exp, in ulp.\n\nOver float32 inputs with "
      "bits in [begin_bits, end_bits).");
}

}  // namespace hpmoe
