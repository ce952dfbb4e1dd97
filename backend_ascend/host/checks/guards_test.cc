// Kernels that read or write beyond their tiles, between margins: prints what
// is found of each, one a line, or what it computed.

#include "backend_ascend/host/checks/guards.h"

#include <cstdio>
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

struct Bench {
  std::vector<float> memory = std::vector<float>(4096, 1.0f);
  int64_t used = 0;
  Drill drill;
  Margins margins;

  float* Take(int64_t count) {
    used += count;
    return memory.data() + used - count;
  }

  // Runs `call` on guarded kernels.
  void Print(const char* name, const std::function<void(Kernels*)>& call) {
    GuardedKernels guarded(&drill, &margins);
    call(&guarded);
    std::printf("%s: %s\n", name, guarded.found().c_str());
    drill = Drill{};
  }
};

}  // namespace

int main() {
  Bench bench;
  Drill& drill = bench.drill;
  const DType f32 = kFloat32;

  // [2, 3] = [2, 4] @ [4, 3], rows of wider tensors.
  GemmTile gemm{
      bench.Take(40), bench.Take(40), bench.Take(40), 8, 7, 9, 2, 3, 4, f32};
  const auto run_gemm = [&gemm](Kernels* k) { k->Gemm(gemm); };
  bench.Print("right", run_gemm);
  drill.gemm = [](const GemmTile& t) { *At(t.c, 2 * t.ldc) = 5; };
  bench.Print("gemm, a row too many", run_gemm);
  drill.gemm = [](const GemmTile& t) { *At(t.c, -t.ldc) = 5; };
  bench.Print("gemm, a row before", run_gemm);
  drill.gemm = [](const GemmTile& t) { *At(t.c, t.ldc + 3) = 5; };
  bench.Print("gemm, a column too many", run_gemm);
  drill.gemm = [](const GemmTile& t) { *At(t.c, t.ldc - 1) = 5; };
  bench.Print("gemm, a column before", run_gemm);
  drill.gemm = [](const GemmTile& t) { *At(t.b, 1) = 5; };
  bench.Print("gemm, an operand", run_gemm);
  const float came = *At(gemm.a, 0);
  drill.gemm = [&gemm](const GemmTile&) { *At(gemm.a, 0) = 5; };
  bench.Print("gemm, beside another task that writes its operand", run_gemm);
  *At(gemm.a, 0) = came;
  drill.gemm = [](const GemmTile& t) {
    *At(t.c, 0) = *At(t.a, 2 * t.lda);            // a row too many
    *At(t.c, 1) = *At(t.b, 4 * t.ldb);            // a term too many
    *At(t.c, 2) = *At(t.b, t.ldb + 3);            // a column too many
    *At(t.c, t.ldc) = *At(t.a, 3) + *At(t.b, 2);  // its own
  };
  bench.Print("gemm, reads beyond", run_gemm);
  const float* c = At(gemm.c, 0);
  std::printf("read: %f %f %f %f\n", c[0], c[1], c[2], c[9]);

  float* const weights = bench.Take(4);
  gemm.row_weight = weights;
  drill.gemm = [](const GemmTile& t) {
    *At(t.c, 0) = t.row_weight[2];  // a row too many
    *At(t.c, 1) = t.row_weight[0] + t.row_weight[1];
    *At(t.row_weight, 0) = 5;
  };
  bench.Print("weights", run_gemm);
  std::printf("read: %f %f\n", c[0], c[1]);
  gemm.row_weight = nullptr;

  // Rows of a at addresses of their own.
  const void* const a_rows[] = {At(gemm.a, 16), At(gemm.a, 0)};
  gemm.a_rows = a_rows;
  drill.gemm = [](const GemmTile& t) {
    *At(t.c, 0) = *At(t.a_rows[1], 4);                        // a term too many
    *At(t.c, 1) = *At(t.a_rows[0], 3) + *At(t.a_rows[1], 3);  // its own
    *At(t.a_rows[0], -1) = 5;
  };
  bench.Print("gathered gemm", run_gemm);
  std::printf("read: %f %f\n", c[0], c[1]);
  gemm.a_rows = nullptr;

  gemm.trans_a = gemm.trans_b = true;  // a [4, 2], b [3, 4]
  drill.gemm = [](const GemmTile& t) {
    *At(t.c, 0) = *At(t.a, 4 * t.lda);
    *At(t.c, 1) = *At(t.b, 3 * t.ldb);
    *At(t.c, 2) = *At(t.a, 3 * t.lda + 1) + *At(t.b, 2 * t.ldb + 3);
  };
  bench.Print("transposed gemm, reads beyond", run_gemm);
  std::printf("read: %f %f %f\n", c[0], c[1], c[2]);
  gemm.carry = bench.Take(30);
  gemm.ld_carry = 9;
  gemm.carry_out = true;
  gemm.c = nullptr;
  drill.gemm = [](const GemmTile& t) { t.carry[2 * t.ld_carry] = 5; };
  bench.Print("gemm, carry", run_gemm);
  gemm.carry_in = true;
  drill.gemm = [](const GemmTile& t) { t.carry[0] += 4, t.carry[-1] = 5; };
  bench.Print("gemm, carry handed on", run_gemm);
  std::printf("carried: %f\n", gemm.carry[0]);

  float* const weight = bench.Take(20);
  SwigluTile swiglu{
      bench.Take(40), bench.Take(40), bench.Take(40), 8, 9, 2, 3, weight, f32,
      kAbsolute,      false};
  drill.swiglu = [](const SwigluTile& t) { *At(t.out, 2 * t.ld_out) = 5; };
  bench.Print("swiglu", [&](Kernels* k) { k->Swiglu(swiglu); });

  SwigluGradTile grad{};
  grad.d_out = bench.Take(40);
  grad.gate = bench.Take(40);
  grad.up = bench.Take(40);
  grad.d_gate = bench.Take(40);
  grad.d_up = bench.Take(40);
  grad.ld_d_out = grad.ld_in = grad.ld_grad = 8;
  grad.rows = 2;
  grad.cols = 3;
  grad.d_row_weight = weight;
  drill.grad = [](const SwigluGradTile& t) { t.d_row_weight[2] = 5; };
  bench.Print("swiglu grad", [&](Kernels* k) { k->SwigluGrad(grad); });

  // Two tokens of two slots.
  CombineTile combine{
      bench.Take(40), weight, bench.Take(40), 8, 9, 2, 2, 3, f32};
  drill.combine = [](const CombineTile& t) { *At(t.y, t.ld_y + 3) = 5; };
  bench.Print("combine", [&](Kernels* k) { k->Combine(combine); });
  drill.combine = [](const CombineTile& t) {
    *At(t.y, 0) = *At(t.returned, 4 * t.ld);
    *At(t.y, 1) = t.weights[4];
    *At(t.y, 2) = *At(t.returned, 3 * t.ld + 2) + t.weights[3];
  };
  bench.Print("combine, reads beyond",
              [&](Kernels* k) { k->Combine(combine); });
  const float* y = At(combine.y, 0);
  std::printf("read: %f %f %f\n", y[0], y[1], y[2]);

  const void* const rows[] = {At(combine.returned, 0), At(combine.returned, 8),
                              At(combine.returned, 0), At(combine.returned, 8)};
  combine.rows = rows;
  combine.returned = nullptr;
  drill.combine = [](const CombineTile& t) { *At(t.rows[3], 3) = 5; };
  bench.Print("gathered combine", [&](Kernels* k) { k->Combine(combine); });

  RowDotTile dots{bench.Take(10), bench.Take(40), weight, 0, 8, 3, 4, f32};
  drill.dots = [](const RowDotTile& t) {
    t.out[0] = *At(t.a, 4);
    t.out[1] = *At(t.b, 3 * t.ld_b);
    t.out[2] = *At(t.a, 3) + *At(t.b, 2 * t.ld_b + 3);
    t.out[3] = 5;
  };
  bench.Print("dots", [&](Kernels* k) { k->RowDots(dots); });
  std::printf("read: %f %f %f\n", weight[0], weight[1], weight[2]);

  ScaleRowsTile scale{bench.Take(10), bench.Take(40), nullptr, 0, 8, 3, 4, f32};
  drill.scale = [](const ScaleRowsTile& t) { *At(t.out, 3 * t.ld_out) = 5; };
  bench.Print("put", [&](Kernels* k) { k->ScaleRows(scale); });

  NormTile norm{};
  norm.work = Work::kNormGrad;
  norm.dx = bench.Take(40);
  norm.y = bench.Take(40);
  norm.gain = bench.Take(8);
  norm.out = bench.Take(40);
  norm.ld = 8;
  norm.rows = 3;
  norm.cols = 4;
  norm.dtype = f32;
  drill.norm = [](const NormTile& t) { *At(t.out, 3 * t.ld) = 5; };
  bench.Print("norm", [&](Kernels* k) { k->Norm(norm); });
  drill.norm = [](const NormTile& t) {
    *At(t.out, 0) = *At(t.y, 3 * t.ld);               // a row too many
    *At(t.out, 1) = *At(t.gain, 4);                   // a column too many
    *At(t.out, 2) = *At(t.dx, 4);                     // a column too many
    *At(t.out, t.ld) = *At(t.y, 3) + *At(t.gain, 3);  // its own
  };
  bench.Print("norm, reads beyond", [&](Kernels* k) { k->Norm(norm); });
  const float* x = At(norm.out, 0);
  std::printf("read: %f %f %f %f\n", x[0], x[1], x[2], x[8]);
  norm.work = Work::kGainGrad;
  norm.out_cols = 2;
  drill.norm = [](const NormTile& t) { *At(t.out, t.out_cols) = 5; };
  bench.Print("gain", [&](Kernels* k) { k->Norm(norm); });

  // Of codes: what lies beyond is -128, which no row has.
  auto* const bytes = reinterpret_cast<int8_t*>(bench.Take(60));
  auto* const sums = reinterpret_cast<int32_t*>(bench.Take(40));
  CodeGemmTile codes{bytes, bytes + 80, sums, 8, 7, 9, 2, 3, 4};
  drill.codes = [](const CodeGemmTile& t) { t.c[2 * t.ldc] = 5; };
  bench.Print("codes, a row too many", [&](Kernels* k) { k->CodeGemm(codes); });
  drill.codes = [](const CodeGemmTile& t) {
    const_cast<int8_t*>(t.a)[t.lda - 1] = 5;
    t.c[0] = t.a[4] + t.b[3];
  };
  bench.Print("codes, an operand", [&](Kernels* k) { k->CodeGemm(codes); });
  std::printf("read: %d\n", sums[0]);
  QuantiseRowsTile quantise{At(scale.x, 0), bytes, weight, 4, 8, 3, 4, f32};
  drill.quantise = [](const QuantiseRowsTile& t) { t.codes[4] = 5; };
  bench.Print("quantise", [&](Kernels* k) { k->QuantiseRows(quantise); });
  drill.quantise = [](const QuantiseRowsTile& t) { t.scales[3] = 5; };
  bench.Print("scales", [&](Kernels* k) { k->QuantiseRows(quantise); });
  CodeSwigluTile code_swiglu{};
  code_swiglu.gate = code_swiglu.up = sums;
  code_swiglu.row_scales = code_swiglu.gate_scales = code_swiglu.up_scales =
      weight;
  code_swiglu.codes = bytes;
  code_swiglu.scales = bench.Take(4);
  code_swiglu.ld_in = code_swiglu.ld_codes = 8;
  code_swiglu.rows = 2;
  code_swiglu.cols = 3;
  drill.code_swiglu = [](const CodeSwigluTile& t) {
    t.scales[0] = t.row_scales[2];
    t.scales[1] = t.up_scales[3];
    t.codes[2 * t.ld_codes] = 5;
  };
  bench.Print("code swiglu", [&](Kernels* k) { k->CodeSwiglu(code_swiglu); });
  std::printf("read: %f %f\n", code_swiglu.scales[0], code_swiglu.scales[1]);
  DequantiseRowsTile meaning{sums, weight, weight, bench.Take(40), 8, 8,
                             2,    3,      f32};
  drill.meaning = [](const DequantiseRowsTile& t) { *At(t.out, 3) = 5; };
  bench.Print("meaning", [&](Kernels* k) { k->DequantiseRows(meaning); });

  float* const to = bench.Take(8);
  drill.copy = [](const char* from, size_t bytes, char* dest) {
    for (size_t i = 0; i < bytes + 2; ++i) dest[i] = from[i % bytes];
  };
  bench.Print("copy", [&](Kernels* k) { k->Copy(bench.Take(4), 16, to); });

  int32_t slot = 0;
  float header_weight = 0;
  drill.header = [](int32_t* s, float* w) { s[0] = 3, w[1] = 5; };
  bench.Print("header", [&](Kernels* k) {
    k->WriteHeader(3, 0.5f, &slot, &header_weight);
  });
  std::printf("slot: %d\n", slot);
  return 0;
}
