// Tests' view of the tile kernels: numpy arrays of float32 or float16, or of
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
using MaybeIsa = std::optional<std::string>;

template <typename Sizes>
std::string Text(const Sizes& sizes) {
  std::string text;
  for (const auto size : sizes) {
    text += (text.empty() ? "[" : ", ") + std::to_string(size);
  }
  return text + "]";
}

template <typename Array>
std::vector<size_t> ShapeOf(const Array& x) {
  std::vector<size_t> shape;
  for (size_t i = 0; i < x.ndim(); ++i) shape.push_back(x.shape(i));
  return shape;
}

template <typename Array>
void CheckFits(const char* name, const Array& x,
               const std::vector<size_t>& shape, DType dtype) {
  const bool fits = StoredAs(x) == dtype && ShapeOf(x) == shape;
  // numpy 2 gives an array without elements stride 0.
  if (fits &&
      (x.size() == 0 || shape.back() == 1 || x.stride(shape.size() - 1) == 1)) {
    return;
  }
  const std::string got = StoredAs(x) == dtype ? "the dtype" : "another dtype";
  Refuse(name,
         std::string(kDTypes[dtype].name) + " " + Text(shape) +
             " with contiguous columns",
         got + " and " + Text(ShapeOf(x)));
}

// The dtype of the array that says which one the others have.
DType DTypeOf(const char* name, const In& x, size_t ndim) {
  const DType dtype = StoredAs(x);
  if (dtype == kNumDTypes || x.ndim() != ndim) {
    Refuse(
        name,
        "float32, float16 or uint16 of " + std::to_string(ndim) + " dimensions",
        "another dtype or " + Text(ShapeOf(x)));
  }
  CheckFits(name, x, ShapeOf(x), dtype);
  return dtype;
}

