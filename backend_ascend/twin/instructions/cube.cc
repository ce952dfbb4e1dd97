#include "backend_ascend/twin/instructions/cube.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backend_ascend/twin/engine/sync.h"
#include "backend_ascend/twin/instructions/moves.h"
#include "backend_ascend/twin/instructions/numbers.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define ASCEND_TWIN_X86 1
#endif

namespace ascend_twin {
namespace {

// From so many blocks on, a multiplication follows an earlier one without a
// barrier.
constexpr uint64_t kOrderedBlocks = 10;
constexpr uint64_t kTree = 16;          // products that kBlocksOf16 adds first
constexpr uint64_t kStripeRow = 64;     // bytes of a row of C's fractals
constexpr uint64_t kFractalOfC = 1024;  // bytes

// A product of matrices whose numbers are floats already.  `a` has `depth`
// floats a row; `b` has panels of 16 columns, `depth` rows each; `c` lies as in
// L0C: stripes of 16 columns, `c_rows` rows each.
struct Product {
  const float* a;
  const float* b;
  float* c;
  uint64_t rows;
  uint64_t c_rows;
  uint64_t depth;
  uint64_t panels;
};

// Eight floats; GCC and Clang make two of them where a vector has four.
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

// Sums of kRows rows of one stripe.  A product and a sum are two roundings;
// products of 16-bit elements are exact.
template <int kRows, bool kTrees>
__attribute__((always_inline)) inline void Rows(const float* a, const float* b,
                                                float* c, uint64_t depth) {
  Eight sums[kRows][2];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < 2; ++j) {
      sums[i][j] = *reinterpret_cast<const Eight*>(c + i * kSide + j * 8);
    }
  }
  if (!kTrees) {
    for (uint64_t k = 0; k < depth; ++k) {
      const Eight low = *reinterpret_cast<const Eight*>(b + k * kSide);
      const Eight high = *reinterpret_cast<const Eight*>(b + k * kSide + 8);
      for (int i = 0; i < kRows; ++i) {
        sums[i][0] += a[i * depth + k] * low;
        sums[i][1] += a[i * depth + k] * high;
      }
    }
  } else {
    // `depth` is a multiple of kTree: what is added to fill it is zero.
    for (uint64_t block = 0; block < depth; block += kTree) {
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < 2; ++j) {
          Eight products[kTree];
          for (uint64_t k = 0; k < kTree; ++k) {
            products[k] =
                a[i * depth + block + k] * *reinterpret_cast<const Eight*>(
                                               b + (block + k) * kSide + j * 8);
          }
          for (uint64_t width = 1; width < kTree; width *= 2) {
            for (uint64_t k = 0; k < kTree; k += 2 * width) {
              products[k] += products[k + width];
            }
          }
          sums[i][j] += products[0];
        }
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < 2; ++j) {
      *reinterpret_cast<Eight*>(c + i * kSide + j * 8) = sums[i][j];
    }
  }
}

template <bool kTrees>
__attribute__((always_inline)) inline void AllRows(const Product& product) {
  const uint64_t depth = product.depth;
  for (uint64_t panel = 0; panel < product.panels; ++panel) {
    const float* const b = product.b + panel * depth * kSide;
    float* const c = product.c + panel * product.c_rows * kSide;
    uint64_t row = 0;
    for (; row + 4 <= product.rows; row += 4) {
      Rows<4, kTrees>(product.a + row * depth, b, c + row * kSide, depth);
    }
    for (; row < product.rows; ++row) {
      Rows<1, kTrees>(product.a + row * depth, b, c + row * kSide, depth);
    }
  }
}

void Portable(const Product& product, bool trees) {
  trees ? AllRows<true>(product) : AllRows<false>(product);
}

#if defined(ASCEND_TWIN_X86)
__attribute__((target("avx2"))) void Avx2(const Product& product, bool trees) {
  trees ? AllRows<true>(product) : AllRows<false>(product);
}
#endif

void Multiply(const Product& product, bool trees) {
#if defined(ASCEND_TWIN_X86)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return Avx2(product, trees);
#endif
  Portable(product, trees);
}

