#include "backend_ascend/host/tiles/codes/code_tiles.h"

#include <vector>

#include "backend_ascend/host/tiles/codes/code_rows.h"
#include "backend_ascend/host/tiles/storage.h"
#include "backend_ascend/host/tiles/tile_kernels.h"

// Bodies as in tile_kernels.cc: scalar, without branches on data, compiled for
// each instruction set, contraction off.

namespace hpmoe {
namespace {

constexpr float kTop = 127.0f;  // the largest code

// What a storage type makes of a value.
template <typename T>
HPMOE_INLINE float Rounded(float x) {
  T stored;
  StoreFloat(x, &stored);
  return LoadFloat(&stored);
}

// To the nearest whole number, ties to even; NaN is 0.
HPMOE_INLINE int8_t CodeOf(float scaled) {
  constexpr float kRound = 0x1.8p+23f;  // adding it rounds to an integer
  scaled = scaled > -128.0f ? scaled : -128.0f;
  scaled = scaled < kTop ? scaled : kTop;
  return static_cast<int8_t>(FloatBits(scaled + kRound) & 0xFFu);
}

// Magnitudes as bits: NaN is the largest, on every instruction set.
HPMOE_INLINE uint32_t LargestBits(const float* x, int32_t count) {
  uint32_t largest = 0;
  for (int32_t j = 0; j < count; ++j) {
    const uint32_t bits = FloatBits(x[j]) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

HPMOE_INLINE void QuantiseRow(const float* __restrict x, int32_t count,
                              int8_t* __restrict codes, float* scale) {
  const float largest = BitsFloat(LargestBits(x, count));
  const float factor = largest == 0.0f ? 0.0f : kTop / largest;
  StoreFloat(largest == 0.0f ? 0.0f : 1.0f / factor, scale);
  for (int32_t j = 0; j < count; ++j) {
    const float scaled = x[j] * factor;
    codes[j] = CodeOf(scaled == scaled ? scaled : 0.0f);
  }
}

template <typename T>
HPMOE_INLINE void Widen(const T* __restrict x, int32_t count,
                        float* __restrict wide) {
  for (int32_t j = 0; j < count; ++j) wide[j] = LoadFloat(x + j);
}

template <typename T>
HPMOE_INLINE void QuantiseStored(const QuantiseRowsTile& t, float* wide) {
  for (int32_t i = 0; i < t.rows; ++i) {
    Widen(static_cast<const T*>(t.x) + i * t.ld_x, t.cols, wide);
    QuantiseRow(wide, t.cols, t.codes + i * t.ld_codes, t.scales + i);
  }
}

HPMOE_INLINE void QuantiseBody(const QuantiseRowsTile& t, float* wide) {
  HPMOE_STORED(t.dtype, QuantiseStored<T>(t, wide));
}

HPMOE_INLINE float MeaningOf(int32_t sum, float row_scale, float col_scale) {
  return static_cast<float>(sum) * row_scale * col_scale;
}

// What the sums of a row mean, as it is stored, wide.
template <typename T>
HPMOE_INLINE void MeanRow(const int32_t* __restrict sums, float row_scale,
                          const float* __restrict col_scales, int32_t cols,
                          float* __restrict wide) {
  for (int32_t j = 0; j < cols; ++j) {
    wide[j] = Rounded<T>(MeaningOf(sums[j], row_scale, col_scales[j]));
  }
}

// Gate and up of a row, side by side.
template <typename T>
HPMOE_INLINE void MeanGates(const CodeSwigluTile& t, float* wide) {
  MeanRow<T>(t.gate, *t.row_scales, t.gate_scales, t.cols, wide);
  MeanRow<T>(t.up, *t.row_scales, t.up_scales, t.cols, wide + t.cols);
}

HPMOE_INLINE void GatesBody(const CodeSwigluTile& t, float* wide) {
  HPMOE_STORED(t.dtype, MeanGates<T>(t, wide));
}

template <typename T>
HPMOE_INLINE void RoundRow(float* wide, int32_t count) {
  for (int32_t j = 0; j < count; ++j) wide[j] = Rounded<T>(wide[j]);
}

// Codes of a row that is stored first.
HPMOE_INLINE void StoredBody(const CodeSwigluTile& t, float* wide) {
  HPMOE_STORED(t.dtype, RoundRow<T>(wide, t.cols));
  QuantiseRow(wide, t.cols, t.codes, t.scales);
}

template <typename T>
HPMOE_INLINE void DequantiseRow(const int32_t* __restrict sums, float row_scale,
                                const float* __restrict col_scales,
                                int32_t cols, T* __restrict out) {
  for (int32_t j = 0; j < cols; ++j) {
    StoreFloat(MeaningOf(sums[j], row_scale, col_scales[j]), out + j);
  }
}

template <typename T>
HPMOE_INLINE void DequantiseStored(const DequantiseRowsTile& t) {
  for (int32_t i = 0; i < t.rows; ++i) {
    DequantiseRow(t.sums + i * t.ld_sums, t.row_scales[i], t.col_scales, t.cols,
                  static_cast<T*>(t.out) + i * t.ld_out);
  }
}

HPMOE_INLINE void DequantiseBody(const DequantiseRowsTile& t) {
  HPMOE_STORED(t.dtype, DequantiseStored<T>(t));
}

struct Kernels {
  void (*quantise)(const QuantiseRowsTile&, float*);
  void (*gates)(const CodeSwigluTile&, float*);   // of a row
  void (*stored)(const CodeSwigluTile&, float*);  // of a row
  void (*dequantise)(const DequantiseRowsTile&);
};

#define HPMOE_KERNELS(name, target)                                       \
  target void Quantise##name(const QuantiseRowsTile& t, float* wide) {    \
    QuantiseBody(t, wide);                                                \
  }                                                                       \
  target void Gates##name(const CodeSwigluTile& t, float* wide) {         \
    GatesBody(t, wide);                                                   \
  }                                                                       \
  target void Stored##name(const CodeSwigluTile& t, float* wide) {        \
    StoredBody(t, wide);                                                  \
  }                                                                       \
  target void Dequantise##name(const DequantiseRowsTile& t) {             \
    DequantiseBody(t);                                                    \
  }                                                                       \
  constexpr Kernels k##name = {Quantise##name, Gates##name, Stored##name, \
                               Dequantise##name}

