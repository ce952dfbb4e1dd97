#include "backend_ascend/host/tiles/tile_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend_ascend/host/tiles/storage.h"

// Every body below is scalar code without branches on data; each instruction
// set compiles (and vectorises) its own copy of it.  Contraction is off, so
// all copies round alike.

// The next loop's iterations touch no element of each other.
#ifdef __clang__
#define HPMOE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define HPMOE_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace hpmoe {
namespace {

// exp(x) = 2^n * exp(r), x = n * ln 2 + r, |r| <= ln 2 / 2.  The polynomial is
// a minimax fit of (exp(r) - 1 - r) / r^2, relative error 4e-9.
HPMOE_INLINE float Exp(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e4p-1f;  // 15 bits: n * kLn2High is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  constexpr float kRound = 0x1.8p+23f;  // adding it rounds to an integer
  // Past these bounds the result is inf or 0 anyway.  NaN passes.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float shifted = __builtin_fmaf(x, kLog2E, kRound);
  const float n = shifted - kRound;
  float r = __builtin_fmaf(n, -kLn2High, x);
  r = __builtin_fmaf(n, -kLn2Low, r);
  float q = 0x1.6a23dp-10f;
  q = __builtin_fmaf(q, r, 0x1.123a2p-7f);
  q = __builtin_fmaf(q, r, 0x1.5558f2p-5f);
  q = __builtin_fmaf(q, r, 0x1.555492p-3f);
  q = __builtin_fmaf(q, r, 0x1.fffffcp-2f);
  q = __builtin_fmaf(q, r, 1.0f);
  q = __builtin_fmaf(q, r, 1.0f);
  // Two factors, so that 2^n itself may overflow or be subnormal: only the
  // last product rounds.
  const uint32_t exponent = FloatBits(shifted) - FloatBits(kRound) + 254u;
  const uint32_t half = exponent >> 1;
  return q * BitsFloat(half << 23) * BitsFloat((exponent - half) << 23);
}

HPMOE_INLINE void ExpBody(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) StoreFloat(Exp(x[i]), y + i);
}

// `out` may be `gate`: no element depends on another.
template <bool kSilu, bool kWeighted, bool kEarly, typename T>
HPMOE_INLINE void SwigluRow(const T* gate, const T* up, T* out, float weight,
                            int32_t cols) {
  HPMOE_INDEPENDENT
  for (int32_t j = 0; j < cols; ++j) {
    float v = LoadFloat(gate + j);
    v = kSilu ? v / (1.0f + Exp(-v)) : std::fabs(v);
    if (kEarly) v = RoundToBf16(v);
    v = v * LoadFloat(up + j);
    if (kWeighted) v = v * weight;
    StoreFloat(v, out + j);
  }
}

template <bool kSilu, bool kWeighted, bool kEarly, typename T>
HPMOE_INLINE void SwigluRows(const SwigluTile& t) {
  for (int32_t i = 0; i < t.rows; ++i) {
    SwigluRow<kSilu, kWeighted, kEarly>(
        static_cast<const T*>(t.gate) + i * t.ld_in,
        static_cast<const T*>(t.up) + i * t.ld_in,
        static_cast<T*>(t.out) + i * t.ld_out,
        kWeighted ? t.row_weight[i] : 1.0f, t.cols);
  }
}

template <bool kSilu, bool kEarly>
HPMOE_INLINE void SwigluStored(const SwigluTile& t) {
  const bool weighted = t.row_weight != nullptr;
  HPMOE_STORED(t.dtype, weighted ? SwigluRows<kSilu, true, kEarly, T>(t)
                                 : SwigluRows<kSilu, false, kEarly, T>(t));
}

HPMOE_INLINE void SwigluBody(const SwigluTile& t) {
  if (t.activation == kAbsolute) {
    SwigluStored<false, false>(t);
  } else if (t.early_rounding) {
    SwigluStored<true, true>(t);
  } else {
    SwigluStored<true, false>(t);
  }
}

