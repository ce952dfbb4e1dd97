#include "parity_tests/case/values/normals.h"

#include <algorithm>
#include <cstring>

// Clang has no clones of a function that all calls are inlined into.
#if defined(__x86_64__) && !defined(__clang__)
#define HPMOE_WIDEST __attribute__((target_clones("avx2", "default"), flatten))
#else
#define HPMOE_WIDEST
#endif

namespace hpmoe_values {
namespace {

// NOLINTNEXTLINE: no other type has 128 bits.
__extension__ using Wide = unsigned __int128;

Wide Join(uint64_t high, uint64_t low) { return (Wide{high} << 64) | low; }

// The multiplier of PCG's 128-bit generator.
const Wide kMultiplier = Join(2549297995355413924U, 4865540595714422341U);
// Words of one stream that are on their way at once: a product waits for none
// of the others.
constexpr int kLanes = 4;
// Words between two looks at the scales: they lie in a core's first cache.
constexpr int64_t kPanel = 1024;

// Returns a word of the state that was reached (PCG XSL RR 128/64).
uint64_t WordOf(Wide state) {
  const uint64_t high = state >> 64,
                 mixed = high ^ static_cast<uint64_t>(state);
  const uint64_t turn = high >> 58;
  return (mixed >> turn) | (mixed << (-turn & 63));
}

// The words of a stream in order, as `random_raw` has them.
class Words {
 public:
  explicit Words(const Stream& stream) {
    const Wide increment = Join(stream.increment_high, stream.increment_low);
    Wide state = Join(stream.state_high, stream.state_low);
    leap_ = 1;
    for (auto& lane : lanes_) {
      state = state * kMultiplier + increment;
      lane = state;
      step_ = step_ * kMultiplier + increment;
      leap_ *= kMultiplier;
    }
  }

  // Takes the next words up, a multiple of `kLanes`.
  void Take(int64_t count, uint64_t* words) {
    Wide lanes[kLanes];
    std::copy(lanes_, lanes_ + kLanes, lanes);
    for (int64_t i = 0; i < count; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        words[i + lane] = WordOf(lanes[lane]);
        lanes[lane] = lanes[lane] * leap_ + step_;
      }
    }
    std::copy(lanes, lanes + kLanes, lanes_);
  }

 private:
  Wide lanes_[kLanes], leap_ = 1, step_ = 0;
};

void Store(double value, float* to) { *to = static_cast<float>(value); }

// Rounds to nearest, to even between two.
void Store(double value, uint16_t* to) {
  const auto narrow = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof(bits));
  *to = static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Stores scaled words of one row, from a column on.
template <class Value>
void StoreRow(const uint64_t* words, int64_t count, double row,
              const double* columns, const Scales& scales, Value* values) {
  constexpr int32_t kMean = 2 * 0xFFFF;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t word = words[i];
    const auto low = static_cast<uint32_t>(word);
    const auto high = static_cast<uint32_t>(word >> 32);
    const uint32_t sum =
        (low & 0xFFFF) + (low >> 16) + (high & 0xFFFF) + (high >> 16);
    const double drawn = static_cast<int32_t>(sum) - kMean;
    const double scaled = (drawn / scales.deviation) * (row * columns[i]);
    Store(scaled / scales.divisor, values + i);
  }
}

template <class Value>
void DrawOf(const Stream& stream, const Scales& scales, Value* values) {
  Words words(stream);
  uint64_t panel[kPanel];
  const int64_t size = scales.num_rows * scales.num_columns;
  int64_t row = 0, column = 0;
  for (int64_t first = 0; first < size; first += kPanel) {
    words.Take(kPanel, panel);
    const int64_t count = std::min(kPanel, size - first);
    for (int64_t i = 0; i < count;) {
      const int64_t most = std::min(count - i, scales.num_columns - column);
      StoreRow(panel + i, most, scales.rows[row], scales.columns + column,
               scales, values + first + i);
      i += most;
      column += most;
      if (column == scales.num_columns) {
        column = 0;
        ++row;
      }
    }
  }
}

}  // namespace

HPMOE_WIDEST void Draw(const Stream& stream, const Scales& scales,
                       float* values) {
  DrawOf(stream, scales, values);
}

HPMOE_WIDEST void DrawBfloat16(const Stream& stream, const Scales& scales,
                               uint16_t* values) {
  DrawOf(stream, scales, values);
}

}  // namespace hpmoe_values