const float* DataOf(const char* name, const std::optional<Weights>& weights,
                    const std::vector<size_t>& shape) {
  if (!weights) return nullptr;
  CheckFits(name, *weights, shape, kFloat32);
  return weights->data();
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

// A new array, or none where what is made goes into `out` or `sums`.
std::optional<Result> Gemm(const In& a, const In& b, const MaybeIsa& isa,
                           bool trans_a, bool trans_b,
                           const std::optional<In>& carry,
                           const std::string& order,
                           const std::optional<Weights>& row_weight,
                           const std::optional<Out>& out,
                           const std::optional<Out>& sums, bool bf16_sums) {
  const DType dtype = DTypeOf("a", a, 2);
  DTypeOf("b", b, 2);
  const size_t m = a.shape(trans_a ? 1 : 0), k = a.shape(trans_a ? 0 : 1);
  const size_t n = b.shape(trans_b ? 0 : 1);
  CheckFits("b", b, trans_b ? std::vector{n, k} : std::vector{k, n}, dtype);
  GemmTile tile{};
  tile.a = a.data();
  tile.b = b.data();
  tile.lda = a.stride(0);
  tile.ldb = b.stride(0);
  tile.ldc = static_cast<int64_t>(n);
  tile.m = static_cast<int32_t>(m);
  tile.n = static_cast<int32_t>(n);
  tile.k = static_cast<int32_t>(k);
  tile.dtype = dtype;
  tile.trans_a = trans_a;
  tile.trans_b = trans_b;
  tile.order = OrderOf(order, dtype);
  tile.row_weight = DataOf("row_weight", row_weight, {m});
  if (carry) {
    CheckFits("carry", *carry, {m, n}, kFloat32);
    // A tile that does not end in it only reads it.
    tile.carry = static_cast<float*>(const_cast<void*>(carry->data()));
    tile.ld_carry = carry->stride(0);
    tile.carry_in = true;
  }
  std::optional<Result> made;
  if (sums) {
    CheckFits("sums", *sums, {m, n}, kFloat32);
    if (carry && carry->data() != sums->data()) {
      Refuse("carry", "the sums themselves", "another array");
    }
    tile.carry = static_cast<float*>(sums->data());
    tile.ld_carry = sums->stride(0);
    tile.carry_out = true;
  } else if (out) {
    CheckFits("out", *out, {m, n}, dtype);
    tile.c = out->data();
    tile.ldc = out->stride(0);
  } else {
    made = NewArray(m, n, dtype);
    tile.c = made->data();
  }
  const Isa chosen = IsaOf(isa);
  thread_local GemmScratch scratch;
  const nb::gil_scoped_release release;
  if (bf16_sums) {
    RunGemmTileBf16Accumulate(tile);
  } else {
    RunGemmTile(tile, chosen, &scratch);
  }
  return made;
}

ActivationKind ActivationOf(const std::string& name) {
  if (name == "swiglu") return kSwigluActivation;
  if (name == "absolute") return kAbsolute;
  Refuse("activation", "'swiglu' or 'absolute'", "'" + name + "'");
}

// Gate and up lie in rows of one pitch.
void CheckUp(const In& gate, const In& up, DType dtype) {
  CheckFits("up", up, ShapeOf(gate), dtype);
  if (gate.shape(0) > 1 && up.stride(0) != gate.stride(0)) {
    Refuse("up", "row stride " + std::to_string(gate.stride(0)) + " of gate",
           std::to_string(up.stride(0)));
  }
}

Result Swiglu(const In& gate, const In& up,
              const std::optional<Weights>& row_weight,
              const std::string& activation, bool early_rounding,
              const MaybeIsa& isa) {
  const DType dtype = DTypeOf("gate", gate, 2);
  CheckUp(gate, up, dtype);
  const size_t rows = gate.shape(0), cols = gate.shape(1);
  Result out = NewArray(rows, cols, dtype);
  SwigluTile tile{};
  tile.gate = gate.data();
  tile.up = up.data();
  tile.out = out.data();
  tile.ld_in = gate.stride(0);
  tile.ld_out = static_cast<int64_t>(cols);
  tile.rows = static_cast<int32_t>(rows);
  tile.cols = static_cast<int32_t>(cols);
  tile.row_weight = DataOf("row_weight", row_weight, {rows});
  tile.dtype = dtype;
  tile.activation = ActivationOf(activation);
  tile.early_rounding = early_rounding;
  RunSwigluTile(tile, IsaOf(isa));
  return out;
}

// d_gate, d_up and, where asked for, d_row_weight [rows, 1].
std::vector<Result> SwigluGrad(const In& d_out, const In& gate, const In& up,
                               const std::optional<Weights>& row_weight,
                               const std::string& activation,
                               bool want_d_row_weight, const MaybeIsa& isa) {
  const DType dtype = DTypeOf("d_out", d_out, 2);
  CheckFits("gate", gate, ShapeOf(d_out), dtype);
  CheckUp(gate, up, dtype);
  const size_t rows = d_out.shape(0), cols = d_out.shape(1);
  std::vector<Result> made = {NewArray(rows, cols, dtype),
                              NewArray(rows, cols, dtype)};
  if (want_d_row_weight) made.push_back(NewArray(rows, 1, kFloat32));
  SwigluGradTile tile{};
  tile.d_out = d_out.data();
  tile.gate = gate.data();
  tile.up = up.data();
  tile.d_gate = made[0].data();
  tile.d_up = made[1].data();
  tile.ld_d_out = d_out.stride(0);
  tile.ld_in = gate.stride(0);
  tile.ld_grad = static_cast<int64_t>(cols);
  tile.rows = static_cast<int32_t>(rows);
  tile.cols = static_cast<int32_t>(cols);
  tile.row_weight = DataOf("row_weight", row_weight, {rows});
  if (want_d_row_weight) {
    tile.d_row_weight = static_cast<float*>(made[2].data());
  }
  tile.dtype = dtype;
  tile.activation = ActivationOf(activation);
  RunSwigluGradTile(tile, IsaOf(isa));
  return made;
}

Result ScaleRows(const In& x, const std::optional<Weights>& weight,
                 const MaybeIsa& isa) {
  const DType dtype = DTypeOf("x", x, 2);
  Result out = NewArray(x.shape(0), x.shape(1), dtype);
  const ScaleRowsTile tile = {x.data(),
                              out.data(),
                              DataOf("weight", weight, {x.shape(0)}),
                              x.stride(0),
                              static_cast<int64_t>(x.shape(1)),
                              static_cast<int32_t>(x.shape(0)),
                              static_cast<int32_t>(x.shape(1)),
                              dtype};
  RunScaleRowsTile(tile, IsaOf(isa));
  return out;
}

Result RowDot(const In& a, const In& b, const MaybeIsa& isa) {
  const DType dtype = DTypeOf("a", a, 2);
  CheckFits("b", b, ShapeOf(a), dtype);
  Result out = NewArray(a.shape(0), 1, kFloat32);
  const RowDotTile tile = {a.data(),
                           b.data(),
                           static_cast<float*>(out.data()),
                           a.stride(0),
                           b.stride(0),
                           static_cast<int32_t>(a.shape(0)),
                           static_cast<int32_t>(a.shape(1)),
                           dtype};
  RunRowDotTile(tile, IsaOf(isa));
  return out;
}

Result Combine(const In& returned, const std::optional<Weights>& weights,
               const MaybeIsa& isa) {
  const DType dtype = DTypeOf("returned", returned, 3);
  const size_t tokens = returned.shape(0), top_k = returned.shape(1);
  Result y = NewArray(tokens, returned.shape(2), dtype);
  const CombineTile tile = {returned.data(),
                            DataOf("weights", weights, {tokens, top_k}),
                            y.data(),
                            returned.stride(1),
                            static_cast<int64_t>(returned.shape(2)),
                            static_cast<int32_t>(tokens),
                            static_cast<int32_t>(top_k),
                            static_cast<int32_t>(returned.shape(2)),
                            dtype};
  RunCombineTile(tile, IsaOf(isa));
  return y;
}

double MaxUlp(uint64_t begin, uint64_t end, const MaybeIsa& isa) {
  const Isa chosen = IsaOf(isa);
  const nb::gil_scoped_release release;
  return ExpMaxUlp(begin, end, chosen);
}

// [rows, cols] of a storage dtype in another, row by row.
Result Convert(const In& x, const std::string& to, const MaybeIsa& isa) {
  const DType from = DTypeOf("x", x, 2);
  const auto named = [&](const DTypeInfo& info) { return info.name == to; };
  const auto* const found =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), named);
  if (found == std::end(kDTypes)) Refuse("to", "a storage dtype", to);
  const auto dtype = DType(found - std::begin(kDTypes));
  const size_t rows = x.shape(0), cols = x.shape(1);
  Result out = NewArray(rows, cols, dtype);
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
        "row_weight"_a = none, "out"_a = none, "sums"_a = none,
        "bf16_sums"_a = false,
        "`[m, k] @ [k, n] -> [m, n]`, float32, float16 or bfloat16 bits "
        "(uint16).\n\n"
        "isa: None for the best.  trans_a, trans_b: stored [k, m], [n, k].\n"
        "carry: `[m, n] f32` that the sums start from.  order: of the sum,\n"
        "'ascending' or, of bfloat16, 'even_odd_32'.  row_weight: `[m] f32`\n"
        "that multiply sums.  out: where it goes; it overlaps no operand.\n"
        "sums: `[m, n] f32` that it ends in instead, unrounded.  bf16_sums:\n"
        "every partial sum rounded to bfloat16, which is a fault.");
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