// Lanes and order of RowDotTile.  `count` is a multiple of kDotLanes but in
// the last call of a row.
template <typename T, typename U>
HPMOE_INLINE void AddDot(const T* __restrict a, const U* __restrict b,
                         int32_t count, float* __restrict lanes) {
  // Lanes live in memory between calls: as scalars in registers across them
  // they would no longer vectorise.
  asm volatile("" : : "r"(lanes) : "memory");
  float sum[kDotLanes];
  for (int l = 0; l < kDotLanes; ++l) sum[l] = lanes[l];
  int32_t j = 0;
  for (; j + kDotLanes <= count; j += kDotLanes) {
#pragma GCC unroll 16
    for (int l = 0; l < kDotLanes; ++l) {
      sum[l] =
          __builtin_fmaf(LoadFloat(a + j + l), LoadFloat(b + j + l), sum[l]);
    }
  }
  for (int l = 0; l < kDotLanes; ++l) lanes[l] = sum[l];
  for (int l = 0; j + l < count; ++l) {
    lanes[l] =
        __builtin_fmaf(LoadFloat(a + j + l), LoadFloat(b + j + l), lanes[l]);
  }
}

HPMOE_INLINE float SumLanes(const float* lanes) {
  float sum = lanes[0];
  for (int l = 1; l < kDotLanes; ++l) sum = sum + lanes[l];
  return sum;
}

template <typename T>
HPMOE_INLINE void RowDotRows(const RowDotTile& t) {
  for (int32_t i = 0; i < t.rows; ++i) {
    float lanes[kDotLanes] = {};
    AddDot(static_cast<const T*>(t.a) + i * t.ld_a,
           static_cast<const T*>(t.b) + i * t.ld_b, t.cols, lanes);
    StoreFloat(SumLanes(lanes), t.out + i);
  }
}

HPMOE_INLINE void RowDotBody(const RowDotTile& t) {
  HPMOE_STORED(t.dtype, RowDotRows<T>(t));
}

constexpr int32_t kGradCols = 256;  // activations that stay in the first cache
static_assert(kGradCols % kDotLanes == 0, "chunks keep lanes aligned");

HPMOE_INLINE float Sign(float x) {
  const float positive = x > 0.0f ? 1.0f : x;  // 0 and NaN stay
  return x < 0.0f ? -1.0f : positive;
}

// `act` receives act(gate) * up where kDot.
template <bool kSilu, bool kWeighted, bool kDot, typename T>
HPMOE_INLINE void SwigluGradChunk(const T* __restrict d_out,
                                  const T* __restrict gate,
                                  const T* __restrict up, float weight,
                                  int32_t cols, T* __restrict d_gate,
                                  T* __restrict d_up, float* __restrict act) {
  for (int32_t j = 0; j < cols; ++j) {
    const float g = LoadFloat(gate + j);
    const float u = LoadFloat(up + j);
    float d = LoadFloat(d_out + j);
    if (kWeighted) d = d * weight;
    float act_gate = std::fabs(g), slope = Sign(g);
    if (kSilu) {
      const float e = Exp(-g);
      const float s = 1.0f / (1.0f + e);
      // Selects operands: a select of results would not vectorise.
      const float rest =
          __builtin_fmaf(g < 0.0f ? -1.0f : e, s, g < 0.0f ? 1.0f : 0.0f);
      act_gate = g / (1.0f + e);
      slope = __builtin_fmaf(act_gate, rest, s);
    }
    const float through = d * u;
    StoreFloat(through * slope, d_gate + j);
    StoreFloat(d * act_gate, d_up + j);
    if (kDot) act[j] = act_gate * u;
  }
}

