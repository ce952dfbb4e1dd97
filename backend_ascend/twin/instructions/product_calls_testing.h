// Products: matrices come to L0 in each way, and C is what plain C++ sums.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_PRODUCT_CALLS_TESTING_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_PRODUCT_CALLS_TESTING_H_

#include <cmath>
#include <string>
#include <vector>

#include "backend_ascend/twin/instructions/fake_core_testing.h"

namespace twin_instructions {

inline float Sum(MmadOrder order, float sum,
                 const std::vector<float>& products) {
  const int64_t k = products.size();
  switch (order) {
    case MmadOrder::kAscending:
      for (int64_t i = 0; i < k; ++i) sum += products[i];
      return sum;
    case MmadOrder::kReversed:
      for (int64_t i = k; i-- > 0;) sum += products[i];
      return sum;
    case MmadOrder::kEvenOdd:
      for (int64_t i = 0; i < k; i += 2) sum += products[i];
      for (int64_t i = 1; i < k; i += 2) sum += products[i];
      return sum;
    case MmadOrder::kBlocksOf16:
      for (int64_t i = 0; i < k; i += 16) {
        std::vector<float> block(16, 0.0f);
        for (int64_t j = i; j < k && j < i + 16; ++j)
          block[j - i] = products[j];
        sum += PairTree(block);
      }
      return sum;
  }
  return sum;
}

enum class Way { kFractals, kImage };

struct Shape {
  uint64_t m, n, k;
};

const LocalTensor<float> kC(TPosition::CO1, 0, 32768);

// Moves rows x columns of a matrix to L1, as NZ with rows padded to 16.
template <typename T>
void ToL1(const LocalTensor<T>& l1, Matrix<T>* from, uint64_t row,
          uint64_t column, uint64_t rows, uint64_t columns) {
  Nd2NzParams params;
  params.ndNum = 1;
  params.nValue = rows;
  params.dValue = columns;
  params.srcDValue = from->columns;
  params.dstNzC0Stride = Up(rows, 16);
  params.dstNzNStride = 1;
  DataCopy(l1, from->tensor[row * from->columns + column], params);
}

// L1's NZ of `rows` x `columns` to L0, transposed or not.
template <typename T>
void Image(const LocalTensor<T>& l0, const LocalTensor<T>& l1, uint64_t rows,
           uint64_t columns, bool transpose) {
  LoadData3DParamsV2<T> params;
  params.l1H = 1;
  params.l1W = Up(rows, 16);
  params.channelSize = Up(columns, 32 / sizeof(T));
  params.kExtension = params.channelSize;
  params.mExtension = params.l1W;
  params.enTranspose = transpose;
  LoadData(l0, l1, params);
}

template <typename T>
void LoadA(const LocalTensor<T>& l0, const LocalTensor<T>& l1, Shape s,
           bool transposed, Way way) {
  constexpr uint64_t c0 = 32 / sizeof(T);
  if (way == Way::kImage || (transposed && sizeof(T) == 4)) {
    transposed ? Image(l0, l1, s.k, s.m, true) : Image(l0, l1, s.m, s.k, false);
    return;
  }
  LoadData2DParams params;
  if (!transposed) {
    params.repeatTimes = Up(s.k, c0) / c0;
    params.srcStride = Up(s.m, 16) / 16;
    for (uint64_t i = 0; i < Up(s.m, 16) / 16; ++i) {
      LoadData(l0[i * params.repeatTimes * 16 * c0], l1[i * 16 * c0], params);
    }
    return;
  }
  params.repeatTimes = Up(s.k, 16) / 16;
  params.srcStride = 1;
  params.ifTranspose = true;
  for (uint64_t i = 0; i < Up(s.m, 16) / 16; ++i) {
    const uint64_t at = i * params.repeatTimes * 256;
    LoadData(l0[at], l1[at], params);
  }
}

template <typename T>
void LoadB(const LocalTensor<T>& l0, const LocalTensor<T>& l1, Shape s,
           bool transposed, Way way) {
  constexpr uint64_t c0 = 32 / sizeof(T);
  LoadData2DParams params;
  if (transposed) {  // stored [n, k]: as it lies
    params.repeatTimes = Up(s.n, 16) / 16 * (Up(s.k, c0) / c0);
    params.srcStride = 1;
    LoadData(l0, l1, params);
  } else if (way == Way::kImage || sizeof(T) == 4) {
    Image(l0, l1, s.k, s.n, false);
  } else {
    params.repeatTimes = Up(s.n, 16) / 16;
    params.srcStride = Up(s.k, 16) / 16;
    params.ifTranspose = true;
    for (uint64_t i = 0; i < Up(s.k, 16) / 16; ++i) {
      LoadData(l0[i * params.repeatTimes * 256], l1[i * 256], params);
    }
  }
}

// The whole way of a product, its depth in parts of at most `part`.
template <typename T>
void Gemm(Shape s, bool trans_a, bool trans_b, Way way, uint64_t part,
          MmadOrder order, const char* name) {
  core->numerics.mmad_order = order;
  Matrix<T> a(0, trans_a ? s.k : s.m, (trans_a ? s.m : s.k) + 3);
  Matrix<T> b(100000, trans_b ? s.n : s.k, (trans_b ? s.k : s.n) + 5);
  Matrix<T> c(200000, s.m, s.n + 1);
  Matrix<float> sums(300000, s.m, s.n + 1);
  Fill(&a, trans_a ? s.k : s.m);
  Fill(&b, trans_b ? s.n : s.k);
  const LocalTensor<T> a1(TPosition::A1, 0, 65536);
  const LocalTensor<T> b1(TPosition::B1, 256 << 10, 65536);
  const LocalTensor<T> a2(TPosition::A2, 512, 16384);
  const LocalTensor<T> b2(TPosition::B2, 1024, 16384);
  std::vector<float> expected(s.m * s.n, 0.0f);
  for (uint64_t begin = 0; begin < s.k; begin += part) {
    const Shape p{s.m, s.n, std::min(part, s.k - begin)};
    trans_a ? ToL1(a1, &a, begin, 0, p.k, p.m)
            : ToL1(a1, &a, 0, begin, p.m, p.k);
    trans_b ? ToL1(b1, &b, 0, begin, p.n, p.k)
            : ToL1(b1, &b, begin, 0, p.k, p.n);
    LoadA(a2, a1, p, trans_a, way);
    LoadB(b2, b1, p, trans_b, way);
    MmadParams params;
    params.m = p.m == 1 ? 16 : p.m;  // one row would be read as a vector
    params.n = p.n;
    params.k = p.k;
    params.cmatrixInitVal = begin == 0;
    params.kDirectionAlign = sizeof(T) == 4 && trans_a;
    Mmad(kC, a2, b2, params);
    for (uint64_t i = 0; i < p.m; ++i) {
      for (uint64_t j = 0; j < p.n; ++j) {
        std::vector<float> products;
        for (uint64_t k = begin; k < begin + p.k; ++k) {
          products.push_back(Widen(trans_a ? a.at(k, i) : a.at(i, k)) *
                             Widen(trans_b ? b.at(j, k) : b.at(k, j)));
        }
        float* const sum = &expected[i * s.n + j];
        *sum = Sum(order, *sum, products);
      }
    }
  }
  FixpipeParamsV220 out(s.n, s.m, Up(s.m, 16), s.n + 1, false);
  Fixpipe(sums.tensor, kC, out);
  if (sizeof(T) == 2) {
    out.quantPre = std::is_same<T, half>::value ? QuantMode_t::F322F16
                                                : QuantMode_t::F322BF16;
    Fixpipe<T, float, CFG_ROW_MAJOR>(c.tensor, kC, out);
  }
  for (uint64_t i = 0; i < s.m; ++i) {
    for (uint64_t j = 0; j < s.n; ++j) {
      const float want = expected[i * s.n + j];
      const bool same = std::memcmp(&sums.at(i, j), &want, 4) == 0;
      if (!same ||
          (sizeof(T) == 2 && Widen(c.at(i, j)) != Widen(Narrow<T>(want)))) {
        Say(std::string("gemm ") + name + " [" + std::to_string(i) + ", " +
            std::to_string(j) + "] of " + std::to_string(s.m) + " " +
            std::to_string(s.n) + " " + std::to_string(s.k) +
            (trans_a ? " At" : "") + (trans_b ? " Bt" : "") +
            (way == Way::kImage ? " image" : "") + ": " +
            std::to_string(sums.at(i, j)) + " not " + std::to_string(want));
        return;
      }
    }
  }
}

template <typename T>
void Gemms(const char* name) {
  const Shape shapes[] = {{16, 16, 16}, {1, 1, 1},    {15, 17, 33},
                          {33, 15, 17}, {17, 33, 15}, {1, 33, 16},
                          {33, 1, 20},  {20, 24, 1},  {40, 50, 70}};
  for (const Shape& shape : shapes) {
    for (int form = 0; form < 8; ++form) {
      Gemm<T>(shape, form & 1, form & 2,
              form & 4 ? Way::kImage : Way::kFractals, shape.k,
              MmadOrder::kAscending, name);
    }
  }
  for (int order = 0; order < 4; ++order) {
    Gemm<T>({17, 33, 70}, false, false, Way::kImage, 32,
            static_cast<MmadOrder>(order), name);
    Gemm<T>({17, 33, 70}, true, true, Way::kImage, 70,
            static_cast<MmadOrder>(order), name);
  }
}

}  // namespace twin_instructions

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_PRODUCT_CALLS_TESTING_H_
