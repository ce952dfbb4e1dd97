// Products of stored weights, for Python.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "parity_tests/judge/limits/weights/products.h"

namespace hpmoe_limits {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

template <class Number>
using Matrix = nb::ndarray<Number, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Scale = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void Require(const char* name, size_t actual, size_t expected) {
  if (actual == expected) return;
  const std::string sizes =
      std::to_string(expected) + ", got " + std::to_string(actual);
  throw nb::value_error((std::string(name) + ": expected " + sizes).c_str());
}

template <class Rows, class Weights, class Total>
Sizes CheckSizes(const Rows& rows, const Weights& weights, const Total& total) {
  Require("rows", rows.shape(1), weights.shape(0));
  Require("total", total.shape(0), rows.shape(0));
  Require("total", total.shape(1), weights.shape(1));
  return {static_cast<int64_t>(rows.shape(0)),
          static_cast<int64_t>(rows.shape(1)),
          static_cast<int64_t>(weights.shape(1))};
}

// Python passes bfloat16 as words.
const Bfloat16* StoredIn(const uint16_t* words) {
  return reinterpret_cast<const Bfloat16*>(words);
}
const float* StoredIn(const float* values) { return values; }

template <class Word>
void AddUp(const Matrix<const double>& rows, const Matrix<const Word>& weights,
           int64_t block, const Matrix<double>& total,
           const Matrix<double>& squares) {
  const Sizes sizes = CheckSizes(rows, weights, total);
  CheckSizes(rows, weights, squares);
  if (block < 1) throw nb::value_error("block: expected 1 or more");
  nb::gil_scoped_release released;
  Multiply(rows.data(), StoredIn(weights.data()), sizes, block, total.data(),
           squares.data());
}

template <class Word>
void CheckScales(const Matrix<const Word>& weights, const Scale& row_scale,
                 const Scale& column_scale) {
  Require("row_scale", row_scale.shape(0), weights.shape(0));
  Require("column_scale", column_scale.shape(0), weights.shape(1));
}

template <class Word>
void AddMagnitudes(const Matrix<const float>& rows,
                   const Matrix<const Word>& weights, const Scale& row_scale,
                   const Scale& column_scale, bool squared,
                   const Matrix<float>& total) {
  const Sizes sizes = CheckSizes(rows, weights, total);
  CheckScales(weights, row_scale, column_scale);
  nb::gil_scoped_release released;
  MultiplyMagnitudes(rows.data(), StoredIn(weights.data()), sizes,
                     row_scale.data(), column_scale.data(), squared,
                     total.data());
}

template <class Word>
bool Measure(const Matrix<const Word>& weights, const Scale& row_scale,
             const Scale& column_scale) {
  CheckScales(weights, row_scale, column_scale);
  nb::gil_scoped_release released;
  return MeasureWeights(StoredIn(weights.data()), weights.shape(0),
                        weights.shape(1), row_scale.data(),
                        column_scale.data());
}

template <class Word>
void BindWeights(nb::module_& m) {
  m.def("add_up", &AddUp<Word>, "rows"_a, "weights"_a.noconvert(), "block"_a,
        "total"_a.noconvert(), "squares"_a.noconvert());
  m.def("measure", &Measure<Word>, "weights"_a.noconvert(),
        "row_scale"_a.noconvert(), "column_scale"_a.noconvert());
  m.def("add_magnitudes", &AddMagnitudes<Word>, "rows"_a,
        "weights"_a.noconvert(), "row_scale"_a.noconvert(),
        "column_scale"_a.noconvert(), "squared"_a, "total"_a.noconvert());
}

NB_MODULE(_products, m) {
  m.doc() = "Native part of parity_tests.judge.limits.bounds.gemm_bounds.";
  m.def("limit_registers", &LimitRegisters, "bytes"_a);
  BindWeights<uint16_t>(m);
  BindWeights<float>(m);
}

}  // namespace
}  // namespace hpmoe_limits
