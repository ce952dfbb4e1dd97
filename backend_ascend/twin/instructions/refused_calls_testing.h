// What each call refuses, and in what words.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_REFUSED_CALLS_TESTING_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_REFUSED_CALLS_TESTING_H_

#include <functional>
#include <string>
#include <vector>

#include "backend_ascend/twin/instructions/fake_core_testing.h"
#include "backend_ascend/twin/instructions/product_calls_testing.h"

namespace twin_instructions {

template <typename T>
LocalTensor<T> At(TPosition position, uint32_t begin = 0) {
  return LocalTensor<T>(position, begin, 1024);
}

template <typename T>
GlobalTensor<T> Gm(uint64_t begin = 0) {
  GlobalTensor<T> gm;
  gm.SetGlobalBuffer(reinterpret_cast<T*>(core->base(Memory::kGm) + begin));
  return gm;
}

struct Attempt {
  CoreType core;
  std::function<void()> call;
};

constexpr CoreType kAic = CoreType::kAic, kAiv = CoreType::kAiv;

// Parameters, one of them changed.
template <typename Params, typename Field, typename Value>
Params With(Params params, Field Params::* field, Value value) {
  params.*field = static_cast<Field>(value);
  return params;
}

const LoadData2DParams kOne(0, 1, 0, 0, 0, false, 0);
const Nd2NzParams kNz(1, 16, 16, 0, 16, 16, 1, 0);
const MmadParams kProduct(16, 16, 16, 0, false, true);
const FixpipeParamsV220 kResult(16, 16, 16, 16, false);

inline std::vector<Attempt> MoveAttempts() {
  const auto gm = Gm<float>();
  const auto gm16 = Gm<bfloat16_t>();
  const auto ub = Ub<float>(0);
  const auto l1 = At<float>(TPosition::A1);
  const DataCopyPadExtParams<float> none;
  using P = Nd2NzParams;
  const auto nz = [=](uint16_t P::* field, int value) -> Attempt {
    return {kAic, [=] {
              DataCopy(At<bfloat16_t>(TPosition::A1), gm16,
                       With(kNz, field, value));
            }};
  };
  return {
      {kAic, [=] { DataCopy(ub, gm, 8); }},
      {kAiv, [=] { DataCopy(l1, gm, 8); }},
      {kAiv, [=] { DataCopy(l1, ub, 8); }},
      {kAic, [=] { DataCopy(ub, At<float>(TPosition::CO1), 8); }},
      {kAiv, [=] { DataCopy(ub, Gm<float>(2), 8); }},
      {kAiv, [=] { DataCopyPad(ub, gm, {1, 4, 0, 65536, 0}, none); }},
      {kAiv, [=] { DataCopyPad(ub, gm, {1, 4, 0, 0, 0}, {true, 0, 9, 0.0f}); }},
      {kAic, [=] { DataCopyPad(l1, gm, {1, 4, 0, 0, 0}, none); }},
      {kAiv,
       [=] {
         SetAtomicAdd<int32_t>();
         DataCopyPad(gm, ub, {1, 4, 0, 0, 0});
       }},
      {kAiv, [] { SetAtomicAdd<uint16_t>(); }},
      {kAiv, [=] { DataCopy(Ub<bfloat16_t>(0), gm16, Nd2NzParams()); }},
      nz(&P::ndNum, 4096),
      nz(&P::nValue, 16385),
      nz(&P::srcDValue, 0),
      nz(&P::dstNzC0Stride, 0),
      nz(&P::dstNzNStride, 16385),
  };
}

inline std::vector<Attempt> LoadAttempts() {
  using P = LoadData3DParamsV2<bfloat16_t>;
  const auto l1 = At<bfloat16_t>(TPosition::A1);
  const auto a = At<bfloat16_t>(TPosition::A2);
  const auto f1 = At<float>(TPosition::A1);
  const auto load = [](auto to, auto from, LoadData2DParams params) -> Attempt {
    return {kAic, [=] { LoadData(to, from, params); }};
  };
  const auto image = [=](auto set, int value) -> Attempt {
    P params;
    params.l1H = 1;
    params.l1W = params.mExtension = 32;
    params.channelSize = params.kExtension = 32;
    set(&params) = value;
    return {kAic, [=] { LoadData(a, l1, params); }};
  };
  const auto k_extension = [](P* p) -> uint16_t& { return p->kExtension; };
  const auto m_extension = [](P* p) -> uint16_t& { return p->mExtension; };
  return {
      {kAiv, [=] { LoadData(a, l1, kOne); }},
      load(At<float>(TPosition::CO1), f1, kOne),
      load(a, At<bfloat16_t>(TPosition::B2), kOne),
      load(a[16], l1, kOne),
      load(a, l1[8], kOne),
      load(At<float>(TPosition::A2), f1, LoadData2DParams(0, 1, 0, 0, 0, 1, 0)),
      load(a, l1, LoadData2DParams(0, 1, 0, 0, 0, 0, 1)),
      image([](P* p) -> uint8_t& { return p->filterW; }, 3),
      image([](P* p) -> uint8_t& { return p->strideH; }, 2),
      image([](P* p) -> uint8_t& { return p->padList[1]; }, 1),
      image([](P* p) -> uint16_t& { return p->channelSize; }, 38),
      image([](P* p) -> uint16_t& { return p->kStartPt; }, 8),
      image(k_extension, 24),
      image(k_extension, 48),
      image(m_extension, 17),
      image(m_extension, 48),
  };
}

inline std::vector<Attempt> ProductAttempts() {
  const auto a = At<bfloat16_t>(TPosition::A2);
  const auto b = At<bfloat16_t>(TPosition::B2);
  const auto c = At<float>(TPosition::CO1);
  const auto of = [](auto to, auto left, auto right,
                     MmadParams params = kProduct) -> Attempt {
    return {kAic, [=] { Mmad(to, left, right, params); }};
  };
  using P = MmadParams;
  return {
      {kAiv, [=] { Mmad(c, a, b, kProduct); }},
      of(c, b, b),
      of(c, a, a),
      of(c, a, At<half>(TPosition::B2)),
      of(At<int32_t>(TPosition::CO1), a, b),
      of(c[128], a, b),
      of(c, a[16], b),
      {kAic, [=] { Mmad(c, a, b, At<float>(TPosition::C2, 32), kProduct); }},
      of(c, a, b, With(kProduct, &P::m, 4096)),
      of(c, a, b, With(kProduct, &P::n, 4096)),
      of(c, a, b, With(kProduct, &P::k, 4096)),
      of(c, a, b, With(kProduct, &P::unitFlag, 1)),
      of(c, a, b, With(kProduct, &P::isBias, true)),
      of(c, a, b, With(kProduct, &P::kDirectionAlign, true)),
      of(c, a, b, MmadParams(16, 16, 16, 0, true, false)),
      {kAic, [] { SetHF32Mode(HF32Mode::ENABLE); }},
  };
}

inline std::vector<Attempt> ResultAttempts() {
  const auto gm = Gm<float>();
  const auto c = At<float>(TPosition::CO1);
  const auto of = [](auto to, auto from,
                     FixpipeParamsV220 params = kResult) -> Attempt {
    return {kAic, [=] { Fixpipe(to, from, params); }};
  };
  using P = FixpipeParamsV220;
  const auto of20 = With(kResult, &P::nSize, 20);
  return {
      {kAiv, [=] { Fixpipe(gm, c, kResult); }},
      of(Gm<bfloat16_t>(), c),
      of(At<bfloat16_t>(TPosition::A1), c),
      of(gm, At<float>(TPosition::A2)),
      {kAic, [=] { Fixpipe<float, float, CFG_NZ>(gm, c, of20); }},
      of(gm, c, With(kResult, &P::nSize, 4096)),
      of(gm, c, With(kResult, &P::mSize, 8193)),
      of(gm, c, With(kResult, &P::dstStride, 0)),
      of(gm, c, With(kResult, &P::srcStride, 8)),
      of(gm, c, With(kResult, &P::srcStride, 17)),
      of(gm, c, With(kResult, &P::unitFlag, 2)),
      of(gm, c, With(kResult, &P::ndNum, 2)),
      of(gm, c, With(kResult, &P::quantPre, QuantMode_t::F322BF16)),
  };
}

// What only some sources refuse.
inline std::vector<Attempt> DisputedAttempts() {
  const FixpipeParamsV220 of20(20, 16, 16, 16, false);
  const auto b1 = At<float>(TPosition::B1), b2 = At<float>(TPosition::B2);
  return {
      {kAic, [=] { Fixpipe(Gm<float>(), At<float>(TPosition::CO1), of20); }},
      {kAic, [=] { Image(b2, b1, 16, 16, false); }},
  };
}

inline std::vector<Attempt> VectorAttempts() {
  const auto x = Ub<float>(0);
  const auto y = Ub<float>(4096);
  const auto z = Ub<float>(8192);
  const auto h = Ub<bfloat16_t>(16384);
  const auto n = Ub<int32_t>(20480);
  return {
      {kAic, [=] { Add(x, y, z, 64); }},
      {kAiv, [=] { Add(h, h, h, 64); }},
      {kAiv, [=] { Muls(h, h, bfloat16_t{0}, 64); }},
      {kAiv, [=] { Exp(n, n, 64); }},
      {kAiv, [=] { Div(n, n, n, 64); }},
      {kAiv, [=] { Add(x, At<float>(TPosition::A1), z, 64); }},
      {kAiv, [=] { Add(x, y, z, -1); }},
      {kAiv, [=] { Add(y, z, y, 64, 2, {1, 1, 1, 4, 8, 4}); }},
      {kAiv, [=] { Cast(h, x, RoundMode::CAST_NONE, 64); }},
      {kAiv, [=] { Cast(x, h, RoundMode::CAST_RINT, 64); }},
      {kAiv, [=] { Cast(Ub<half>(0), h, RoundMode::CAST_NONE, 64); }},
      {kAiv,
       [=] { Cast(Ub<float>(0), Ub<half>(0), RoundMode::CAST_NONE, 64); }},
      {kAiv, [=] { Compare(Ub<uint8_t>(0), n, n, CMPMODE::LT, 64); }},
      {kAiv,
       [=] {
         Set(20480, 0, 4096u);
         Gather(x, LocalTensor<float>(TPosition::VECCALC, 4096, 64),
                Ub<uint32_t>(20480), 0u, 1u);
       }},
  };
}

// In the order of the attempts.
constexpr char kRefused[] = R"(
DataCopy: expected an AIV, got an AIC
DataCopy: expected an AIC, got an AIV
DataCopy: dst: expected in GM or UB, got L1
DataCopy: dst: expected in GM, got UB
DataCopy: src: expected to begin at a multiple of 4 B, got byte 2 past one of GM
DataCopyPad: dstStride: expected 0 to 65535, got 65536
DataCopyPad: bytes of rightPadding: expected 0 to 32, got 36
DataCopyPad: dst: expected in UB, got L1
DataCopyPad: dst: expected the element type of SetAtomicAdd, which is still on, got float
SetAtomicAdd: T: expected elements of int8_t, int16_t, int32_t, half, bfloat16_t, float; got uint16_t
DataCopy: dst: expected in L1, got UB
DataCopy: ndNum: expected 0 to 4095, got 4096
DataCopy: nValue: expected 0 to 16384, got 16385
DataCopy: srcDValue: expected 1 to 65535, got 0
DataCopy: dstNzC0Stride: expected 1 to 16384, got 0
DataCopy: dstNzNStride: expected 1 to 16384, got 16385
LoadData: expected an AIC, got an AIV
LoadData: dst: expected in L0A or L0B, got L0C
LoadData: src: expected in L1, got L0B
LoadData: dst: expected to begin at a multiple of 512 B, got byte 32 of L0A
LoadData: src: expected to begin at a multiple of 32 B, got byte 16 of L1
LoadData: src of ifTranspose: expected elements of half, bfloat16_t, int16_t, uint16_t; got float
LoadData: addrMode: expected 0, got 1
LoadData: filterW: expected 1, got 3
LoadData: strideH: expected 1, got 2
LoadData: padList: expected 0, got 1
LoadData: channelSize: expected a multiple of 16, or 4 or 8 more, got 38
LoadData: kStartPt: expected a multiple of 16, got 8
LoadData: kExtension short of channelSize: expected a multiple of 16, got 24
LoadData: kStartPt + kExtension: expected 1 to 32, got 48
LoadData: mExtension short of l1H * l1W: expected a multiple of 16, got 17
LoadData: mStartPt + mExtension: expected 1 to 32, got 48
Mmad: expected an AIC, got an AIV
Mmad: A: expected in L0A, got L0B
Mmad: B: expected in L0B, got L0A
Mmad: B: expected elements of bfloat16_t, got half
Mmad: dst: expected elements of float; got int32_t
Mmad: dst: expected to begin at a multiple of 1024 B, got byte 512 of L0C
Mmad: A: expected to begin at a multiple of 512 B, got byte 32 of L0A
Mmad: bias: expected to begin at a multiple of 64 B, got byte 32 of BiasTable
Mmad: m: expected 0 to 4095, got 4096
Mmad: n: expected 0 to 4095, got 4096
Mmad: k: expected 0 to 4095, got 4096
Mmad: unitFlag: expected 0, got 1
Mmad: isBias: deprecated; use cmatrixInitVal
Mmad: A of kDirectionAlign: expected elements of float; got bfloat16_t
Mmad: cmatrixSource: expected the form of Mmad that takes the bias
SetHF32Mode: mode: expected DISABLE: the twin rounds no operand to HF32
Fixpipe: expected an AIC, got an AIV
Fixpipe: dst of NoQuant: expected elements of float; got bfloat16_t
Fixpipe: dst: expected in GM, got L1
Fixpipe: src: expected in L0C, got L0A
Fixpipe: nSize: expected a multiple of 16, got 20
Fixpipe: nSize: expected 0 to 4095, got 4096
Fixpipe: mSize: expected 0 to 8192, got 8193
Fixpipe: dstStride: expected 1 to 4294967295, got 0
Fixpipe: srcStride: expected 16 to 65535, got 8
Fixpipe: srcStride: expected a multiple of 16, got 17
Fixpipe: unitFlag: expected 3, got 2
Fixpipe: ndNum: expected 1, got 2
Fixpipe: dst of F322BF16: expected elements of bfloat16_t; got float
Add: expected an AIV, got an AIC
Add: dst: expected elements of half, float, int16_t, int32_t; got bfloat16_t
Muls: dst: expected elements of half, float, int16_t, int32_t; got bfloat16_t
Exp: dst: expected elements of half, float; got int32_t
Div: dst: expected elements of half, float; got int32_t
Add: src0: expected in UB, got L1
Add: count: expected 0 to 1048576, got -1
Add: dst: expected no source of a later repeat, got src1 of repeat 1 (Add.md)
Cast: roundMode of float to bfloat16_t: expected CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC; got CAST_NONE
Cast: roundMode of bfloat16_t to float: expected CAST_NONE; got CAST_RINT
Cast: expected a conversion that A2 and A3 have, got bfloat16_t to half
Cast: dst and src: expected none in common, got some (Cast.md)
Compare: cmpMode of int32_t: expected EQ
Gather: srcOffset 0: expected a multiple of 4 in the source's 256 B, got 4096
not refused
not refused
Fixpipe: nSize by fixpipe_n_of_16: expected a multiple of 16, got 20
LoadData: dst by no_float_to_l0b: expected L0A for elements of 4 B, got L0B
)";

inline void Try(const std::vector<Attempt>& attempts, std::string* said) {
  for (const Attempt& attempt : attempts) {
    core->type = attempt.core;
    try {
      attempt.call();
      *said += "not refused\n";
    } catch (const ascend_twin::Refusal& refusal) {
      *said += refusal.text + "\n";
    }
    DisableDmaAtomic();
  }
}

inline void Refusals() {
  std::string said = "\n";
  for (const auto attempts : {MoveAttempts, LoadAttempts, ProductAttempts,
                              ResultAttempts, VectorAttempts}) {
    Try(attempts(), &said);
  }
  for (const bool strict : {false, true}) {
    core->numerics.fixpipe_n_of_16 = core->numerics.no_float_to_l0b = strict;
    Try(DisputedAttempts(), &said);
  }
  if (said != kRefused) Say("refused:" + said);
}

}  // namespace twin_instructions

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_REFUSED_CALLS_TESTING_H_
