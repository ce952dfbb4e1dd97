// Kernels that read or write beyond their tiles, between margins: a write is
// found, and a read makes NaN of what is computed.

#include "backend_ascend/host/checks/guards.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace hpmoe;  // NOLINT: a program of its own

// What a kernel does with its tile.
struct Drill final : Kernels {
  std::function<void(const GemmTile&)> gemm = [](const GemmTile&) {};
  std::function<void(const SwigluTile&)> swiglu = [](const SwigluTile&) {};
  std::function<void(const SwigluGradTile&)> grad = [](const auto&) {};
  std::function<void(const CombineTile&)> combine = [](const auto&) {};
  std::function<void(const RowDotTile&)> dots = [](const RowDotTile&) {};
  std::function<void(const ScaleRowsTile&)> scale = [](const auto&) {};
  std::function<void(const NormTile&)> norm = [](const NormTile&) {};
  std::function<void(const CodeGemmTile&)> codes = [](const auto&) {};
  std::function<void(const QuantiseRowsTile&)> quantise = [](const auto&) {};
  std::function<void(const CodeSwigluTile&)> code_swiglu = [](const auto&) {};
  std::function<void(const DequantiseRowsTile&)> meaning = [](const auto&) {};
  std::function<void(const char*, size_t, char*)> copy = [](const char*, size_t,
                                                            char*) {};
  std::function<void(int32_t*, float*)> header = [](int32_t*, float*) {};

  void Gemm(const GemmTile& tile) override { gemm(tile); }
  void Swiglu(const SwigluTile& tile) override { swiglu(tile); }
  void SwigluGrad(const SwigluGradTile& tile) override { grad(tile); }
  void Combine(const CombineTile& tile) override { combine(tile); }
  void RowDots(const RowDotTile& tile) override { dots(tile); }
  void ScaleRows(const ScaleRowsTile& tile) override { scale(tile); }
  void Norm(const NormTile& tile) override { norm(tile); }
  void CodeGemm(const CodeGemmTile& tile) override { codes(tile); }
  void QuantiseRows(const QuantiseRowsTile& tile) override { quantise(tile); }
  void CodeSwiglu(const CodeSwigluTile& tile) override { code_swiglu(tile); }
  void DequantiseRows(const DequantiseRowsTile& tile) override {
    meaning(tile);
  }
  void Copy(const void* from, size_t bytes, void* to) override {
    copy(static_cast<const char*>(from), bytes, static_cast<char*>(to));
  }
  void WriteHeader(int32_t, float, int32_t* slot, float* weight) override {
    header(slot, weight);
  }
  void ReadHeader(const int32_t*) override {}
  void* Scratch(GemmScratch::Slot, int64_t, int64_t) override {
    return nullptr;
  }
};

float* At(const void* tile, int64_t index) {
  return static_cast<float*>(const_cast<void*>(tile)) + index;
}

constexpr DType f32 = kFloat32;

class Guards : public testing::Test {
 protected:
  float* Take(int64_t count) {
    used_ += count;
    return memory_.data() + used_ - count;
  }

  // What is found of a call on guarded kernels, which are forgotten then.
  std::string Found(const std::function<void(Kernels*)>& call) {
    GuardedKernels guarded(&drill, &margins_);
    call(&guarded);
    drill = Drill{};
    return guarded.found();
  }

  Drill drill;

 private:
  std::vector<float> memory_ = std::vector<float>(4096, 1.0f);
  int64_t used_ = 0;
  Margins margins_;
};

// [2, 3] = [2, 4] @ [4, 3], rows of wider tensors.
class GuardedGemm : public Guards {
 protected:
  std::string FoundOf(const std::function<void(const GemmTile&)>& gemm) {
    drill.gemm = gemm;
    return Found([this](Kernels* k) { k->Gemm(tile); });
  }

  GemmTile tile{Take(40), Take(40), Take(40), 8, 7, 9, 2, 3, 4, f32};
  const float* const c = At(tile.c, 0);
};

