// Products of a few rows with one expert's stored weights.
//
// BLAS packs a matrix before it multiplies, and numpy widens it as a whole: for
// the few rows of an expert that costs more than the products.  Here a panel of
// the stored weights is widened once, and all rows meet it in a core's cache.

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

// Writes rows times weights to `total`, `[rows, columns]` zeros.  If `squares`
// is not null, `[rows, columns]` zeros, the squares of what a sum is every
// `block` terms are added there, the whole sum's apart.
template <class Weight>
void Multiply(const double* rows, const Weight* weights, const Sizes& sizes,
              int64_t block, double* total, double* squares);
void Multiply(const float* rows, const float* weights, const Sizes& sizes,
              float* total);

// Weights `[depth, columns]` as float32 magnitudes, at most one, and squares of
// them.  They were multiplied by powers of two: over those of their row and of
// their column, which stand in `row_scale` and `column_scale`.  Returns false,
// and leaves arrays as they are or half done, if a weight is not finite.
template <class Weight>
bool MeasureWeights(const Weight* weights, int64_t depth, int64_t columns,
                    float* size, float* squares, double* row_scale,
                    double* column_scale);

}  // namespace hpmoe_limits

#endif  // PARITY_TESTS_JUDGE_LIMITS_WEIGHTS_PRODUCTS_H_