HPMOE_KERNELS_OF_ISA(HPMOE_KERNELS)

// So many floats of the thread's own.
float* WideRow(int64_t cols) {
  thread_local std::vector<float> row;
  if (row.size() < static_cast<size_t>(cols)) row.resize(cols);
  return row.data();
}

}  // namespace

void RunQuantiseRowsTile(const QuantiseRowsTile& tile, Isa isa) {
  KernelsOf(isa).quantise(tile, WideRow(tile.cols));
}

void RunCodeSwigluTile(const CodeSwigluTile& tile, Isa isa) {
  float* const wide = WideRow(2 * int64_t{tile.cols});
  for (int32_t i = 0; i < tile.rows; ++i) {
    const CodeSwigluTile row = RowsOf(tile, i, 1);
    KernelsOf(isa).gates(row, wide);
    SwigluTile activation{};
    activation.gate = activation.out = wide;
    activation.up = wide + tile.cols;
    activation.ld_in = activation.ld_out = tile.cols;
    activation.rows = 1;
    activation.cols = tile.cols;
    activation.row_weight = row.row_weight;
    activation.dtype = kFloat32;
    activation.activation = tile.activation;
    RunSwigluTile(activation, isa);
    KernelsOf(isa).stored(row, wide);
  }
}

void RunDequantiseRowsTile(const DequantiseRowsTile& tile, Isa isa) {
  KernelsOf(isa).dequantise(tile);
}

}  // namespace hpmoe