// Which k comes at which place of the sum.
std::vector<uint32_t> OrderOf(MmadOrder order, uint64_t depth) {
  std::vector<uint32_t> ks;
  ks.reserve(depth);
  if (order == MmadOrder::kReversed) {
    for (uint64_t k = depth; k > 0; --k) ks.push_back(k - 1);
  } else if (order == MmadOrder::kEvenOdd) {
    for (uint64_t k = 0; k < depth; k += 2) ks.push_back(k);
    for (uint64_t k = 1; k < depth; k += 2) ks.push_back(k);
  } else {
    for (uint64_t k = 0; k < depth; ++k) ks.push_back(k);
  }
  return ks;
}

// One multiplication of a tile, as its instruction keeps it.
struct Tile {
  Operand c;
  Operand a;
  Operand b;
  Operand bias;
  bool from_bias;
  bool from_zero;
  uint64_t m;
  uint64_t n;
  uint64_t k;
  uint64_t a_row_pitch;  // bytes between rows of A's fractals
  Numerics numerics;

  uint64_t c0() const { return kBlock / a.size(); }
  uint64_t panels() const { return CeilDiv(n, kSide); }
  uint64_t c_rows() const { return RoundUp(m, kSide); }
  // Byte of A where an element lies.
  uint64_t InA(uint64_t row, uint64_t column) const {
    if (m == 1) return column * a.size();
    return row / kSide * a_row_pitch + column / c0() * kFractal +
           row % kSide * kBlock + column % c0() * a.size();
  }
};

// A's floats in the order of the sum; `padded` floats a row.
void UnpackA(const Tile& tile, const std::vector<uint32_t>& ks, uint64_t padded,
             float* out) {
  const char* const from = Bytes(tile.a.memory, tile.a.begin);
  for (uint64_t row = 0; row < tile.m; ++row) {
    for (uint64_t at = 0; at < ks.size(); ++at) {
      out[row * padded + at] =
          FloatAt(from + tile.InA(row, ks[at]), tile.a.type);
    }
    std::fill(out + row * padded + ks.size(), out + (row + 1) * padded, 0.0f);
  }
}

// B's floats in panels of 16 columns; columns past n are zero.
void UnpackB(const Tile& tile, const std::vector<uint32_t>& ks, uint64_t padded,
             float* out) {
  const uint64_t size = tile.b.size();
  const uint64_t pitch = tile.panels() * kFractal;
  const char* const from = Bytes(tile.b.memory, tile.b.begin);
  for (uint64_t panel = 0; panel < tile.panels(); ++panel) {
    const uint64_t columns = std::min(kSide, tile.n - panel * kSide);
    float* const to = out + panel * padded * kSide;
    std::fill(to, to + padded * kSide, 0.0f);
    for (uint64_t at = 0; at < ks.size(); ++at) {
      const uint64_t k = ks[at];
      const char* const line = from + k / tile.c0() * pitch + panel * kFractal +
                               k % tile.c0() * size;
      for (uint64_t column = 0; column < columns; ++column) {
        to[at * kSide + column] = FloatAt(line + column * kBlock, tile.b.type);
      }
    }
  }
}

void StartC(const Tile& tile, float* c) {
  for (uint64_t panel = 0; panel < tile.panels(); ++panel) {
    for (uint64_t row = 0; row < tile.m; ++row) {
      float* const to = c + (panel * tile.c_rows() + row) * kSide;
      if (tile.from_bias) {
        std::memcpy(
            to, Bytes(tile.bias.memory, tile.bias.begin) + panel * kStripeRow,
            std::min(kSide, tile.n - panel * kSide) * sizeof(float));
      } else {
        std::fill(to, to + kSide, 0.0f);
      }
    }
  }
}

// NaN and saturation of results; what lies outside m and n is unspecified.
void FinishC(const Tile& tile, float* c) {
  for (uint64_t panel = 0; panel < tile.panels(); ++panel) {
    const uint64_t columns = std::min(kSide, tile.n - panel * kSide);
    float* const stripe = c + panel * tile.c_rows() * kSide;
    for (uint64_t row = 0; row < tile.m; ++row) {
      float* const to = stripe + row * kSide;
      for (uint64_t column = 0; column < columns; ++column) {
        to[column] = tile.numerics.saturate
                         ? Saturate(to[column], kLargestFloat)
                         : Canonical(to[column]);
      }
      std::memset(to + columns, kUnspecified,
                  (kSide - columns) * sizeof(float));
    }
    std::memset(stripe + tile.m * kSide, kUnspecified,
                (tile.c_rows() - tile.m) * kStripeRow);
  }
}

