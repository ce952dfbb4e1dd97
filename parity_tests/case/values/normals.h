// Normal values of seeded streams, scaled, and stored where they belong.
//
// numpy draws them in a dozen passes over float64 temporaries; here each number
// is made, scaled and rounded in registers.  The bits are numpy's.

#ifndef PARITY_TESTS_CASE_VALUES_NORMALS_H_
#define PARITY_TESTS_CASE_VALUES_NORMALS_H_

#include <cstdint>

namespace hpmoe_values {

// A PCG64 as numpy has it: the 128 bits of its state, and of its increment.
struct Stream {
  uint64_t state_high, state_low, increment_high, increment_low;
};

// What is drawn: a matrix `[rows, columns]`, row after row.
struct Scales {
  const double* rows;     // a factor of each row
  const double* columns;  // and of each column
  int64_t num_rows, num_columns;
  double deviation;  // of the sum of a word's four quarters
  double divisor;    // of all
};

// Each is ((quarters / deviation) * (row * column)) / divisor, every operation
// rounded to double, and the last one to the type that is stored: through
// float, as ml_dtypes does, where that is bfloat16.
void Draw(const Stream& stream, const Scales& scales, float* values);
void DrawBfloat16(const Stream& stream, const Scales& scales, uint16_t* values);

}  // namespace hpmoe_values

#endif  // PARITY_TESTS_CASE_VALUES_NORMALS_H_