TEST_F(GuardedGemm, AllThatIsWrittenBeyondCIsNamed) {
  EXPECT_EQ(FoundOf([](const GemmTile&) {}), "");
  EXPECT_EQ(FoundOf([](const GemmTile& t) { *At(t.c, 2 * t.ldc) = 5; }),
            "wrote element [2, 0] of c, which is [2, 3]");
  EXPECT_EQ(FoundOf([](const GemmTile& t) { *At(t.c, -t.ldc) = 5; }),
            "wrote element [-1, 0] of c, which is [2, 3]");
  EXPECT_EQ(FoundOf([](const GemmTile& t) { *At(t.c, t.ldc + 3) = 5; }),
            "wrote element [1, 3] of c, which is [2, 3]");
  EXPECT_EQ(FoundOf([](const GemmTile& t) { *At(t.c, t.ldc - 1) = 5; }),
            "wrote element [1, -1] of c, which is [2, 3]");
}

TEST_F(GuardedGemm, AnOperandIsOnlyRead) {
  EXPECT_EQ(FoundOf([](const GemmTile& t) { *At(t.b, 1) = 5; }),
            "wrote element [0, 0] of b, which is [4, 3] and only read");
  // Another task that writes the operand meanwhile is not this kernel's fault.
  EXPECT_EQ(FoundOf([this](const GemmTile&) { *At(tile.a, 0) = 5; }), "");
}

TEST_F(GuardedGemm, WhatIsReadBeyondAnOperandIsNaN) {
  EXPECT_EQ(FoundOf([](const GemmTile& t) {
              *At(t.c, 0) = *At(t.a, 2 * t.lda);            // a row too many
              *At(t.c, 1) = *At(t.b, 4 * t.ldb);            // a term too many
              *At(t.c, 2) = *At(t.b, t.ldb + 3);            // a column too many
              *At(t.c, t.ldc) = *At(t.a, 3) + *At(t.b, 2);  // its own
            }),
            "");
  EXPECT_TRUE(std::isnan(c[0]) && std::isnan(c[1]) && std::isnan(c[2]));
  EXPECT_EQ(c[9], 2);
}

TEST_F(GuardedGemm, WeightsOfRowsAreOnlyRead) {
  tile.row_weight = Take(4);
  EXPECT_EQ(
      FoundOf([](const GemmTile& t) {
        *At(t.c, 0) = t.row_weight[2];  // a row too many
        *At(t.c, 1) = t.row_weight[0] + t.row_weight[1];
        *At(t.row_weight, 0) = 5;
      }),
      "wrote element [0, 0] of row_weight, which is [1, 2] and only read");
  EXPECT_TRUE(std::isnan(c[0]));
  EXPECT_EQ(c[1], 2);
}

TEST_F(GuardedGemm, GatheredRowsHaveMarginsToo) {
  const void* const a_rows[] = {At(tile.a, 16), At(tile.a, 0)};
  tile.a_rows = a_rows;
  EXPECT_EQ(FoundOf([](const GemmTile& t) {
              *At(t.c, 0) = *At(t.a_rows[1], 4);  // a term too many
              *At(t.c, 1) = *At(t.a_rows[0], 3) + *At(t.a_rows[1], 3);
              *At(t.a_rows[0], -1) = 5;
            }),
            "wrote element [0, -1] of a, which is [2, 4]");
  EXPECT_TRUE(std::isnan(c[0]));
  EXPECT_EQ(c[1], 2);
}

TEST_F(GuardedGemm, TransposedOperandsAreBoundedByTheirOwnShape) {
  tile.trans_a = tile.trans_b = true;  // a [4, 2], b [3, 4]
  EXPECT_EQ(FoundOf([](const GemmTile& t) {
              *At(t.c, 0) = *At(t.a, 4 * t.lda);
              *At(t.c, 1) = *At(t.b, 3 * t.ldb);
              *At(t.c, 2) = *At(t.a, 3 * t.lda + 1) + *At(t.b, 2 * t.ldb + 3);
            }),
            "");
  EXPECT_TRUE(std::isnan(c[0]) && std::isnan(c[1]));
  EXPECT_EQ(c[2], 2);
}

TEST_F(GuardedGemm, ACarryIsHandedOn) {
  tile.carry = Take(30);
  tile.ld_carry = 9;
  tile.carry_out = true;
  tile.c = nullptr;
  EXPECT_EQ(FoundOf([](const GemmTile& t) { t.carry[2 * t.ld_carry] = 5; }),
            "wrote element [2, 0] of carry, which is [2, 3]");
  tile.carry_in = true;
  EXPECT_EQ(
      FoundOf([](const GemmTile& t) { t.carry[0] += 4, t.carry[-1] = 5; }),
      "wrote element [0, -1] of carry, which is [2, 3]");
  EXPECT_EQ(tile.carry[0], 5);
}

