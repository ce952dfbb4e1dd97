#include "backend_ascend/host/tiles/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <vector>

#include "backend_ascend/host/tiles/float_environment.h"
#include "backend_ascend/host/tiles/gemm_kernels.h"
#include "backend_ascend/host/tiles/storage.h"

namespace hpmoe {
namespace {

// What fills a pair: its product is -0, which changes no sum, not even -0.
constexpr uint16_t kZeroPair = 0, kNegativePair = 0x8000;

constexpr int32_t kDepth = 256;  // about, of a panel: it stays in cache
static_assert(kDepth % kEvenOddTerms == 0, "a depth has whole steps");

int32_t DivideUp(int32_t a, int32_t b) { return (a + b - 1) / b; }

// Depths of a tile whose k counts rows (a is transposed): nearly equal, whole
// steps each, and the number of them that is nearest to k / kDepth.  For a
// short last one all sums, a whole weight, would be read and written once more.
int32_t DepthOfRows(int32_t k) {
  const int32_t count = std::max(1, (k + kDepth / 2) / kDepth);
  return DivideUp(DivideUp(k, count), kEvenOddTerms) * kEvenOddTerms;
}

// Floats of a panel that leaves room for the next one in the first cache.
constexpr int32_t kSmallPanel = 4096;

// Rows in parts of nearly equal size: a short last part would leave the
// multipliers idle.  Divided once: a part takes but a thousand cycles.
struct Parts {
  int32_t count, least, longer;
  Parts(int32_t rows, int32_t max_rows)
      : count(DivideUp(rows, max_rows)),
        least(rows / count),
        longer(rows % count) {}
  int32_t RowsOf(int32_t part) const {
    return part < count ? least + (part < longer ? 1 : 0) : 0;
  }
};

struct Rows {
  float* data;
  int64_t ld;
};

struct ConstRows {
  const float* data;
  int64_t ld;
};

// Addresses of rows [begin, begin + count) of a matrix as it is stored.
template <typename T>
struct StoredRows {
  const T* const* at(const void* data, int64_t ld, int64_t begin,
                     int64_t count) {
    rows.resize(count);
    for (int64_t i = 0; i < count; ++i) {
      rows[i] = static_cast<const T*>(data) + (begin + i) * ld;
    }
    return rows.data();
  }
  std::vector<const T*> rows;
};

template <typename T>
struct Operands {
  StoredRows<T> a, b;
};

// One depth of a tile: a[:, p : p + depth] @ b[p : p + depth]; the last may be
// less deep.
template <typename T>
class Depth {
 public:
  Depth(const GemmKernels& kernels, const GemmTile& tile, int32_t p,
        int32_t depth, Operands<T>* operands, GemmScratch* scratch)
      : kernels_(kernels),
        moves_(kernels.Moves<T>()),
        tile_(tile),
        parts_(tile.m, MaxRows(kernels, tile.order)),
        multiply_(MultiplyOf(kernels, tile.order)),
        p_(p),
        depth_(std::min(depth, tile.k - p)),
        pairs_(PairsOf(kernels, tile.order)),
        units_(pairs_ == nullptr ? depth_ : DivideUp(depth_, 2)),
        a_rows_(RowsOf(tile.a, tile.lda, tile.a_rows, tile.trans_a, tile.m,
                       &operands->a)),
        b_rows_(RowsOf(tile.b, tile.ldb, nullptr, !tile.trans_b, tile.n,
                       &operands->b)),
        packed_(
            scratch->Reserve(GemmScratch::kPackedA, int64_t{tile.m} * depth_)),
        panel_(scratch->Reserve(GemmScratch::kPanel,
                                int64_t{depth_} * kernels.panel_cols)) {}

