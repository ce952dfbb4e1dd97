#include "backend_ascend/host/tiles/codes/code_gemm.h"

#include <algorithm>
#include <cstring>

#if HPMOE_X86
#include <immintrin.h>
#endif

namespace hpmoe {
namespace {

// Row by row: the compiler makes vectors of the inner loop.
HPMOE_INLINE void MultiplyRows(const CodeGemmTile& t) {
  for (int32_t i = 0; i < t.m; ++i) {
    int32_t* __restrict const c = t.c + i * t.ldc;
    std::fill_n(c, t.n, 0);
    for (int32_t p = 0; p < t.k; ++p) {
      const int32_t a = t.a[i * t.lda + p];
      const int8_t* __restrict const b = t.b + p * t.ldb;
      for (int32_t j = 0; j < t.n; ++j) c[j] += a * b[j];
    }
  }
}

void MultiplyPortable(const CodeGemmTile& t) { MultiplyRows(t); }

#if HPMOE_X86

HPMOE_AVX2 void MultiplyAvx2(const CodeGemmTile& t) { MultiplyRows(t); }

#define HPMOE_VNNI                                            \
  __attribute__((                                             \
      target("avx512vnni,avx512f,avx512bw,avx512vl,avx2,fma," \
             "f16c")))

// VPDPBUSD adds four products of an unsigned and a signed byte to each int32.
// b is the unsigned one, with 128 added: a sum is then 128 times that of its
// row of a too large, which it starts from.  What wraps around on the way does
// not matter.
constexpr int32_t kQuad = 4;   // terms of an instruction
constexpr int32_t kRows = 12;  // 12 x 2 sums, 2 vectors of b
constexpr int32_t kLanes = 16;
constexpr int32_t kCols = 2 * kLanes;
constexpr int32_t kDepth = 1024;  // of a panel: it stays in the first cache

constexpr int64_t PaddedDepth(int64_t k) {
  return (k + kQuad - 1) / kQuad * kQuad;
}

// Four rows of 16 columns, of which `rows` and `cols` are there, as quads of a
// column each.  What is not there is 0.
HPMOE_INLINE HPMOE_VNNI void PackQuads(const int8_t* b, int64_t ldb,
                                       int32_t rows, int32_t cols,
                                       uint8_t* out) {
  __m128i row[kQuad];
  const __mmask16 mask =
      static_cast<__mmask16>(cols >= kLanes ? 0xFFFF : (1u << cols) - 1);
  for (int32_t i = 0; i < kQuad; ++i) {
    row[i] = i < rows ? _mm_maskz_loadu_epi8(mask, b + i * ldb)
                      : _mm_setzero_si128();
  }
  const __m128i low01 = _mm_unpacklo_epi8(row[0], row[1]);
  const __m128i high01 = _mm_unpackhi_epi8(row[0], row[1]);
  const __m128i low23 = _mm_unpacklo_epi8(row[2], row[3]);
  const __m128i high23 = _mm_unpackhi_epi8(row[2], row[3]);
  const __m128i quads[] = {
      _mm_unpacklo_epi16(low01, low23), _mm_unpackhi_epi16(low01, low23),
      _mm_unpacklo_epi16(high01, high23), _mm_unpackhi_epi16(high01, high23)};
  const __m128i offset = _mm_set1_epi8(static_cast<char>(0x80));
  for (int32_t i = 0; i < kQuad; ++i) {
    _mm_store_si128(reinterpret_cast<__m128i*>(out) + i,
                    _mm_xor_si128(quads[i], offset));
  }
}

// [depth / 4, 32, 4] of some rows and at most 32 columns.
HPMOE_VNNI void PackPanel(const int8_t* b, int64_t ldb, int32_t depth,
                          int32_t cols, uint8_t* panel) {
  for (int32_t p = 0; p < depth; p += kQuad) {
    const int32_t rows = std::min(kQuad, depth - p);
    for (int32_t half = 0; half < kCols; half += kLanes) {
      PackQuads(b + p * ldb + half, ldb, rows,
                std::clamp(cols - half, 0, kLanes),
                panel + (p * kCols + half * kQuad));
    }
  }
}

HPMOE_INLINE int32_t LoadQuad(const int8_t* from) {
  int32_t quad;
  std::memcpy(&quad, from, sizeof(quad));
  return quad;
}

// In place: of the intrinsic g++ makes copies, which do not fit in registers.
HPMOE_INLINE HPMOE_VNNI void AddQuads(__m512i b, __m512i a, __m512i* sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(b), "v"(a));
}

struct Panel {
  const int8_t* a;  // whole quads
  int64_t lda;
  const uint8_t* b;
  int32_t* c;
  int64_t ldc;
  int32_t quads, cols;
  const int32_t* start;  // of each row; null: sums go on from c
};

template <int32_t kNum>
HPMOE_INLINE HPMOE_VNNI void MultiplyPanel(const Panel& t) {
  const auto mask = [&](int32_t half) {
    const int32_t cols = std::clamp(t.cols - half * kLanes, 0, kLanes);
    return static_cast<__mmask16>((1u << cols) - 1);
  };
  const __mmask16 masks[] = {mask(0), mask(1)};
  __m512i sums[kNum][2];
#pragma GCC unroll 12
  for (int32_t i = 0; i < kNum; ++i) {
    for (int32_t h = 0; h < 2; ++h) {
      sums[i][h] = t.start != nullptr
                       ? _mm512_set1_epi32(t.start[i])
                       : _mm512_maskz_loadu_epi32(masks[h],
                                                  t.c + i * t.ldc + h * kLanes);
    }
  }
  for (int32_t q = 0; q < t.quads; ++q) {
    const auto* const b =
        reinterpret_cast<const __m512i*>(t.b + int64_t{q} * kCols * kQuad);
    const __m512i b0 = _mm512_load_si512(b), b1 = _mm512_load_si512(b + 1);
#pragma GCC unroll 12
    for (int32_t i = 0; i < kNum; ++i) {
      const __m512i a =
          _mm512_set1_epi32(LoadQuad(t.a + i * t.lda + q * kQuad));
      AddQuads(b0, a, &sums[i][0]);
      AddQuads(b1, a, &sums[i][1]);
    }
  }
#pragma GCC unroll 12
  for (int32_t i = 0; i < kNum; ++i) {
    for (int32_t h = 0; h < 2; ++h) {
      _mm512_mask_storeu_epi32(t.c + i * t.ldc + h * kLanes, masks[h],
                               sums[i][h]);
    }
  }
}

HPMOE_VNNI void MultiplyPart(const Panel& t, int32_t rows) {
  switch (rows) {
#define HPMOE_ROWS(n) \
  case n:             \
    return MultiplyPanel<n>(t);
    HPMOE_ROWS(1)
    HPMOE_ROWS(2)
    HPMOE_ROWS(3)
    HPMOE_ROWS(4)
    HPMOE_ROWS(5)
    HPMOE_ROWS(6)
    HPMOE_ROWS(7)
    HPMOE_ROWS(8)
    HPMOE_ROWS(9)
    HPMOE_ROWS(10)
    HPMOE_ROWS(11)
    default:
      return MultiplyPanel<kRows>(t);
#undef HPMOE_ROWS
  }
}

// -128 times the sum of each row: what b's offset adds, taken off.
HPMOE_VNNI void SumRows(const CodeGemmTile& t, int32_t* starts) {
  for (int32_t i = 0; i < t.m; ++i) {
    int32_t sum = 0;
    const int8_t* const row = t.a + i * t.lda;
    for (int32_t p = 0; p < t.k; ++p) sum += row[p];
    starts[i] = static_cast<int32_t>(-128u * static_cast<uint32_t>(sum));
  }
}

void MultiplyVnni(CodeGemmTile t, GemmScratch* scratch) {
  auto* const starts =
      reinterpret_cast<int32_t*>(scratch->Reserve(GemmScratch::kPartial, t.m));
  SumRows(t, starts);
  const int64_t depth = PaddedDepth(t.k);
  if (depth != t.k) {  // rows of whole quads
    auto* const rows = reinterpret_cast<int8_t*>(
        scratch->Reserve(GemmScratch::kPackedA, t.m * depth / kQuad));
    for (int32_t i = 0; i < t.m; ++i) {
      std::copy_n(t.a + i * t.lda, t.k, rows + i * depth);
      std::fill_n(rows + i * depth + t.k, depth - t.k, int8_t{0});
    }
    t.a = rows;
    t.lda = depth;
  }
  auto* const panel = reinterpret_cast<uint8_t*>(
      scratch->Reserve(GemmScratch::kPanel, kDepth * kCols / kQuad));
  for (int32_t j = 0; j < t.n; j += kCols) {
    const int32_t cols = std::min(kCols, t.n - j);
    for (int32_t p = 0; p < t.k; p += kDepth) {
      const int32_t deep = std::min(kDepth, t.k - p);
      PackPanel(t.b + p * t.ldb + j, t.ldb, deep, cols, panel);
      for (int32_t i = 0; i < t.m; i += kRows) {
        MultiplyPart({t.a + i * t.lda + p, t.lda, panel, t.c + i * t.ldc + j,
                      t.ldc, static_cast<int32_t>(PaddedDepth(deep) / kQuad),
                      cols, p == 0 ? starts + i : nullptr},
                     std::min(kRows, t.m - i));
      }
    }
  }
}

#endif  // HPMOE_X86

}  // namespace

void RunCodeGemmTile(const CodeGemmTile& tile, Isa isa, GemmScratch* scratch) {
  if (tile.m <= 0 || tile.n <= 0) return;
#if HPMOE_X86
  if (tile.k > 0 && isa >= Isa::kAvx512 && HasVnni()) {
    return MultiplyVnni(tile, scratch);
  }
  if (isa >= Isa::kAvx2) return MultiplyAvx2(tile);
#endif
  (void)isa;
  (void)scratch;
  MultiplyPortable(tile);
}

}  // namespace hpmoe