int64_t ByteAt(const char* at, Type type) {
  return type == Type::kInt8 ? int64_t{Read<int8_t>(at)}
                             : int64_t{Read<uint8_t>(at)};
}

// Sums of integers wrap, in any order to the same number.
void RunIntegers(const Tile& tile) {
  char* const c = Bytes(tile.c.memory, tile.c.begin);
  const char* const a = Bytes(tile.a.memory, tile.a.begin);
  const char* const b = Bytes(tile.b.memory, tile.b.begin);
  for (uint64_t row = 0; row < tile.c_rows(); ++row) {
    for (uint64_t column = 0; column < tile.panels() * kSide; ++column) {
      const uint64_t panel = column / kSide;
      char* const to = c + (panel * tile.c_rows() + row) * kStripeRow +
                       column % kSide * sizeof(int32_t);
      if (row >= tile.m || column >= tile.n) {
        std::memset(to, kUnspecified, sizeof(int32_t));
        continue;
      }
      int64_t sum =
          tile.from_bias
              ? Read<int32_t>(Bytes(tile.bias.memory, tile.bias.begin) +
                              column * sizeof(int32_t))
          : tile.from_zero ? 0
                           : Read<int32_t>(to);
      for (uint64_t k = 0; k < tile.k; ++k) {
        const uint64_t in_b = k / tile.c0() * tile.panels() * kFractal +
                              panel * kFractal + column % kSide * kBlock +
                              k % tile.c0();
        sum += ByteAt(a + tile.InA(row, k), tile.a.type) *
               ByteAt(b + in_b, tile.b.type);
      }
      Write(to, static_cast<int32_t>(sum));
    }
  }
}

void Run(const Tile& tile) {
  if (tile.c.type == Type::kInt32) return RunIntegers(tile);
  const FloatScope scope(tile.numerics.flush_subnormals);
  static thread_local std::vector<float> a;
  static thread_local std::vector<float> b;
  const MmadOrder order = tile.numerics.mmad_order;
  const bool trees = order == MmadOrder::kBlocksOf16;
  const std::vector<uint32_t> ks = OrderOf(order, tile.k);
  const uint64_t padded = trees ? RoundUp(tile.k, kTree) : tile.k;
  a.resize(tile.m * padded);
  b.resize(tile.panels() * padded * kSide);
  UnpackA(tile, ks, padded, a.data());
  UnpackB(tile, ks, padded, b.data());
  float* const c = reinterpret_cast<float*>(Bytes(tile.c.memory, tile.c.begin));
  if (tile.from_bias || tile.from_zero) StartC(tile, c);
  Multiply(
      {a.data(), b.data(), c, tile.m, tile.c_rows(), padded, tile.panels()},
      trees);
  FinishC(tile, c);
}

// Rows of C are as unwritten as those of A, and of C before.
void Spread(const Tile& tile, const char* a, char* c) {
  for (uint64_t row = 0; row < tile.m; ++row) {
    char unwritten = 0;
    for (uint64_t i = 0; i < tile.k; ++i) unwritten |= a[tile.InA(row, i)];
    for (uint64_t panel = 0; panel < tile.panels(); ++panel) {
      char* const to = c + (panel * tile.c_rows() + row) * kStripeRow;
      if (unwritten || tile.from_zero || tile.from_bias) {
        std::memset(to, unwritten, kStripeRow);
      }
    }
  }
}

