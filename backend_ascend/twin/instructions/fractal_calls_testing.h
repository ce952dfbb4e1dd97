// Fractals that products do not go through, and the modes of what leaves L0C.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_FRACTAL_CALLS_TESTING_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_FRACTAL_CALLS_TESTING_H_

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend_ascend/twin/instructions/fake_core_testing.h"
#include "backend_ascend/twin/instructions/product_calls_testing.h"

namespace twin_instructions {

// A vector times a matrix, with a bias: A lies plain in L0A.
inline void Vector() {
  constexpr int kN = 20;
  constexpr int kK = 50;
  Matrix<bfloat16_t> a(0, 1, kK);
  Matrix<bfloat16_t> b(4096, kK, kN);
  Matrix<float> bias(65536, 1, 32);
  Matrix<float> c(131072, 1, kN);
  Fill(&a, 1);
  Fill(&b, kK);
  Fill(&bias, 1);
  const LocalTensor<bfloat16_t> a1(TPosition::A1, 0, 256);
  const LocalTensor<bfloat16_t> b1(TPosition::B1, 8192, 4096);
  const LocalTensor<float> bias1(TPosition::C1, 65536, 32);
  const LocalTensor<bfloat16_t> a2(TPosition::A2, 0, 256);
  const LocalTensor<bfloat16_t> b2(TPosition::B2, 0, 4096);
  const LocalTensor<float> table(TPosition::C2, 64, 32);
  DataCopy(a1, a.tensor, 64);
  DataCopy(bias1, bias.tensor, 32);
  DataCopy(table, bias1, DataCopyParams(1, 2, 0, 0));  // blocks of 64 bytes
  ToL1(b1, &b, 0, 0, kK, kN);
  LoadData2DParams one;
  one.repeatTimes = 1;
  LoadData(a2, a1, one);
  LoadB(b2, b1, Shape{1, kN, kK}, false, Way::kImage);
  Mmad(kC, a2, b2, table, MmadParams(1, kN, kK, 0, false, true));
  Fixpipe(c.tensor, kC, FixpipeParamsV220(kN, 1, 16, kN, false));
  for (int j = 0; j < kN; ++j) {
    float sum = bias.at(0, j);
    for (int k = 0; k < kK; ++k) sum += Widen(a.at(0, k)) * Widen(b.at(k, j));
    Expect("vector with bias", c.at(0, j), sum);
  }
}

// L0C to NZ in global memory and in L1, whole and split.
inline void Stripes() {
  FillMemory<float>(Memory::kL0C, 32 * 48);
  Matrix<float> gm(0, 1, 65536);
  const LocalTensor<bfloat16_t> l1(TPosition::A1, 64, 65536);
  const LocalTensor<float> c(TPosition::CO1, 0, 32768);
  FixpipeParamsV220 params(48, 20, 32, 90, false);
  const auto at = [](int row, int column) {
    return In<float>(
        Memory::kL0C)[column / 16 * 32 * 16 + row * 16 + column % 16];
  };
  // Stripes of `width` columns, 90 blocks of `block` elements apart.
  const auto check = [&](const char* name, int width, int block, auto got) {
    for (int i = 0; i < 20 * 48; ++i) {
      const int row = i / 48, column = i % 48;
      const int to = column / width * 90 * block + row * width + column % width;
      Expect(name, got(to, at(row, column)), 0);
    }
  };
  const auto in_gm = [&](int to, float want) { return gm.data[to] - want; };
  Fixpipe<float, float, CFG_NZ>(gm.tensor, c, params);
  check("NZ", 16, 8, in_gm);
  params.isChannelSplit = true;
  Fixpipe<float, float, CFG_NZ>(gm.tensor, c, params);
  check("NZ split", 8, 8, in_gm);
  params.isChannelSplit = false;
  params.quantPre = QuantMode_t::F322BF16;
  Fixpipe<bfloat16_t, float, CFG_NZ>(l1, c, params);
  check("NZ to L1", 16, 16, [](int to, float want) {
    return Widen(In<bfloat16_t>(Memory::kL1, 64)[to]) -
           Widen(Narrow<bfloat16_t>(want));
  });
}

// Part of a matrix in L1, as each of the forms of fractals in L0.
template <typename T>
void Part(bool to_b, bool transpose, const std::string& name) {
  constexpr int c0 = 32 / sizeof(T);
  constexpr int kImageRows = 48;
  constexpr int kRow = 16, kRows = 32, kColumn = c0, kColumns = 3 * c0;
  FillMemory<T>(Memory::kL1, kImageRows * 64);
  LoadData3DParamsV2<T> params;
  params.l1H = 1;
  params.l1W = kImageRows;
  params.channelSize = 64;
  params.mStartPt = kRow;
  params.mExtension = kRows;
  params.kStartPt = kColumn;
  params.kExtension = kColumns;
  params.enTranspose = transpose;
  const LocalTensor<T> l0(to_b ? TPosition::B2 : TPosition::A2, 1024, 8192);
  LoadData(l0, LocalTensor<T>(TPosition::A1, 0, 8192), params);
  const T* const out = In<T>(to_b ? Memory::kL0B : Memory::kL0A, 1024);
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      const int r = kRow + row;
      const int c = kColumn + column;
      const float want =
          Widen(In<T>(Memory::kL1)[c / c0 * kImageRows * c0 + r * c0 + c % c0]);
      // Across and down a fractal, and how many fractals lie in a row.
      const int across = (kColumns + 15) / 16;
      const int squares = kRows / c0;
      int at;
      if (!to_b && !transpose) {
        at = (row / 16 * (kColumns / c0) + column / c0) * 16 * c0 +
             row % 16 * c0 + column % c0;
      } else if (!to_b) {
        at = (column / 16 * squares + row / c0) * 16 * c0 + column % 16 * c0 +
             row % c0;
      } else {
        at = (row / c0 * across + column / 16) * 16 * c0 + column % 16 * c0 +
             row % c0;
      }
      Expect("part " + name, Widen(out[at]), want);
    }
  }
}

