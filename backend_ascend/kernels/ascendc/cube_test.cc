// The cube core's tiles on the twin, against a plain loop.
//
// Values are small integers, so every order of the cube unit's sums gives the
// same bits.  One core runs all tiles of a case list in a row: what a tile
// leaves behind must not reach the next.
//
// Usage: cube_test; prints what is wrong, returns 1 if anything is.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "backend_ascend/kernels/ascendc/cube_core.h"
#include "backend_ascend/kernels/ascendc/twin/engine/launch.h"

namespace {

using ascend_twin::GlobalKind;
using ascend_twin::LaunchSpec;
using ascend_twin::MmadOrder;
using ascend_twin::Mode;
using hpmoe::Constants;
using hpmoe::CubeTile;

float Load(float value) { return value; }
float Load(bfloat16_t value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

// To nearest, ties to even.
void Round(double value, float* to) { *to = static_cast<float>(value); }
void Round(double value, bfloat16_t* to) {
  const float wide = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &wide, sizeof(bits));
  to->bits = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// A matrix in global memory; nothing behind its last element.
template <typename T>
struct Matrix {
  int32_t rows, cols;
  int64_t ld;
  std::vector<T> data;

  Matrix(int32_t r, int32_t c, int64_t pitch)
      : rows(r), cols(c), ld(pitch), data(r == 0 ? 1 : (r - 1) * pitch + c) {}
  T& At(int32_t i, int32_t j) { return data[i * ld + j]; }
  const T& At(int32_t i, int32_t j) const { return data[i * ld + j]; }
};

struct Shape {
  int32_t m, n;
  std::vector<int32_t> depths;  // of the links of one chain
  bool trans_a, trans_b;
  int64_t gap;  // elements between rows, of a, b and c
};

// One chain of tiles and what it must give.
template <typename T>
struct Chain {
  Shape shape;
  std::vector<Matrix<T>> a, b;  // by link
  Matrix<T> c;
  Matrix<float> carry;
  Matrix<T> want;
  std::vector<CubeTile> tiles;
};

uint32_t Next(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 16;
}

template <typename T>
Matrix<T> Draw(int32_t rows, int32_t cols, int64_t gap, uint32_t* state) {
  Matrix<T> drawn(rows, cols, cols + gap);
  for (T& x : drawn.data) Round(static_cast<int>(Next(state) % 7) - 3, &x);
  return drawn;
}

template <typename T>
CubeTile TileOf(Chain<T>* chain, size_t link) {
  const Shape& s = chain->shape;
  CubeTile tile{};
  tile.a = reinterpret_cast<uint8_t*>(chain->a[link].data.data());
  tile.b = reinterpret_cast<uint8_t*>(chain->b[link].data.data());
  tile.c = reinterpret_cast<uint8_t*>(chain->c.data.data());
  tile.lda = chain->a[link].ld;
  tile.ldb = chain->b[link].ld;
  tile.ldc = chain->c.ld;
  tile.m = s.m;
  tile.n = s.n;
  tile.k = s.depths[link];
  tile.trans_a = s.trans_a;
  tile.trans_b = s.trans_b;
  if (s.depths.size() == 1) return tile;
  tile.carry = chain->carry.data.data();
  tile.ld_carry = chain->carry.ld;
  tile.carry_in = link > 0;
  tile.carry_out = link + 1 < s.depths.size();
  return tile;
}

template <typename T>
double Sum(const Chain<T>& chain, int32_t i, int32_t j) {
  const Shape& s = chain.shape;
  double sum = 0;
  for (size_t link = 0; link < s.depths.size(); ++link) {
    const Matrix<T>& a = chain.a[link];
    const Matrix<T>& b = chain.b[link];
    for (int32_t p = 0; p < s.depths[link]; ++p) {
      sum += double{Load(s.trans_a ? a.At(p, i) : a.At(i, p))} *
             double{Load(s.trans_b ? b.At(j, p) : b.At(p, j))};
    }
  }
  return sum;
}

template <typename T>
void Make(const Shape& s, uint32_t seed, std::deque<Chain<T>>* chains) {
  chains->push_back({s,
                     {},
                     {},
                     Matrix<T>(s.m, s.n, s.n + s.gap),
                     Matrix<float>(s.m, s.n, s.n + s.gap),
                     Matrix<T>(s.m, s.n, s.n + s.gap),
                     {}});
  Chain<T>* chain = &chains->back();
  for (const int32_t k : s.depths) {
    chain->a.push_back(s.trans_a ? Draw<T>(k, s.m, s.gap, &seed)
                                 : Draw<T>(s.m, k, s.gap, &seed));
    chain->b.push_back(s.trans_b ? Draw<T>(s.n, k, s.gap, &seed)
                                 : Draw<T>(k, s.n, s.gap, &seed));
  }
  for (size_t i = 0; i < s.depths.size(); ++i) {
    chain->tiles.push_back(TileOf(chain, i));
  }
  for (int32_t i = 0; i < s.m; ++i) {
    for (int32_t j = 0; j < s.n; ++j) {
      Round(Sum(*chain, i, j), &chain->want.At(i, j));
    }
  }
}

std::string NameOf(const Shape& s, bool stored_wide) {
  std::string name = stored_wide ? "float32" : "bfloat16";
  name += " m=" + std::to_string(s.m) + " n=" + std::to_string(s.n) + " k=";
  for (const int32_t k : s.depths) name += std::to_string(k) + " ";
  name += s.trans_a ? "a^T " : "a ";
  name += s.trans_b ? "b^T" : "b";
  return name + " gap=" + std::to_string(s.gap);
}

// Every element of c, and that nothing between its rows was written.
template <typename T>
int Compare(const Chain<T>& chain, const std::string& launch) {
  for (size_t at = 0; at < chain.c.data.size(); ++at) {
    const T want = chain.want.data[at], got = chain.c.data[at];
    if (std::memcmp(&got, &want, sizeof(T)) == 0) continue;
    std::printf("%s: %s: c[%d, %d]: expected %g, got %g\n", launch.c_str(),
                NameOf(chain.shape, sizeof(T) == 4).c_str(),
                static_cast<int>(at / chain.c.ld),
                static_cast<int>(at % chain.c.ld), Load(want), Load(got));
    return 1;
  }
  return 0;
}

template <typename T>
void Register(const char* name, const std::vector<T>& data, GlobalKind kind,
              LaunchSpec* spec) {
  spec->globals.push_back({name, reinterpret_cast<uint64_t>(data.data()),
                           data.size() * sizeof(T), kind});
}

// An empty link in the middle of a chain: its carry stays where it is.
bool IsIdle(const CubeTile& tile) {
  return tile.k == 0 && tile.carry_in && tile.carry_out;
}

constexpr int64_t kIdle = 1;  // tag of such tiles

// What a core of the launch runs.  A link reads what the one before it wrote:
// the scalar waits for it, as it waits for an event in a launch of an image.
template <typename T>
void RunChains(const std::deque<Chain<T>>& chains, const Constants& constants) {
  AscendC::InitSocState();
  AscendC::SetSaturationFlag<AscendC::SaturationMode::FLOAT>(false);
  hpmoe::CubeCore<T> core(&constants);
  core.Start();
  for (const Chain<T>& chain : chains) {
    for (const CubeTile& tile : chain.tiles) {
      if (tile.carry != nullptr && tile.carry_in) {
        AscendC::SetFlag<AscendC::HardEvent::FIX_S>(0);
        AscendC::WaitFlag<AscendC::HardEvent::FIX_S>(0);
      }
      ascend_twin::OnTask(IsIdle(tile) ? kIdle : -1);
      core.Run(tile);
    }
  }
  ascend_twin::OnTask(-1);
  core.Finish();
  AscendC::PipeBarrier<PIPE_ALL>();
}

template <typename T>
LaunchSpec SpecOf(std::deque<Chain<T>>* chains,
                  const std::vector<Constants>& constants) {
  LaunchSpec spec;
  spec.kernel = "cube_test";
  spec.type = ascend_twin::TaskType::kAicOnly;
  spec.entry = [=, &constants](int32_t) { RunChains(*chains, constants[0]); };
  Register("constants", constants, GlobalKind::kConstant, &spec);
  for (Chain<T>& chain : *chains) {
    std::fill(chain.c.data.begin(), chain.c.data.end(), T{});
    for (const auto& a : chain.a) {
      Register("a", a.data, GlobalKind::kConstant, &spec);
    }
    for (const auto& b : chain.b) {
      Register("b", b.data, GlobalKind::kConstant, &spec);
    }
    Register("c", chain.c.data, GlobalKind::kEmpty, &spec);
    Register("carry", chain.carry.data, GlobalKind::kEmpty, &spec);
  }
  return spec;
}

template <typename T>
int Launch(std::deque<Chain<T>>* chains,
           const std::vector<Constants>& constants, Mode mode, uint64_t seed,
           MmadOrder order) {
  LaunchSpec spec = SpecOf(chains, constants);
  spec.numerics.saturate = true;  // left behind by a kernel before
  spec.mode = mode;
  spec.seed = seed;
  spec.numerics.mmad_order = order;
  const std::string name = "mode " + std::to_string(static_cast<int>(mode)) +
                           " seed " + std::to_string(seed) + " order " +
                           std::to_string(static_cast<int>(order));
  const ascend_twin::LaunchResult result = ascend_twin::Launch(spec);
  int failed = 0;
  for (const ascend_twin::Error& error : result.errors) {
    std::printf("%s: %s\n", name.c_str(), error.text.c_str());
    failed = 1;
  }
  for (const ascend_twin::Counts& counts : result.counts) {
    if (counts.tag != kIdle) continue;
    for (const uint64_t issued : counts.instructions) {
      if (issued == 0) continue;
      std::printf("%s: expected nothing of an empty link\n", name.c_str());
      failed = 1;
    }
  }
  for (const Chain<T>& chain : *chains) failed |= Compare(chain, name);
  return failed;
}

// Edges of a fractal and of a stage; one strip and two; more stages of L1 than
// there are; rows too far apart for one move; empty sums; chains.
std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  const int32_t sizes[] = {1, 15, 16, 17, 33, 64, 128};
  constexpr int kSizes = 7;
  for (int form = 0; form < 4; ++form) {
    const bool trans_a = form & 1, trans_b = form & 2;
    for (int i = 0; i < kSizes; ++i) {
      shapes.push_back({sizes[i],
                        sizes[(i + form + 1) % kSizes],
                        {sizes[(3 * i + form) % kSizes]},
                        trans_a,
                        trans_b,
                        (i + form) % 4});
    }
    // Each side as it is stored in both ways.
    if (trans_a == trans_b) {
      shapes.push_back({128, 96, {1000}, trans_a, trans_b, 0});
    } else {
      shapes.push_back({7, 500, {70}, trans_a, trans_b, 5});
      shapes.push_back({500, 9, {41}, trans_a, trans_b, 1});
    }
    // Two strips, alike and not, of more stages than there are; beside tiles of
    // one.
    shapes.push_back({128, 256, {600}, trans_a, trans_b, 0});
    shapes.push_back({120, 201, {300, 0, 130}, trans_a, trans_b, 3});
    shapes.push_back({3, 5, {4}, trans_a, trans_b, 66000});
    shapes.push_back({20, 40, {0}, trans_a, trans_b, 3});
    shapes.push_back({17, 40, {30, 0, 9}, trans_a, trans_b, 3});
    shapes.push_back({128, 33, {0, 65, 0}, trans_a, trans_b, 1});
    shapes.push_back({1, 100, {0, 0, 0}, trans_a, trans_b, 0});
  }
  return shapes;
}

// One product, of an infinity: it stays one.
template <typename T>
void MakeInfinite(std::deque<Chain<T>>* chains) {
  Make<T>({1, 1, {1}, false, false, 0}, 1, chains);
  Chain<T>* const chain = &chains->back();
  Round(INFINITY, &chain->a[0].At(0, 0));
  Round(1, &chain->b[0].At(0, 0));
  Round(INFINITY, &chain->want.At(0, 0));
}

template <typename T>
int Test(const std::vector<Constants>& constants) {
  std::deque<Chain<T>> chains;
  uint32_t seed = sizeof(T);
  for (const Shape& shape : Shapes()) Make<T>(shape, ++seed, &chains);
  MakeInfinite(&chains);
  int failed = 0;
  // Each mode and each order once: none may show.
  const struct {
    Mode mode;
    uint64_t seed;
    MmadOrder order;
  } ways[] = {{Mode::kInOrder, 0, MmadOrder::kAscending},
              {Mode::kSeeded, 1, MmadOrder::kBlocksOf16},
              {Mode::kSeeded, 2, MmadOrder::kEvenOdd},
              {Mode::kLate, 0, MmadOrder::kReversed}};
  for (const auto& way : ways) {
    failed |= Launch(&chains, constants, way.mode, way.seed, way.order);
  }
  return failed;
}

}  // namespace

int main() {
  std::vector<Constants> constants(1);
  constants[0].one[0] = 1;
  for (int i = 0; i < hpmoe::kIdentityRows; ++i) {
    constants[0].identity[i * hpmoe::kIdentityRows + i] = 1.0f;
  }
  return Test<float>(constants) | Test<bfloat16_t>(constants);
}