TEST_F(Guards, OfSwiglu) {
  SwigluTile tile{Take(40), Take(40), Take(40), 8,         9,    2,
                  3,        Take(20), f32,      kAbsolute, false};
  drill.swiglu = [](const SwigluTile& t) { *At(t.out, 2 * t.ld_out) = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->Swiglu(tile); }),
            "wrote element [2, 0] of out, which is [2, 3]");
}

TEST_F(Guards, OfSwigluGrad) {
  SwigluGradTile tile{};
  tile.d_out = Take(40);
  tile.gate = Take(40);
  tile.up = Take(40);
  tile.d_gate = Take(40);
  tile.d_up = Take(40);
  tile.ld_d_out = tile.ld_in = tile.ld_grad = 8;
  tile.rows = 2;
  tile.cols = 3;
  tile.d_row_weight = Take(20);
  drill.grad = [](const SwigluGradTile& t) { t.d_row_weight[2] = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->SwigluGrad(tile); }),
            "wrote element [0, 2] of d_row_weight, which is [1, 2]");
}

// Two tokens of two slots.
class GuardedCombine : public Guards {
 protected:
  CombineTile tile{Take(40), Take(20), Take(40), 8, 9, 2, 2, 3, f32};
};

TEST_F(GuardedCombine, WritesItsOwnAndReadsItsOwn) {
  drill.combine = [](const CombineTile& t) { *At(t.y, t.ld_y + 3) = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->Combine(tile); }),
            "wrote element [1, 3] of y, which is [2, 3]");
  drill.combine = [](const CombineTile& t) {
    *At(t.y, 0) = *At(t.returned, 4 * t.ld);
    *At(t.y, 1) = t.weights[4];
    *At(t.y, 2) = *At(t.returned, 3 * t.ld + 2) + t.weights[3];
  };
  EXPECT_EQ(Found([&](Kernels* k) { k->Combine(tile); }), "");
  const float* const y = At(tile.y, 0);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
  EXPECT_EQ(y[2], 2);
}

TEST_F(GuardedCombine, GatheredRowsAreOnlyRead) {
  const void* const rows[] = {At(tile.returned, 0), At(tile.returned, 8),
                              At(tile.returned, 0), At(tile.returned, 8)};
  tile.rows = rows;
  tile.returned = nullptr;
  drill.combine = [](const CombineTile& t) { *At(t.rows[3], 3) = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->Combine(tile); }),
            "wrote element [3, 3] of rows, which is [4, 3]");
}

TEST_F(Guards, OfRowDots) {
  float* const out = Take(20);
  RowDotTile tile{Take(10), Take(40), out, 0, 8, 3, 4, f32};
  drill.dots = [](const RowDotTile& t) {
    t.out[0] = *At(t.a, 4);
    t.out[1] = *At(t.b, 3 * t.ld_b);
    t.out[2] = *At(t.a, 3) + *At(t.b, 2 * t.ld_b + 3);
    t.out[3] = 5;
  };
  EXPECT_EQ(Found([&](Kernels* k) { k->RowDots(tile); }),
            "wrote element [0, 3] of out, which is [1, 3]");
  EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
  EXPECT_EQ(out[2], 2);
}

TEST_F(Guards, OfScaleRows) {
  ScaleRowsTile tile{Take(10), Take(40), nullptr, 0, 8, 3, 4, f32};
  drill.scale = [](const ScaleRowsTile& t) { *At(t.out, 3 * t.ld_out) = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->ScaleRows(tile); }),
            "wrote element [3, 0] of out, which is [3, 4]");
}

TEST_F(Guards, OfNorm) {
  NormTile tile{};
  tile.work = Work::kNormGrad;
  tile.dx = Take(40);
  tile.y = Take(40);
  tile.gain = Take(8);
  tile.out = Take(40);
  tile.ld = 8;
  tile.rows = 3;
  tile.cols = 4;
  tile.dtype = f32;
  drill.norm = [](const NormTile& t) { *At(t.out, 3 * t.ld) = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->Norm(tile); }),
            "wrote element [3, 0] of out, which is [3, 4]");
  drill.norm = [](const NormTile& t) {
    *At(t.out, 0) = *At(t.y, 3 * t.ld);               // a row too many
    *At(t.out, 1) = *At(t.gain, 4);                   // a column too many
    *At(t.out, 2) = *At(t.dx, 4);                     // a column too many
    *At(t.out, t.ld) = *At(t.y, 3) + *At(t.gain, 3);  // its own
  };
  EXPECT_EQ(Found([&](Kernels* k) { k->Norm(tile); }), "");
  const float* const x = At(tile.out, 0);
  EXPECT_TRUE(std::isnan(x[0]) && std::isnan(x[1]) && std::isnan(x[2]));
  EXPECT_EQ(x[8], 2);
  tile.work = Work::kGainGrad;
  tile.out_cols = 2;
  drill.norm = [](const NormTile& t) { *At(t.out, t.out_cols) = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->Norm(tile); }),
            "wrote element [0, 2] of out, which is [1, 2]");
}

