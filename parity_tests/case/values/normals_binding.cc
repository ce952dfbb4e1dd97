// Scaled normal values, for Python.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>

#include <array>
#include <string>

#include "parity_tests/case/values/normals.h"

namespace hpmoe_values {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

using Factors =
    nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class Value>
using Matrix = nb::ndarray<Value, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void RefuseOther(const char* name, const Factors& factors, size_t size) {
  if (factors.shape(0) == size) return;
  const std::string expected = ": expected " + std::to_string(size);
  const std::string actual =
      " factors, got " + std::to_string(factors.shape(0));
  throw nb::value_error((name + expected + actual).c_str());
}

template <class Value, auto DrawValues>
void DrawInto(const std::array<uint64_t, 4>& stream, const Factors& rows,
              const Factors& columns, double deviation, double divisor,
              const Matrix<Value>& values) {
  RefuseOther("rows", rows, values.shape(0));
  RefuseOther("columns", columns, values.shape(1));
  const Scales scales{rows.data(),
                      columns.data(),
                      static_cast<int64_t>(values.shape(0)),
                      static_cast<int64_t>(values.shape(1)),
                      deviation,
                      divisor};
  nb::gil_scoped_release released;
  DrawValues({stream[0], stream[1], stream[2], stream[3]}, scales,
             values.data());
}

NB_MODULE(_normals, m) {
  m.doc() = "Native part of parity_tests.case.values.";
  m.def("draw", &DrawInto<float, Draw>, "stream"_a, "rows"_a, "columns"_a,
        "deviation"_a, "divisor"_a, "values"_a.noconvert());
  m.def("draw", &DrawInto<uint16_t, DrawBfloat16>, "stream"_a, "rows"_a,
        "columns"_a, "deviation"_a, "divisor"_a, "values"_a.noconvert());
}

}  // namespace
}  // namespace hpmoe_values