template <bool kSilu, bool kWeighted, bool kDot, typename T>
HPMOE_INLINE void SwigluGradRows(const SwigluGradTile& t) {
  for (int32_t i = 0; i < t.rows; ++i) {
    float lanes[kDotLanes] = {};
    float act[kGradCols];
    const T* d_out = static_cast<const T*>(t.d_out) + i * t.ld_d_out;
    for (int32_t j = 0; j < t.cols; j += kGradCols) {
      const int32_t cols = std::min(kGradCols, t.cols - j);
      SwigluGradChunk<kSilu, kWeighted, kDot>(
          d_out + j, static_cast<const T*>(t.gate) + i * t.ld_in + j,
          static_cast<const T*>(t.up) + i * t.ld_in + j,
          kWeighted ? t.row_weight[i] : 1.0f, cols,
          static_cast<T*>(t.d_gate) + i * t.ld_grad + j,
          static_cast<T*>(t.d_up) + i * t.ld_grad + j, act);
      if (kDot) AddDot(d_out + j, act, cols, lanes);
    }
    if (kDot) StoreFloat(SumLanes(lanes), t.d_row_weight + i);
  }
}

template <bool kSilu, typename T>
HPMOE_INLINE void SwigluGradStored(const SwigluGradTile& t) {
  const bool dot = t.d_row_weight != nullptr;
  if (t.row_weight != nullptr) {
    dot ? SwigluGradRows<kSilu, true, true, T>(t)
        : SwigluGradRows<kSilu, true, false, T>(t);
  } else {
    dot ? SwigluGradRows<kSilu, false, true, T>(t)
        : SwigluGradRows<kSilu, false, false, T>(t);
  }
}

HPMOE_INLINE void SwigluGradBody(const SwigluGradTile& t) {
  if (t.activation == kAbsolute) {
    HPMOE_STORED(t.dtype, SwigluGradStored<false, T>(t));
  } else {
    HPMOE_STORED(t.dtype, SwigluGradStored<true, T>(t));
  }
}

template <typename T>
HPMOE_INLINE float NormScale(const NormTile& t, int32_t row) {
  if (t.plain) return 1.0f;
  const T* const y = static_cast<const T*>(t.y) + row * t.ld;
  float lanes[kDotLanes] = {};
  AddDot(y, y, t.cols, lanes);
  return 1.0f /
         std::sqrt(SumLanes(lanes) / static_cast<float>(t.cols) + t.epsilon);
}

template <typename T>
HPMOE_INLINE void NormRow(const T* __restrict y, const T* __restrict gain,
                          float scale, int32_t cols, T* __restrict out) {
  for (int32_t j = 0; j < cols; ++j) {
    StoreFloat(LoadFloat(y + j) * scale * LoadFloat(gain + j), out + j);
  }
}

// dot(y, dx * gain).
template <typename T>
HPMOE_INLINE float GainedDot(const T* dx, const T* y, const T* gain,
                             int32_t cols) {
  float lanes[kDotLanes] = {};
  float gained[kGradCols];
  for (int32_t j = 0; j < cols; j += kGradCols) {
    const int32_t count = std::min(kGradCols, cols - j);
    for (int32_t i = 0; i < count; ++i) {
      gained[i] = LoadFloat(dx + j + i) * LoadFloat(gain + j + i);
    }
    AddDot(y + j, gained, count, lanes);
  }
  return SumLanes(lanes);
}

template <typename T>
HPMOE_INLINE void NormGradRow(const T* __restrict dx, const T* __restrict y,
                              const T* __restrict gain, float scale,
                              float along, int32_t cols, T* __restrict out) {
  for (int32_t j = 0; j < cols; ++j) {
    const float gained = LoadFloat(dx + j) * LoadFloat(gain + j);
    StoreFloat((gained - LoadFloat(y + j) * along) * scale, out + j);
  }
}

template <typename T>
HPMOE_INLINE void NormRows(const NormTile& t) {
  const T* const gain = static_cast<const T*>(t.gain);
  for (int32_t i = 0; i < t.rows; ++i) {
    const T* const y = static_cast<const T*>(t.y) + i * t.ld;
    T* const out = static_cast<T*>(t.out) + i * t.ld;
    const float scale = NormScale<T>(t, i);
    if (t.work == Work::kNorm) {
      NormRow(y, gain, scale, t.cols, out);
      continue;
    }
    const T* const dx = static_cast<const T*>(t.dx) + i * t.ld;
    const float along = t.plain
                            ? 0.0f
                            : GainedDot(dx, y, gain, t.cols) * (scale * scale) /
                                  static_cast<float>(t.cols);
    NormGradRow(dx, y, gain, scale, along, t.cols, out);
  }
}

