// The sums of a chunk, for Python.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parity_tests/judge/limits/chunk_sums.h"

namespace hpmoe_lanes {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;

template <class Number>
using Matrix =
    nb::ndarray<const Number, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Doubles = Matrix<double>;
using Floats = Matrix<float>;
template <class Word>
using Words =
    nb::ndarray<const Word, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Starts = std::vector<int64_t>;

// The sums of a chunk, as a Python object.
struct Added {
  Sums sums;
  size_t rows, columns, tile_rows, tile_columns, regions;
};

[[noreturn]] void Refuse(const std::string& name, const std::string& expected) {
  throw nb::value_error((name + ": expected " + expected).c_str());
}

void CheckStarts(const std::string& name, const Starts& starts, size_t end) {
  const bool right = !starts.empty() && starts.front() == 0 &&
                     std::is_sorted(starts.begin(), starts.end()) &&
                     static_cast<size_t>(starts.back()) == end;
  if (!right) Refuse(name, "ascending from 0 to " + std::to_string(end));
}

template <class Number>
const Number* DataOf(const std::string& name, const Doubles& like,
                     const std::optional<Matrix<Number>>& array) {
  if (!array) return nullptr;
  if (array->shape(0) != like.shape(0) || array->shape(1) != like.shape(1)) {
    Refuse(name, "the golden's shape");
  }
  return array->data();
}

std::unique_ptr<Added> AddOf(
    const Floats& actual, const Doubles& golden, const Doubles& bound,
    const std::optional<Floats>& benchmark,
    const std::optional<Doubles>& variance, const Starts& row_starts,
    const Starts& col_starts,
    const std::vector<std::pair<double, double>>& thresholds,
    double unit_roundoff) {
  CheckStarts("row_starts", row_starts, golden.shape(0));
  CheckStarts("col_starts", col_starts, golden.shape(1));
  const Chunk chunk{DataOf<float>("actual", golden, actual),
                    DataOf("benchmark", golden, benchmark),
                    golden.data(),
                    DataOf<double>("bound", golden, bound),
                    DataOf("variance", golden, variance),
                    unit_roundoff,
                    row_starts,
                    col_starts};
  std::vector<Thresholds> pairs;
  for (const auto& [small, cancel] : thresholds)
    pairs.push_back({small, cancel});
  auto added = std::make_unique<Added>(Added{{},
                                             golden.shape(0),
                                             golden.shape(1),
                                             row_starts.size() - 1,
                                             col_starts.size() - 1,
                                             1 + 3 * pairs.size()});
  bool right = false;
  {
    nb::gil_scoped_release released;
    right = Add(chunk, pairs, &added->sums);
  }
  return right ? std::move(added) : nullptr;
}

// A read-only view, `[0, columns]` if the sums were not computed.
auto View(const std::vector<double>& values, size_t columns) {
  return nb::ndarray<nb::numpy, const double, nb::ndim<2>>(
      values.data(), {columns ? values.size() / columns : 0, columns},
      nb::handle());
}

void BindAdded(nb::module_& m) {
  nb::class_<Power>(m, "Power")
      .def_ro("element", &Power::element)
      .def_ro("row", &Power::row)
      .def_ro("whole", &Power::whole)
      .def_ro("judged", &Power::judged);
  nb::class_<Added> added(m, "Added");
  added.def_prop_ro("power", [](Added& a) { return a.sums.power; })
      .def_prop_ro("worst_error", [](Added& a) { return a.sums.worst_error; })
      .def_prop_ro("worst_of_bound",
                   [](Added& a) { return a.sums.worst_of_bound; })
      .def_prop_ro("worst_at", [](Added& a) { return a.sums.worst_at; });
  const auto array = [&added](const char* name, auto of, auto columns) {
    added.def_prop_ro(
        name, [=](Added& a) { return View(a.sums.*of, columns(a)); },
        nb::rv_policy::reference_internal);
  };
  const auto tiles = [](const Added& a) { return a.tile_columns; };
  array("regions", &Sums::regions, [](auto&) { return size_t{kNumColumns}; });
  array("square", &Sums::square, tiles);
  array("product", &Sums::product, tiles);
  array("information", &Sums::information, tiles);
  array("by_row", &Sums::by_row, tiles);
  array("by_column", &Sums::by_column, [](auto& a) { return a.columns; });
  array("row_square", &Sums::row_square, tiles);
  array("row_information", &Sums::row_information, tiles);
  array("row_variance", &Sums::row_variance, tiles);
}

NB_MODULE(_chunk_sums, m) {
  m.doc() = "Native part of parity_tests.judge.limits.";
  BindAdded(m);
  m.def("add", &AddOf, "actual"_a, "golden"_a, "bound"_a, "benchmark"_a.none(),
        "variance"_a.none(), "row_starts"_a, "col_starts"_a, "thresholds"_a,
        "unit_roundoff"_a);
}

}  // namespace
}  // namespace hpmoe_lanes