  // sum = start + ...; from +0 where `start` is null.
  void Multiply(ConstRows start, Rows sum) {
    PackA();
    for (int32_t j = 0; j < tile_.n; j += kernels_.panel_cols) {
      const int32_t cols = std::min(kernels_.panel_cols, tile_.n - j);
      PackPanel(j, cols);
      MicroTile micro{
          packed_,      panel_,
          sum.data + j, start.data == nullptr ? nullptr : start.data + j,
          sum.ld,       start.ld,
          /*rows=*/0,   cols,
          units_};
      const int32_t next = j + kernels_.panel_cols;
      const int32_t share = DivideUp(PanelRows(), parts_.count);
      for (int32_t part = 0; part < parts_.count; ++part) {
        micro.rows = parts_.RowsOf(part);
        PrefetchPanel(next, part * share, share);
        PrefetchSums(micro, parts_.RowsOf(part + 1));
        multiply_(micro);
        micro.a += int64_t{micro.rows} * units_;
        micro.c += micro.rows * micro.ldc;
        if (micro.start != nullptr) micro.start += micro.rows * micro.ld_start;
      }
    }
  }

 private:
  static const PairKernels* PairsOf(const GemmKernels& kernels,
                                    AccumulationOrder order) {
    if (!std::is_same_v<T, Bf16>) return nullptr;
    return order == kAscending ? kernels.pairs : kernels.even_odd_pairs;
  }

  static int32_t MaxRows(const GemmKernels& kernels, AccumulationOrder order) {
    const PairKernels* const pairs = PairsOf(kernels, order);
    return pairs != nullptr ? pairs->max_rows : kernels.max_rows;
  }

  static MultiplyFn MultiplyOf(const GemmKernels& kernels,
                               AccumulationOrder order) {
    const PairKernels* const pairs = PairsOf(kernels, order);
    if (pairs != nullptr) return pairs->multiply;
    return order == kAscending ? kernels.multiply : kernels.multiply_even_odd;
  }

  // Of what is deep in rows those of this depth, else all.
  const T* const* RowsOf(const void* data, int64_t ld, const void* const* rows,
                         bool deep, int32_t all, StoredRows<T>* made) const {
    const int32_t begin = deep ? p_ : 0;
    if (rows != nullptr) {
      return reinterpret_cast<const T* const*>(rows) + begin;
    }
    return made->at(data, ld, begin, deep ? depth_ : all);
  }

  // Part by part, [depth, rows of it].
  void PackA() {
    float* out = packed_;
    int32_t row = 0;
    for (int32_t part = 0; part < parts_.count; ++part) {
      const int32_t rows = parts_.RowsOf(part);
      PackPart(row, rows, out);
      row += rows;
      out += int64_t{rows} * units_;
    }
  }

  void PackPart(int32_t row, int32_t rows, float* out) {
    if constexpr (std::is_same_v<T, Bf16>) {
      if (pairs_ != nullptr && tile_.trans_a) {
        return pairs_->pack_a(a_rows_, row, depth_, rows, kZeroPair, out, rows);
      }
      if (pairs_ != nullptr) {
        return pairs_->transpose_a(a_rows_ + row, p_, rows, depth_, kZeroPair,
                                   out, rows);
      }
    }
    if (tile_.trans_a) {
      Pack(a_rows_, row, rows, kZeroPair, out, rows);
    } else {
      Transpose(a_rows_ + row, rows, kZeroPair, out, rows);
    }
  }

  // panel[depth, panel_cols] = b[p : p + depth, j : j + cols], zero past
  // `cols`.
  void PackPanel(int32_t j, int32_t cols) {
    const int32_t ld = kernels_.panel_cols;
    if (!tile_.trans_b)
      return Pack(b_rows_, j, cols, kNegativePair, panel_, ld);
    if (cols < ld) std::fill_n(panel_, int64_t{units_} * ld, 0.0f);
    Transpose(b_rows_ + j, cols, kNegativePair, panel_, ld);
  }

  // The two of this depth; `odd` fills the last pair of an odd one.
  void Pack(const T* const* rows, int64_t first, int32_t cols, uint16_t odd,
            float* out, int32_t ld) {
    if constexpr (std::is_same_v<T, Bf16>) {
      if (pairs_ != nullptr) {
        return pairs_->pack(rows, first, depth_, cols, odd, out, ld);
      }
    }
    moves_.pack(rows, first, depth_, cols, out, ld);
  }