// What lies beyond codes is -128, which no row has.
class GuardedCodes : public Guards {
 protected:
  float* const weight = Take(20);
  int8_t* const bytes = reinterpret_cast<int8_t*>(Take(60));
  int32_t* const sums = reinterpret_cast<int32_t*>(Take(40));
};

TEST_F(GuardedCodes, OfGemm) {
  CodeGemmTile tile{bytes, bytes + 80, sums, 8, 7, 9, 2, 3, 4};
  drill.codes = [](const CodeGemmTile& t) { t.c[2 * t.ldc] = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->CodeGemm(tile); }),
            "wrote element [2, 0] of c, which is [2, 3]");
  drill.codes = [](const CodeGemmTile& t) {
    const_cast<int8_t*>(t.a)[t.lda - 1] = 5;
    t.c[0] = t.a[4] + t.b[3];
  };
  EXPECT_EQ(Found([&](Kernels* k) { k->CodeGemm(tile); }),
            "wrote element [1, -1] of a, which is [2, 4]");
  EXPECT_EQ(sums[0], -256);
}

TEST_F(GuardedCodes, OfQuantiseRows) {
  QuantiseRowsTile tile{Take(10), bytes, weight, 4, 8, 3, 4, f32};
  drill.quantise = [](const QuantiseRowsTile& t) { t.codes[4] = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->QuantiseRows(tile); }),
            "wrote element [0, 4] of codes, which is [3, 4]");
  drill.quantise = [](const QuantiseRowsTile& t) { t.scales[3] = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->QuantiseRows(tile); }),
            "wrote element [0, 3] of scales, which is [1, 3]");
}

TEST_F(GuardedCodes, OfSwiglu) {
  CodeSwigluTile tile{};
  tile.gate = tile.up = sums;
  tile.row_scales = tile.gate_scales = tile.up_scales = weight;
  tile.codes = bytes;
  tile.scales = Take(4);
  tile.ld_in = tile.ld_codes = 8;
  tile.rows = 2;
  tile.cols = 3;
  drill.code_swiglu = [](const CodeSwigluTile& t) {
    t.scales[0] = t.row_scales[2];
    t.scales[1] = t.up_scales[3];
    t.codes[2 * t.ld_codes] = 5;
  };
  EXPECT_EQ(Found([&](Kernels* k) { k->CodeSwiglu(tile); }),
            "wrote element [2, 0] of codes, which is [2, 3]");
  EXPECT_TRUE(std::isnan(tile.scales[0]) && std::isnan(tile.scales[1]));
}

TEST_F(GuardedCodes, OfDequantiseRows) {
  DequantiseRowsTile tile{sums, weight, weight, Take(40), 8, 8, 2, 3, f32};
  drill.meaning = [](const DequantiseRowsTile& t) { *At(t.out, 3) = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->DequantiseRows(tile); }),
            "wrote element [0, 3] of out, which is [2, 3]");
}

TEST_F(Guards, OfCopy) {
  float* const to = Take(8);
  drill.copy = [](const char* from, size_t bytes, char* dest) {
    for (size_t i = 0; i < bytes + 2; ++i) dest[i] = from[i % bytes];
  };
  EXPECT_EQ(Found([&](Kernels* k) { k->Copy(Take(4), 16, to); }),
            "wrote element [0, 8] of to, which is [1, 8]");
}

TEST_F(Guards, OfHeaders) {
  int32_t slot = 0;
  float weight = 0;
  drill.header = [](int32_t* s, float* w) { s[0] = 3, w[1] = 5; };
  EXPECT_EQ(Found([&](Kernels* k) { k->WriteHeader(3, 0.5f, &slot, &weight); }),
            "wrote element [0, 1] of weight, which is [1, 1]");
  EXPECT_EQ(slot, 3);
}

}  // namespace