template <typename T>
HPMOE_INLINE void AddGains(const T* __restrict dx, const T* __restrict y,
                           float scale, int32_t cols, float* __restrict sums) {
  for (int32_t j = 0; j < cols; ++j) {
    sums[j] += LoadFloat(dx + j) * (LoadFloat(y + j) * scale);
  }
}

template <typename T>
HPMOE_INLINE void GainRows(const NormTile& t) {
  std::vector<float> sums(t.out_cols, 0.0f);
  for (int32_t i = 0; i < t.rows; ++i) {
    AddGains(static_cast<const T*>(t.dx) + i * t.ld,
             static_cast<const T*>(t.y) + i * t.ld + t.first_col,
             NormScale<T>(t, i), t.out_cols, sums.data());
  }
  for (int32_t j = 0; j < t.out_cols; ++j) {
    StoreFloat(sums[j], static_cast<float*>(t.out) + j);
  }
}

HPMOE_INLINE void NormBody(const NormTile& t) {
  if (t.work == Work::kGainGrad) {
    HPMOE_STORED(t.dtype, GainRows<T>(t));
  } else {
    HPMOE_STORED(t.dtype, NormRows<T>(t));
  }
}

template <typename T>
HPMOE_INLINE void ScaleRow(const T* __restrict x, float weight, int32_t cols,
                           T* __restrict out) {
  for (int32_t j = 0; j < cols; ++j) {
    StoreFloat(weight * LoadFloat(x + j), out + j);
  }
}

template <typename T>
HPMOE_INLINE void ScaleRowsStored(const ScaleRowsTile& t) {
  for (int32_t i = 0; i < t.rows; ++i) {
    const T* x = static_cast<const T*>(t.x) + i * t.ld_x;
    T* out = static_cast<T*>(t.out) + i * t.ld_out;
    if (t.weight != nullptr) {
      ScaleRow(x, t.weight[i], t.cols, out);
    } else {
      std::copy_n(x, t.cols, out);
    }
  }
}

HPMOE_INLINE void ScaleRowsBody(const ScaleRowsTile& t) {
  HPMOE_STORED(t.dtype, ScaleRowsStored<T>(t));
}

constexpr int32_t kCombineCols = 256;  // sums that stay in the first cache

template <bool kWeighted, typename T>
HPMOE_INLINE void CombineChunk(const CombineTile& t, int64_t first, int32_t col,
                               int32_t cols, T* __restrict y) {
  float sum[kCombineCols];
  for (int32_t k = 0; k < t.top_k; ++k) {
    const void* const at = t.rows != nullptr ? t.rows[first + k] : t.returned;
    const int64_t offset = t.rows != nullptr ? 0 : (first + k) * t.ld;
    const T* __restrict row = static_cast<const T*>(at) + offset + col;
    const float w = kWeighted ? t.weights[first + k] : 1.0f;
    for (int32_t j = 0; j < cols; ++j) {
      const float x = kWeighted ? w * LoadFloat(row + j) : LoadFloat(row + j);
      sum[j] = k == 0 ? x : sum[j] + x;
    }
  }
  for (int32_t j = 0; j < cols; ++j) StoreFloat(sum[j], y + j);
}

template <bool kWeighted, typename T>
HPMOE_INLINE void CombineRows(const CombineTile& t) {
  for (int32_t token = 0; token < t.tokens; ++token) {
    const int64_t row = static_cast<int64_t>(token) * t.top_k;
    for (int32_t j = 0; j < t.cols; j += kCombineCols) {
      CombineChunk<kWeighted>(t, row, j, std::min(kCombineCols, t.cols - j),
                              static_cast<T*>(t.y) + token * t.ld_y + j);
    }
  }
}