  void Transpose(const T* const* rows, int32_t count, uint16_t odd, float* out,
                 int32_t ld) {
    if constexpr (std::is_same_v<T, Bf16>) {
      if (pairs_ != nullptr) {
        return pairs_->transpose(rows, p_, count, depth_, odd, out, ld);
      }
    }
    moves_.transpose(rows, p_, count, depth_, out, ld);
  }

  // Rows, as stored, that a panel is packed from.
  int32_t PanelRows() const {
    return tile_.trans_b ? kernels_.panel_cols : depth_;
  }

  // `share` of the rows, from `begin`, that the panel from column `j` will be
  // packed from: memory answers while a part is multiplied.  No division: each
  // part is but some hundred cycles.  Always inline: for g++ a function that
  // only prefetches has no effect, and it leaves calls of it out.
  HPMOE_INLINE void PrefetchPanel(int32_t j, int32_t begin,
                                  int32_t share) const {
    if (j >= tile_.n) return;
    constexpr int32_t kLine = 64 / sizeof(T);
    const int32_t cols = std::min(kernels_.panel_cols, tile_.n - j);
    const int32_t wide = tile_.trans_b ? depth_ : cols;
    const int64_t first = tile_.trans_b ? p_ : j;
    const T* const* const from = b_rows_ + (tile_.trans_b ? j : 0);
    const int32_t end = std::min(begin + share, tile_.trans_b ? cols : depth_);
    for (int32_t i = begin; i < end; ++i) {
      for (int32_t c = 0; c < wide; c += kLine) {
        if (kernels_.panel_cols * kDepth <= kSmallPanel) {
          __builtin_prefetch(from[i] + first + c, 0, 3);
        } else {
          __builtin_prefetch(from[i] + first + c, 0, 2);
        }
      }
    }
  }

  // Sums of the part after this one, of so many rows.
  HPMOE_INLINE static void PrefetchSums(const MicroTile& micro, int32_t rows) {
    const float* const next = micro.c + micro.rows * micro.ldc;
    for (int32_t i = 0; i < rows; ++i) {
      __builtin_prefetch(next + i * micro.ldc, 1);
    }
  }

  const GemmKernels& kernels_;
  const GemmMoves<T>& moves_;
  const GemmTile& tile_;
  const Parts parts_;
  const MultiplyFn multiply_;
  const int32_t p_, depth_;
  const PairKernels* const pairs_;  // or null
  const int32_t units_;             // pairs, or single elements, of the depth
  const T* const* const a_rows_;
  const T* const* const b_rows_;
  float* const packed_;
  float* const panel_;
};

// Gives units that keep a state of the thread's back, whatever is thrown.
class ReleasedUnits {
 public:
  explicit ReleasedUnits(const GemmKernels& kernels)
      : pairs_(kernels.even_odd_pairs) {}
  ~ReleasedUnits() {
    if (pairs_ != nullptr && pairs_->release != nullptr) pairs_->release();
  }
  ReleasedUnits(const ReleasedUnits&) = delete;
  ReleasedUnits& operator=(const ReleasedUnits&) = delete;