// What the tile's numbers, and no others, take.
void AddTileSpans(const Tile& tile, Instruction* instruction) {
  std::vector<Span>* const reads = &instruction->reads;
  const uint64_t depth = tile.k / tile.c0();
  const uint64_t rest = tile.k % tile.c0() * tile.a.size();
  const uint64_t b_pitch = tile.panels() * kFractal;
  if (tile.m == 1) {
    AddSpan(reads, tile.a.memory, tile.a.begin, tile.k * tile.a.size());
  } else {
    const uint64_t whole = tile.m / kSide;
    AddSpan(reads, tile.a.memory, tile.a.begin, depth * kFractal, whole,
            tile.a_row_pitch);
    AddSpan(reads, tile.a.memory, tile.a.begin + whole * tile.a_row_pitch,
            tile.m % kSide * kBlock, depth, kFractal);
    for (uint64_t row = 0; row < tile.m; row += kSide) {
      AddSpan(reads, tile.a.memory,
              tile.a.begin + row / kSide * tile.a_row_pitch + depth * kFractal,
              rest, std::min(kSide, tile.m - row), kBlock);
    }
  }
  // Rows of A that nobody wrote give rows of C that nobody need read.
  Loosen(reads);
  AddSpan(reads, tile.b.memory, tile.b.begin, tile.n * kBlock, depth, b_pitch);
  AddSpan(reads, tile.b.memory, tile.b.begin + depth * b_pitch, rest, tile.n,
          kBlock);
  if (tile.from_bias) {
    // Bytes are loaded in squares of 32 columns, a bias without their padding.
    const uint64_t more = tile.c.type == Type::kInt32 ? kBlock - 1 : 0;
    const uint64_t sure = tile.n > more ? tile.n - more : 0;
    AddSpan(reads, tile.bias.memory, tile.bias.begin, sure * sizeof(float));
    if (more != 0) {
      AddSpan(reads, tile.bias.memory, tile.bias.begin + sure * sizeof(float),
              (tile.n - sure) * sizeof(float));
      reads->back().loose = true;
    }
  } else if (!tile.from_zero) {
    AddSpan(reads, tile.c.memory, tile.c.begin, tile.m * kStripeRow,
            tile.panels(), tile.c_rows() * kStripeRow);
    reads->back().loose = true;
  }
  AddSpan(&instruction->writes, tile.c.memory, tile.c.begin,
          tile.panels() * tile.c_rows() * kStripeRow);
}

}  // namespace

void MultiplyAccumulate(const Call& call, const Operand& dst, const Operand& a,
                        const Operand& b, const Operand* bias,
                        const AscendC::MmadParams& params) {
  call.On(CoreType::kAic);
  call.In("dst", dst, {Memory::kL0C});
  call.In("A", a, {Memory::kL0A});
  call.In("B", b, {Memory::kL0B});
  call.OneOf("A", a.type,
             {Type::kInt8, Type::kHalf, Type::kBf16, Type::kFloat});
  call.Same("B", b.type, a.type);
  const Type sum = a.type == Type::kInt8 ? Type::kInt32 : Type::kFloat;
  call.OneOf("dst", dst.type, {sum});
  call.Aligned("dst", dst, kFractalOfC);
  call.Aligned("A", a, kFractal);
  call.Aligned("B", b, kFractal);
  if (bias != nullptr) {
    // From L0C it would be a second accumulator, which the twin does not know.
    call.In("bias", *bias, {Memory::kBias});
    call.OneOf("bias", bias->type, {sum});
    call.Aligned("bias", *bias, 64);
  }
  call.Between("m", params.m, 0, 4095);
  call.Between("n", params.n, 0, 4095);
  call.Between("k", params.k, 0, 4095);
  if (params.unitFlag == 1) call.Equal("unitFlag", 1, 0);
  call.Between("unitFlag", params.unitFlag, 0, 3);
  if (params.isBias) call.Refuse("isBias: deprecated; use cmatrixInitVal");
  if (bias == nullptr && !params.cmatrixInitVal && params.cmatrixSource) {
    call.Refuse("cmatrixSource: expected the form of Mmad that takes the bias");
  }
  if (params.kDirectionAlign) {
    call.OneOf("A of kDirectionAlign", a.type, {Type::kFloat});
  }
  if (params.m == 0 || params.n == 0 || params.k == 0) return;

  Tile tile{};
  tile.c = dst;
  tile.a = a;
  tile.b = b;
  tile.from_bias = bias != nullptr;
  if (bias != nullptr) tile.bias = *bias;
  tile.from_zero = bias == nullptr && params.cmatrixInitVal;
  tile.m = params.m;
  tile.n = params.n;
  tile.k = params.k;
  tile.a_row_pitch = (params.kDirectionAlign ? 2 * CeilDiv(tile.k, kSide)
                                             : CeilDiv(tile.k, tile.c0())) *
                     kFractal;
  tile.numerics = ThisNumerics();

  Instruction instruction = call.Start(Pipe::kM);
  AddTileSpans(tile, &instruction);
  instruction.work.cube_steps =
      CeilDiv(tile.m, kSide) * tile.panels() * CeilDiv(tile.k, tile.c0());
  instruction.work.of_floats = tile.a.size() == sizeof(float);
  instruction.in_order = tile.m / kSide * (tile.n / kSide) >= kOrderedBlocks;
  instruction.run = [tile] { Run(tile); };
  instruction.spread = [tile](const char* a, char* c) { Spread(tile, a, c); };
  const auto issue = [&] { Issue(std::move(instruction)); };
  if (params.unitFlag == 0) return issue();
  UnitMmad(params.unitFlag == 3, call.site(), issue);
}