HPMOE_INLINE void CombineBody(const CombineTile& t) {
  const bool weighted = t.weights != nullptr;
  HPMOE_STORED(t.dtype,
               weighted ? CombineRows<true, T>(t) : CombineRows<false, T>(t));
}

struct Kernels {
  void (*exp)(const float*, float*, int64_t);
  void (*swiglu)(const SwigluTile&);
  void (*combine)(const CombineTile&);
  void (*swiglu_grad)(const SwigluGradTile&);
  void (*scale_rows)(const ScaleRowsTile&);
  void (*row_dot)(const RowDotTile&);
  void (*norm)(const NormTile&);
};

// What an instruction set makes of the bodies: functions of attribute `target`.
#define HPMOE_KERNELS(name, target)                                            \
  target void Exp##name(const float* x, float* y, int64_t n) {                 \
    ExpBody(x, y, n);                                                          \
  }                                                                            \
  target void Swiglu##name(const SwigluTile& t) { SwigluBody(t); }             \
  target void Combine##name(const CombineTile& t) { CombineBody(t); }          \
  target void SwigluGrad##name(const SwigluGradTile& t) { SwigluGradBody(t); } \
  target void ScaleRows##name(const ScaleRowsTile& t) { ScaleRowsBody(t); }    \
  target void RowDot##name(const RowDotTile& t) { RowDotBody(t); }             \
  target void Norm##name(const NormTile& t) { NormBody(t); }                   \
  constexpr Kernels k##name = {                                                \
      Exp##name,       Swiglu##name, Combine##name, SwigluGrad##name,          \
      ScaleRows##name, RowDot##name, Norm##name}

HPMOE_KERNELS_OF_ISA(HPMOE_KERNELS)

// |got - exp(x)| in units of the float32 spacing at exp(x).  The double exp
// errs by less than 1e-8 of such a unit.
double UlpError(float x, float got) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (std::isnan(x)) return std::isnan(got) ? 0.0 : kWrong;
  const double want = std::exp(static_cast<double>(x));
  const float rounded = static_cast<float>(want);
  if (std::isinf(rounded) || std::isinf(got)) {
    return rounded == got ? 0.0 : kWrong;
  }
  if (std::isnan(got)) return kWrong;
  const int exponent = want < 0x1p-126 ? -126 : std::ilogb(want);
  return std::abs(got - want) / std::ldexp(1.0, exponent - 23);
}

}  // namespace

void RunSwigluTile(const SwigluTile& tile, Isa isa) {
  KernelsOf(isa).swiglu(tile);
}

void RunCombineTile(const CombineTile& tile, Isa isa) {
  KernelsOf(isa).combine(tile);
}

void RunSwigluGradTile(const SwigluGradTile& tile, Isa isa) {
  KernelsOf(isa).swiglu_grad(tile);
}

void RunScaleRowsTile(const ScaleRowsTile& tile, Isa isa) {
  KernelsOf(isa).scale_rows(tile);
}

void RunRowDotTile(const RowDotTile& tile, Isa isa) {
  KernelsOf(isa).row_dot(tile);
}

void RunNormTile(const NormTile& tile, Isa isa) { KernelsOf(isa).norm(tile); }

void RunExp(const float* x, float* y, int64_t count, Isa isa) {
  KernelsOf(isa).exp(x, y, count);
}

double ExpMaxUlp(uint64_t begin, uint64_t end, Isa isa) {
  constexpr uint64_t kChunk = 4096;
  std::vector<float> x(kChunk), y(kChunk);
  double worst = 0;
  for (uint64_t chunk = begin; chunk < end; chunk += kChunk) {
    const uint64_t count = std::min(kChunk, end - chunk);
    for (uint64_t i = 0; i < count; ++i) {
      x[i] = BitsFloat(static_cast<uint32_t>(chunk + i));
    }
    RunExp(x.data(), y.data(), static_cast<int64_t>(count), isa);
    for (uint64_t i = 0; i < count; ++i) {
      worst = std::max(worst, UlpError(x[i], y[i]));
    }
  }
  return worst;
}

}  // namespace hpmoe
