// Sums of bfloat16 in order even_odd_32 by AMX.
//
// A pair has its first element in the upper half, as PairKernels have it, where
// TDPBF16PS has the odd one.  So its even chain is the order's odd one, and the
// other way round; their sum is the same.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backend_ascend/host/tiles/amx/amx_tiles.h"
#include "backend_ascend/host/tiles/gemm_kernels.h"

#if HPMOE_X86

// The model runs on CPUs without these.
#if defined(HPMOE_AMX_MODEL)
#define HPMOE_AMX_BESIDE
#else
#define HPMOE_AMX_BESIDE HPMOE_AVX512
#endif

namespace hpmoe {
namespace {

using amx::kRowBytes;
using amx::kSide;

// Four tiles of sums (0 to 3), two of a (4, 5), two of b (6, 7): each tile that
// is loaded is multiplied twice.
constexpr int32_t kRows = 2 * kSide, kCols = 2 * kSide;
constexpr int64_t kSumBytes = 4 * kCols;
static_assert(2 * kSide == kEvenOddTerms, "a tile has the pairs of a step");

constexpr uint32_t kNegativeZeros = 0x80008000;  // a pair of -0

// Rows of sums that this thread's tiles are configured for; 0: they are not.
thread_local int32_t configured_rows = 0;

void ConfigureFor(int32_t rows) {
  if (rows == configured_rows) return;
  const auto upper = static_cast<uint8_t>(std::min(rows, kSide));
  const auto lower = static_cast<uint8_t>(rows - upper);
  const uint8_t all[amx::kNumTiles] = {upper, upper, lower, lower,
                                       upper, lower, kSide, kSide};
  amx::TileConfig config = {};
  config.palette = 1;
  for (int i = 0; i < amx::kNumTiles; ++i) {
    config.rows[i] = all[i];
    // A tile has both or neither.
    config.row_bytes[i] = all[i] > 0 ? kRowBytes : 0;
  }
  amx::Configure(config);
  configured_rows = rows;
}

// One step: of a [rows, kSide] pairs, of b [kSide, kCols] pairs.
HPMOE_INLINE void Step(const float* a, const float* b, int32_t rows) {
  amx::Load<4>(a, kRowBytes);
  amx::Load<6>(b, kSumBytes);
  amx::Load<7>(b + kSide, kSumBytes);
  amx::MultiplyPairs<0, 4, 6>();
  amx::MultiplyPairs<1, 4, 7>();
  if (rows <= kSide) return;
  amx::Load<5>(a + kSide * kSide, kRowBytes);
  amx::MultiplyPairs<2, 5, 6>();
  amx::MultiplyPairs<3, 5, 7>();
}

// A step of fewer pairs.  Those that fill it have the product -0, which changes
// no chain, not even one that is -0.
void LastStep(const float* a, const float* b, int32_t rows, int32_t pairs) {
  alignas(64) float whole_a[kRows][kSide] = {};
  alignas(64) float whole_b[kSide][kCols];
  for (int32_t i = 0; i < rows; ++i) {
    std::memcpy(whole_a[i], a + i * pairs, sizeof(float) * pairs);
  }
  std::memcpy(whole_b, b, sizeof(whole_b[0]) * pairs);
  for (int32_t p = pairs; p < kSide; ++p) {
    std::fill_n(whole_b[p], kCols, BitsFloat(kNegativeZeros));
  }
  Step(whole_a[0], whole_b[0], rows);
}

template <bool kStore>
HPMOE_INLINE void MoveSums(float* sums, int32_t rows) {
  float* const lower = sums + kSide * kCols;
  if constexpr (kStore) {
    amx::Store<0>(sums, kSumBytes);
    amx::Store<1>(sums + kSide, kSumBytes);
    if (rows <= kSide) return;
    amx::Store<2>(lower, kSumBytes);
    amx::Store<3>(lower + kSide, kSumBytes);
  } else {
    amx::Load<0>(sums, kSumBytes);
    amx::Load<1>(sums + kSide, kSumBytes);
    if (rows <= kSide) return;
    amx::Load<2>(lower, kSumBytes);
    amx::Load<3>(lower + kSide, kSumBytes);
  }
}

// Through memory of its own: a tile may be narrower than the instructions'.
HPMOE_AMX_BESIDE void Multiply(const MicroTile& t) {
  alignas(64) float sums[kRows][kCols] = {};
  for (int32_t i = 0; t.start != nullptr && i < t.rows; ++i) {
    std::copy_n(t.start + i * t.ld_start, t.cols, sums[i]);
  }
  ConfigureFor(t.rows);
  MoveSums<false>(sums[0], t.rows);
  for (int32_t p = 0; p < t.k; p += kSide) {
    const int32_t pairs = std::min(kSide, t.k - p);
    const float* const a = t.a + p * t.rows;
    const float* const b = t.panel + p * kCols;
    pairs == kSide ? Step(a, b, t.rows) : LastStep(a, b, t.rows, pairs);
  }
  MoveSums<true>(sums[0], t.rows);
  for (int32_t i = 0; i < t.rows; ++i) {
    for (int32_t j = 0; j < t.cols; ++j) {
      t.c[i * t.ldc + j] = CanonicalNan(sums[i][j]);
    }
  }
}

void Release() {
  if (configured_rows == 0) return;
  amx::Release();
  configured_rows = 0;
}

HPMOE_AMX_BESIDE void Pack(const Bf16* const* in, int64_t first, int32_t rows,
                           int32_t cols, uint16_t odd, float* out,
                           int32_t ld_out) {
  PackPairBody<kCols, kSide>(in, first, rows, cols, odd, out, ld_out);
}

HPMOE_AMX_BESIDE void Transpose(const Bf16* const* in, int64_t first,
                                int32_t rows, int32_t cols, uint16_t odd,
                                float* out, int32_t ld_out) {
  TransposePairBody(in, first, rows, cols, odd, out, ld_out);
}

// Where the pairs of a's row 0 lie that begin with term `p` of `depth`, and how
// far the next row's are: step by step, [rows, pairs of the step].
struct PackedPairs {
  float* row;
  int32_t ld;
};

HPMOE_INLINE PackedPairs PairsFrom(float* out, int32_t p, int32_t depth,
                                   int32_t rows) {
  const int32_t step = p / kEvenOddTerms * kEvenOddTerms;
  const int32_t terms = std::min(kEvenOddTerms, depth - step);
  return {out + step / 2 * rows + (p - step) / 2, (terms + 1) / 2};
}

// As PairKernels::pack and transpose, of what goes into tiles of a.
HPMOE_AMX_BESIDE void PackA(const Bf16* const* in, int64_t first, int32_t depth,
                            int32_t rows, uint16_t odd, float* out, int32_t) {
  for (int32_t p = 0; p < depth; p += 2) {
    const PackedPairs to = PairsFrom(out, p, depth, rows);
    for (int32_t i = 0; i < rows; ++i) {
      const Bf16 second = p + 1 < depth ? in[p + 1][first + i] : Bf16{odd};
      to.row[i * to.ld] = PairOf(in[p][first + i], second);
    }
  }
}

HPMOE_AMX_BESIDE void TransposeA(const Bf16* const* in, int64_t first,
                                 int32_t rows, int32_t depth, uint16_t odd,
                                 float* out, int32_t) {
  for (int32_t step = 0; step < depth; step += kEvenOddTerms) {
    const PackedPairs to = PairsFrom(out, step, depth, rows);
    for (int32_t i = 0; i < rows; ++i) {
      const Bf16* const from = in[i] + first + step;
      const int32_t terms = std::min(kEvenOddTerms, depth - step);
      for (int32_t p = 0; p < terms; p += 2) {
        const Bf16 second = p + 1 < terms ? from[p + 1] : Bf16{odd};
        to.row[i * to.ld + p / 2] = PairOf(from[p], second);
      }
    }
  }
}

constexpr PairKernels kPairs = {Pack,  Transpose,  Multiply, kRows,
                                PackA, TransposeA, Release};

}  // namespace

const PairKernels kEvenOddAmx = kPairs;

}  // namespace hpmoe

#endif  // HPMOE_X86
