// Products of a few rows with one expert's stored weights.
//
// BLAS packs a matrix before it multiplies, and numpy widens it as a whole: for
// the few rows of an expert this costs more than the products.  Here a panel of
// the stored weights is widened once and stays in cache for all rows.

#ifndef PARITY_TESTS_JUDGE_LIMITS_WEIGHTS_PRODUCTS_H_
#define PARITY_TESTS_JUDGE_LIMITS_WEIGHTS_PRODUCTS_H_

#include <cstdint>

namespace hpmoe_limits {

// Sizes of rows `[rows, depth]` times weights `[depth, columns]`.
struct Sizes {
  int64_t rows, depth, columns;
};

// A bfloat16, as stored.
enum class Bfloat16 : uint16_t {};

// Adds rows times weights to `total`, `[rows, columns]`, which holds zeros.  If
// `squares`, `[rows, columns]` zeros, is not null, the squares of the prefixes
// of every `block` terms are added there, without that of the whole sum.
template <class Weight>
void Multiply(const double* rows, const Weight* weights, const Sizes& sizes,
              int64_t block, double* total, double* squares);
void Multiply(const float* rows, const float* weights, const Sizes& sizes,
              float* total);

// Writes float32 magnitudes of weights `[depth, columns]`, at most one, and the
// squares of these.  Magnitudes are divided by powers of two of their row and
// of their column, which `row_scale` and `column_scale` receive.  Returns false
// if a weight is not finite; the arrays are then incomplete.
template <class Weight>
bool MeasureWeights(const Weight* weights, int64_t depth, int64_t columns,
                    float* size, float* squares, double* row_scale,
                    double* column_scale);

}  // namespace hpmoe_limits

#endif  // PARITY_TESTS_JUDGE_LIMITS_WEIGHTS_PRODUCTS_H_