void SetHf32(const Call& call, bool enable) {
  call.On(CoreType::kAic);
  if (enable) {
    call.Refuse("mode: expected DISABLE: the twin rounds no operand to HF32");
  }
}

namespace {

// One move out of L0C.
struct Result {
  Operand dst;
  Operand src;
  bool rows;  // ROW_MAJOR, or NZ
  uint64_t m;
  uint64_t n;
  uint64_t src_pitch;  // bytes between stripes of 16 columns
  uint64_t dst_pitch;  // bytes between rows, or between stripes
  uint64_t stripe;     // columns of a stripe of NZ in the destination
  bool relu;
  float scale;  // of DEQF16
  Type atomic;
  Numerics numerics;
};

void StoreFloats(const Result& result, const float* source, uint64_t count,
                 char* to) {
  alignas(64) char line[kStripeRow];
  if (result.dst.type == Type::kInt32) {
    for (uint64_t i = 0; i < count; ++i) {
      const int32_t x =
          Read<int32_t>(reinterpret_cast<const char*>(source + i));
      Write(line + i * sizeof(x), result.relu && x < 0 ? 0 : x);
    }
    return StoreToGlobal(to, line, count * sizeof(int32_t), result.atomic);
  }
  float from[kSide];
  for (uint64_t i = 0; i < count; ++i) {
    from[i] = source[i];
    if (result.src.type == Type::kInt32) {
      const char* const at = reinterpret_cast<const char*>(source + i);
      from[i] = static_cast<float>(Read<int32_t>(at)) * result.scale;
    }
    if (result.relu && from[i] < 0.0f) from[i] = 0.0f;
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (result.dst.type == Type::kFloat) {
      const float x = result.numerics.saturate
                          ? Saturate(from[i], kLargestFloat)
                          : Canonical(from[i]);
      std::memcpy(line + i * sizeof(x), &x, sizeof(x));
      continue;
    }
    const bool bf16 = result.dst.type == Type::kBf16;
    const float x = result.numerics.saturate
                        ? Saturate(from[i], bf16 ? kLargestBf16 : kLargestHalf)
                        : from[i];
    const uint16_t bits = bf16 ? NearestBf16(x) : HalfOfFloat(x);
    std::memcpy(line + i * sizeof(bits), &bits, sizeof(bits));
  }
  StoreToGlobal(to, line, count * result.dst.size(), result.atomic);
}

void Run(const Result& result) {
  const FloatScope scope(result.numerics.flush_subnormals);
  const uint64_t size = result.dst.size();
  const char* const from = Bytes(result.src.memory, result.src.begin);
  char* const to = Bytes(result.dst.memory, result.dst.begin);
  for (uint64_t column = 0; column < result.n; column += result.stripe) {
    const uint64_t count = std::min(result.stripe, result.n - column);
    const char* const stripe = from + column / kSide * result.src_pitch +
                               column % kSide * sizeof(float);
    for (uint64_t row = 0; row < result.m; ++row) {
      char* const at = result.rows
                           ? to + row * result.dst_pitch + column * size
                           : to + column / result.stripe * result.dst_pitch +
                                 row * result.stripe * size;
      StoreFloats(result,
                  reinterpret_cast<const float*>(stripe + row * kStripeRow),
                  count, at);
    }
  }
}

}  // namespace

