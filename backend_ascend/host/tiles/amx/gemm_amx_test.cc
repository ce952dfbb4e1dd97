// Multiplies by the source that AMX runs, on a model of its instructions, and
// prints the results' bits.  Reads from stdin: m, n, k, whether a and b are
// stored transposed, then both as bfloat16 bits in hexadecimal.

#include <cstdio>
#include <cstdlib>
#include <vector>

#define HPMOE_AMX_MODEL 1
#include "backend_ascend/host/tiles/amx/amx_tiles.h"
#include "backend_ascend/host/tiles/gemm.h"
#include "backend_ascend/host/tiles/storage.h"

namespace hpmoe {
namespace amx {
namespace {

struct Tile {
  uint32_t at[kSide][kSide];
};

struct Machine {
  bool configured = false;
  TileConfig config;
  Tile tiles[kNumTiles];
} machine;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::printf("broken: %s\n", what);
  std::exit(1);
}

bool IsWhole(int tile) {
  return machine.configured && machine.config.rows[tile] > 0 &&
         machine.config.rows[tile] <= kSide &&
         machine.config.row_bytes[tile] == kRowBytes;
}

float Flushed(float x) {
  const uint32_t bits = FloatBits(x);
  return (bits & 0x7F800000u) == 0 ? BitsFloat(bits & 0x80000000u) : x;
}

float Product(uint32_t a, uint32_t b, float sum) {
  return Flushed(__builtin_fmaf(Flushed(BitsFloat(a)), Flushed(BitsFloat(b)),
                                Flushed(sum)));
}

}  // namespace

void Configure(const TileConfig& config) {
  Require(config.palette == 1 && config.start_row == 0, "palette");
  for (int i = 0; i < 16; ++i) {
    Require((config.rows[i] == 0) == (config.row_bytes[i] == 0),
            "rows without bytes, or bytes without rows");
    Require(i < kNumTiles || config.rows[i] == 0, "a tile that there is not");
  }
  machine = {true, config, {}};
}

void Release() { machine.configured = false; }

template <int kTile>
void Load(const void* from, int64_t stride) {
  Require(IsWhole(kTile), "a load into a tile that is not configured");
  machine.tiles[kTile] = {};
  for (int i = 0; i < machine.config.rows[kTile]; ++i) {
    std::memcpy(machine.tiles[kTile].at[i],
                static_cast<const char*>(from) + i * stride, kRowBytes);
  }
}

template <int kTile>
void Store(void* to, int64_t stride) {
  Require(IsWhole(kTile), "a store from a tile that is not configured");
  for (int i = 0; i < machine.config.rows[kTile]; ++i) {
    std::memcpy(static_cast<char*>(to) + i * stride, machine.tiles[kTile].at[i],
                kRowBytes);
  }
}

template <int kSum, int kA, int kB>
void MultiplyPairs() {
  Require(IsWhole(kSum) && IsWhole(kA) && IsWhole(kB), "products of no tiles");
  Require(machine.config.rows[kSum] == machine.config.rows[kA] &&
              machine.config.rows[kB] == kSide,
          "tiles that do not fit each other");
  for (int i = 0; i < machine.config.rows[kSum]; ++i) {
    for (int j = 0; j < kSide; ++j) {
      float even = 0, odd = 0;
      for (int p = 0; p < kSide; ++p) {
        const uint32_t a = machine.tiles[kA].at[i][p];
        const uint32_t b = machine.tiles[kB].at[p][j];
        even = Product(a << 16, b << 16, even);
        odd = Product(a & 0xFFFF0000u, b & 0xFFFF0000u, odd);
      }
      uint32_t& sum = machine.tiles[kSum].at[i][j];
      sum = FloatBits(Flushed(Flushed(BitsFloat(sum)) + Flushed(even + odd)));
    }
  }
}

}  // namespace amx
}  // namespace hpmoe

#include "backend_ascend/host/tiles/amx/gemm_amx.cc"

namespace hpmoe {

// In place of what AVX-512 would be: the model needs no more of its kernels.
const GemmKernels kGemmAvx512Amx = [] {
  GemmKernels kernels = kGemmPortable;
  kernels.panel_cols = kCols;
  kernels.even_odd_pairs = &kEvenOddAmx;
  return kernels;
}();
const GemmKernels kGemmAvx2 = kGemmPortable;
const GemmKernels kGemmAvx512 = kGemmPortable;
const GemmKernels kGemmAvx512Bf16 = kGemmPortable;

std::vector<uint16_t> Numbers(int64_t count) {
  std::vector<uint16_t> read(count);
  for (uint16_t& x : read) {
    unsigned bits;
    if (std::scanf("%x", &bits) != 1) std::exit(2);
    x = static_cast<uint16_t>(bits);
  }
  return read;
}

int Main() {
  int m, n, k, trans_a, trans_b;
  while (std::scanf("%d %d %d %d %d", &m, &n, &k, &trans_a, &trans_b) == 5) {
    const std::vector<uint16_t> a = Numbers(int64_t{m} * k);
    const std::vector<uint16_t> b = Numbers(int64_t{k} * n);
    std::vector<float> sums(int64_t{m} * n);
    GemmScratch scratch;
    GemmTile tile{
        a.data(), b.data(), nullptr, trans_a ? m : k, trans_b ? k : n, n,
        m,        n,        k,       kBFloat16};
    tile.trans_a = trans_a != 0;
    tile.trans_b = trans_b != 0;
    tile.carry = sums.data();
    tile.ld_carry = n;
    tile.carry_out = true;
    tile.order = kEvenOdd32;
    RunGemmTile(tile, Isa::kAvx512Amx, &scratch);
    amx::Require(!amx::machine.configured, "tiles were not released");
    for (const float x : sums) std::printf("%08x\n", FloatBits(x));
  }
  return 0;
}

}  // namespace hpmoe

int main() { return hpmoe::Main(); }