// Squares, each turned.
template <typename T>
void Squares(const std::string& name) {
  constexpr int c0 = 32 / sizeof(T);
  FillMemory<T>(Memory::kL1, 8 * 256);
  LoadData2dTransposeParams params(1, 2, 3, 5, 1);
  LoadDataWithTranspose(LocalTensor<T>(TPosition::A2, 512, 8192),
                        LocalTensor<T>(TPosition::A1, 0, 8192), params);
  const T* const out = In<T>(Memory::kL0A, 512);
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 16; ++column) {
        const int from = (1 + repeat * 3) * 256 + column / c0 * 16 * c0 +
                         row * c0 + column % c0;
        const int to =
            (repeat * 6 + row / c0 * 2) * 16 * c0 + column * c0 + row % c0;
        Expect("square " + name, Widen(out[to]),
               Widen(In<T>(Memory::kL1)[from]));
      }
    }
  }
}

// Two matrices to L1, rows a block apart.
inline void Several() {
  Matrix<float> gm(0, 64, 40);
  Fill(&gm, 64);
  const Nd2NzParams params(2, 5, 11, 400, 40, 21, 2, 512);
  DataCopy(LocalTensor<float>(TPosition::A1, 0, 4096), gm.tensor, params);
  for (int matrix = 0; matrix < 2; ++matrix) {
    for (int row = 0; row < 5; ++row) {
      for (int column = 0; column < 16; ++column) {
        const float got =
            In<float>(Memory::kL1)[matrix * 512 + column / 8 * 21 * 8 +
                                   row * 2 * 8 + column % 8];
        Expect("Nd2Nz", got,
               column < 11 ? gm.data[matrix * 400 + row * 40 + column] : 0.0f);
      }
    }
  }
}

// What the modes of the units do to what leaves them.
inline void Modes() {
  const LocalTensor<float> a(TPosition::A2, 0, 256);
  const LocalTensor<float> b(TPosition::B2, 0, 256);
  Matrix<float> out(0, 1, 16);
  Matrix<bfloat16_t> out16(1024, 1, 16);
  const auto product = [&](float x, float y) {
    std::memset(In<char>(Memory::kL0A), 0, 1024);
    std::memset(In<char>(Memory::kL0B), 0, 1024);
    In<float>(Memory::kL0A)[0] = x;
    In<float>(Memory::kL0B)[0] = y;
    Mmad(kC, a, b, MmadParams(16, 16, 8, 0, false, true));
    FixpipeParamsV220 params(16, 1, 16, 16, false);
    Fixpipe(out.tensor, kC, params);
    params.quantPre = QuantMode_t::F322BF16;
    Fixpipe<bfloat16_t, float, CFG_ROW_MAJOR>(out16.tensor, kC, params);
  };
  product(3e38f, 2.0f);
  Expect("infinity", out.data[0], INFINITY);
  product(INFINITY, 0.0f);
  Expect("nan", out.data[0], NAN);
  product(0x1p-100f, 0x1p-40f);
  Expect("subnormal", out.data[0], 0x1p-140f);
  core->numerics.flush_subnormals = true;
  product(0x1p-100f, 0x1p-40f);
  Expect("flushed product", out.data[0], 0);
  core->numerics.flush_subnormals = false;
  core->numerics.saturate = true;
  product(-3e38f, 2.0f);
  Expect("saturated", out.data[0], -std::numeric_limits<float>::max());
  Expect("saturated bf16", Widen(out16.data[0]), -0x1.FEp127);
  product(INFINITY, 0.0f);
  Expect("saturated nan", out.data[0], 0);
  core->numerics.saturate = false;
}

inline void Fractals() {
  Vector();
  Stripes();
  for (int form = 0; form < 3; ++form) {
    Part<bfloat16_t>(form == 2, form == 1, "bf16 " + std::to_string(form));
    Part<float>(form == 2, form == 1, "float " + std::to_string(form));
  }
  Squares<half>("half");
  Squares<float>("float");
  Several();
  Modes();
}

}  // namespace twin_instructions

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_FRACTAL_CALLS_TESTING_H_