void MoveResult(const Call& call, const Operand& dst, const Operand& src,
                AscendC::CO2Layout layout,
                const AscendC::FixpipeParamsV220& params) {
  const bool rows = layout == AscendC::CO2Layout::ROW_MAJOR;
  call.On(CoreType::kAic);
  call.In("src", src, {Memory::kL0C});
  const bool integers = src.type == Type::kInt32;
  call.OneOf("src", src.type, {Type::kFloat, Type::kInt32});
  call.Aligned("src", src, 64);
  if (rows) {
    call.In("dst", dst, {Memory::kGm});
    call.Aligned("dst", dst, dst.size());
  } else {
    call.In("dst", dst, {Memory::kGm, Memory::kL1});
    call.Aligned("dst", dst, kBlock);
  }
  switch (params.quantPre) {
    case QuantMode_t::NoQuant:
      call.OneOf("dst of NoQuant", dst.type, {src.type});
      break;
    case QuantMode_t::DEQF16:
      call.OneOf("src of DEQF16", src.type, {Type::kInt32});
      call.OneOf("dst of DEQF16", dst.type, {Type::kHalf});
      break;
    case QuantMode_t::F322F16:
      call.OneOf("dst of F322F16", dst.type, {Type::kHalf});
      break;
    case QuantMode_t::F322BF16:
      call.OneOf("dst of F322BF16", dst.type, {Type::kBf16});
      break;
  }
  call.Between("nSize", params.nSize, 0, 4095);
  call.Between("mSize", params.mSize, 0, rows ? 8192 : 65535);
  if (params.isChannelSplit) {
    if (rows || dst.type != Type::kFloat) {
      call.Refuse("isChannelSplit: expected an NZ of float");
    }
    call.Multiple("nSize", params.nSize, 8);
  } else if (!rows) {
    call.Multiple("nSize", params.nSize, kSide);
  } else if (ThisNumerics().fixpipe_n_of_16) {
    call.Multiple("nSize by fixpipe_n_of_16", params.nSize, kSide);
  }
  if (integers && params.quantPre != QuantMode_t::DEQF16) {
    call.OneOf("src of F322F16 and F322BF16", dst.type, {Type::kInt32});
  }
  call.Equal("ndNum", params.ndNum, 1);
  if (params.unitFlag != 0) call.Equal("unitFlag", params.unitFlag, 3);
  if (params.mSize == 0 || params.nSize == 0) return;
  call.Between("srcStride", params.srcStride, RoundUp(params.mSize, kSide),
               65535);
  call.Multiple("srcStride", params.srcStride, kSide);
  call.Between("dstStride", params.dstStride, 1, 0xFFFFFFFF);

  Result result{};
  result.dst = dst;
  result.src = src;
  result.rows = rows;
  result.m = params.mSize;
  result.n = params.nSize;
  result.src_pitch = params.srcStride * kStripeRow;
  result.dst_pitch = params.dstStride * (rows ? dst.size() : kBlock);
  result.stripe = params.isChannelSplit ? 8 : kSide;
  result.relu = params.reluEn;
  result.scale = FloatOfBits(static_cast<uint32_t>(params.deqScalar));
  result.atomic = AtomicFor(call, dst);
  result.numerics = ThisNumerics();

  Instruction instruction = call.Start(Pipe::kFix);
  instruction.atomic = result.atomic != Type::kNone;
  const uint64_t whole = result.n / kSide;
  AddSpan(&instruction.reads, src.memory, src.begin, result.m * kStripeRow,
          whole, result.src_pitch);
  AddSpan(&instruction.reads, src.memory, src.begin + whole * result.src_pitch,
          result.n % kSide * sizeof(float), result.m, kStripeRow);
  const uint64_t size = dst.size();
  if (rows) {
    AddSpan(&instruction.writes, dst.memory, dst.begin, result.n * size,
            result.m, result.dst_pitch);
  } else {
    AddSpan(&instruction.writes, dst.memory, dst.begin,
            result.m * result.stripe * size, result.n / result.stripe,
            result.dst_pitch);
  }
  instruction.work.bytes = result.m * result.n * size;
  instruction.run = [result] { Run(result); };
  const auto issue = [&] { Issue(std::move(instruction)); };
  if (params.unitFlag == 0) return issue();
  UnitResult(call.site(), issue);
}

}  // namespace ascend_twin
