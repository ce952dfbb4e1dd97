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

// Has products use registers of at most that many bytes, and returns how many
// they then use.  Bits are the same for all that can multiply and add at once.
int64_t LimitRegisters(int64_t bytes);

// Adds rows times weights to `total`, `[rows, columns]`, which holds zeros.  If
// `squares`, `[rows, columns]` zeros, is not null, the squares of the prefixes
// of every `block` terms are added there, without that of the whole sum.
template <class Weight>
void Multiply(const double* rows, const Weight* weights, const Sizes& sizes,
              int64_t block, double* total, double* squares);

// Writes the scales of the magnitudes of weights `[depth, columns]`: powers of
// two of each row and of each column.  Divided by both, a magnitude is at most
// one.  Returns false if a weight is not finite; the scales are then
// incomplete.
template <class Weight>
bool MeasureWeights(const Weight* weights, int64_t depth, int64_t columns,
                    double* row_scale, double* column_scale);

// Writes rows times the scaled magnitudes of weights to `total`,
// `[rows, columns]`; `squared`: times their squares.
template <class Weight>
void MultiplyMagnitudes(const float* rows, const Weight* weights,
                        const Sizes& sizes, const double* row_scale,
                        const double* column_scale, bool squared, float* total);

}  // namespace hpmoe_limits

#endif  // PARITY_TESTS_JUDGE_LIMITS_WEIGHTS_PRODUCTS_H_