 private:
  const PairKernels* const pairs_;
};

// The sums are carried in float32 between depths and between calls, so
// blocking over k changes no bit.
template <typename T>
void Multiply(const GemmKernels& kernels, const GemmTile& t, Rows sum,
              GemmScratch* scratch) {
  ConstRows start = {nullptr, 0};
  if (t.carry != nullptr && t.carry_in) start = {t.carry, t.ld_carry};
  Operands<T> operands;
  const int32_t depth = t.trans_a ? DepthOfRows(t.k) : kDepth;
  int32_t p = 0;
  do {
    Depth<T>(kernels, t, p, depth, &operands, scratch).Multiply(start, sum);
    start = {sum.data, sum.ld};
    p += depth;
  } while (p < t.k);
}

bool EndsInCarry(const GemmTile& t) {
  return t.carry != nullptr && t.carry_out;
}

// Before they are rounded; float32 sums are stored as they are.
void WeighRows(const GemmTile& t, Rows sum) {
  for (int32_t i = 0; t.row_weight != nullptr && i < t.m; ++i) {
    const float weight = t.row_weight[i];
    float* const row = sum.data + i * sum.ld;
    for (int32_t j = 0; j < t.n; ++j) StoreFloat(weight * row[j], row + j);
  }
}

template <typename T>
void MultiplyStored(const GemmKernels& kernels, const GemmTile& t,
                    GemmScratch* scratch) {
  if (EndsInCarry(t)) {
    return Multiply<T>(kernels, t, {t.carry, t.ld_carry}, scratch);
  }
  if constexpr (std::is_same_v<T, float>) {
    const Rows c = {static_cast<T*>(t.c), t.ldc};
    Multiply<T>(kernels, t, c, scratch);
    return WeighRows(t, c);
  }
  float* sum =
      scratch->Reserve(GemmScratch::kPartial, static_cast<int64_t>(t.m) * t.n);
  Multiply<T>(kernels, t, {sum, t.n}, scratch);
  WeighRows(t, {sum, t.n});
  for (int32_t i = 0; i < t.m; ++i) {
    kernels.Moves<T>().narrow(sum + static_cast<int64_t>(i) * t.n,
                              static_cast<T*>(t.c) + i * t.ldc, t.n);
  }
}

template <typename T>
void MultiplyBf16Accumulate(const GemmTile& t) {
  const T* a = static_cast<const T*>(t.a);
  const T* b = static_cast<const T*>(t.b);
  for (int32_t i = 0; i < t.m; ++i) {
    for (int32_t j = 0; j < t.n; ++j) {
      float* carry =
          t.carry == nullptr ? nullptr : t.carry + i * t.ld_carry + j;
      float acc = carry != nullptr && t.carry_in ? *carry : 0.0f;
      for (int32_t p = 0; p < t.k; ++p) {
        const T* x = t.trans_a ? a + p * t.lda + i : a + i * t.lda + p;
        const T* y = t.trans_b ? b + j * t.ldb + p : b + p * t.ldb + j;
        acc = RoundToBf16(__builtin_fmaf(LoadFloat(x), LoadFloat(y), acc));
      }
      if (EndsInCarry(t)) {
        StoreFloat(acc, carry);
      } else {
        const float weight = t.row_weight != nullptr ? t.row_weight[i] : 1.0f;
        StoreFloat(weight * acc, static_cast<T*>(t.c) + i * t.ldc + j);
      }
    }
  }
}

}  // namespace

float* GemmScratch::Reserve(Slot slot, int64_t count) {
  if (count > sizes_[slot]) {
    constexpr int64_t kLine = 64;
    const int64_t bytes = (count * 4 + kLine - 1) / kLine * kLine;
    sizes_[slot] = 0;
    buffers_[slot].reset(static_cast<float*>(std::aligned_alloc(kLine, bytes)));
    if (buffers_[slot] == nullptr) throw std::bad_alloc();
    sizes_[slot] = count;
  }
  return buffers_[slot].get();
}

const GemmKernels& GemmKernelsOf(Isa isa) {
#if HPMOE_X86
  if (isa == Isa::kAvx2) return kGemmAvx2;
  if (isa == Isa::kAvx512) return kGemmAvx512;
  if (isa == Isa::kAvx512Bf16) return kGemmAvx512Bf16;
  if (isa == Isa::kAvx512Amx) return kGemmAvx512Amx;
#elif HPMOE_NEON
  if (isa == Isa::kNeon) return kGemmNeon;
#endif
  (void)isa;
  return kGemmPortable;
}

void RunGemmTile(const GemmTile& tile, Isa isa, GemmScratch* scratch) {
  if (tile.m <= 0 || tile.n <= 0) return;
  const FlushedSubnormals flushed(tile.dtype == kBFloat16);
  const ReleasedUnits released(GemmKernelsOf(isa));
  HPMOE_STORED(tile.dtype,
               MultiplyStored<T>(GemmKernelsOf(isa), tile, scratch));
}

void RunGemmTileBf16Accumulate(const GemmTile& tile) {
  HPMOE_STORED(tile.dtype, MultiplyBf16Accumulate<T>(tile));
}

}  // namespace hpmoe
