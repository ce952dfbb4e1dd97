// Calls that read what nobody has written: of a bias, a fractal, a mask.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_UNWRITTEN_CALLS_TESTING_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_UNWRITTEN_CALLS_TESTING_H_

#include <cstring>
#include <string>

#include "backend_ascend/twin/instructions/call_jobs_testing.h"

namespace twin_calls {

// Of a bias of eight floats in L1, past what all other calls are given, 64
// bytes are moved: as many columns as it has may be read.
inline void AddBias(int columns, bool legal) {
  const auto issue = [columns] {
    const LocalTensor<float> bias(TPosition::C1, kImage, 16);
    const LocalTensor<float> table(TPosition::C2, 0, 16);
    const LocalTensor<half> a(TPosition::A2, 0, 256);
    const LocalTensor<half> b(TPosition::B2, 0, 256);
    LoadData2DParams fractal;
    fractal.repeatTimes = 1;
    DataCopy(bias, Global<float>(0), 8u);
    LoadData(a, OnChip<half>(true, 0), fractal);
    LoadData(b, OnChip<half>(true, 0), fractal);
    PipeBarrier<PIPE_ALL>();
    DataCopy(table, bias, DataCopyParams(1, 1, 0, 0));
    PipeBarrier<PIPE_ALL>();
    Mmad(LocalTensor<float>(TPosition::CO1, 0, 256), a, b, table,
         MmadParams(1, static_cast<uint16_t>(columns), 16, 0, false, true));
  };
  if (legal) {
    AddJob("Mmad", Type::kHalf, issue, [](Image*) {});
  } else {
    AddJob("pipe M", Type::kHalf, issue, nullptr,
           {"Mmad reads BiasTable [0x20, 0x24), which nobody has written"});
  }
  jobs.back().cube = true;
}

// How a fractal comes to L0, from two rows in L1 past what all other calls are
// given: nobody wrote the others.
using Load = void (*)(const LocalTensor<half>& to,
                      const LocalTensor<half>& from);
template <bool transposed>
void LoadFractal(const LocalTensor<half>& to, const LocalTensor<half>& from) {
  LoadData2DParams fractal;
  fractal.repeatTimes = 1;
  fractal.ifTranspose = transposed;
  LoadData(to, from, fractal);
}
inline void LoadSquare(const LocalTensor<half>& to,
                       const LocalTensor<half>& from) {
  LoadDataWithTranspose(to, from, LoadData2dTransposeParams(0, 1, 0, 0, 0));
}
template <bool transposed>
void LoadImage(const LocalTensor<half>& to, const LocalTensor<half>& from) {
  LoadData3DParamsV2<half> image;
  image.l1H = 1;
  image.l1W = image.channelSize = image.kExtension = image.mExtension = 16;
  image.enTranspose = transposed;
  LoadData(to, from, image);
}

// They are A and give rows of C, or terms of its sums; or they are columns of
// B.  `words`: of a product that takes a third; empty: of two.
inline void AddUnwritten(Load load, char of, const std::string& words) {
  const auto count = static_cast<uint16_t>(words.empty() ? 2 : 3);
  const auto issue = [=] {
    const LocalTensor<half> two(TPosition::A1, kImage, 256);
    const LocalTensor<half> a(TPosition::A2, 0, 256), b(TPosition::B2, 0, 256);
    const LocalTensor<float> c(TPosition::CO1, 0, 256);
    const LocalTensor<float> out(TPosition::A1, kImage + 512, 256);
    const LocalTensor<half> whole = OnChip<half>(true, 0);
    DataCopy(two, Global<half>(0), 32u);
    PipeBarrier<PIPE_ALL>();
    (of == 'n' ? LoadFractal<false> : load)(a, of == 'n' ? whole : two);
    (of == 'n' ? load : LoadFractal<false>)(b, of == 'n' ? two : whole);
    PipeBarrier<PIPE_ALL>();
    MmadParams product(16, of == 'n' ? count : 16, of == 'k' ? count : 16, 0,
                       false, true);
    Mmad(c, a, b, product);
    PipeBarrier<PIPE_M>();
    product.cmatrixInitVal = false;
    Mmad(c, a, b, product);
    PipeBarrier<PIPE_ALL>();
    const FixpipeParamsV220 stored(16, of == 'm' ? count : 16, 16, 32, false);
    Fixpipe<float, float, CFG_NZ>(out, c, stored);
  };
  const bool sums = words.find("L0C") != std::string::npos;
  AddJob(sums            ? "pipe FIX"
         : words.empty() ? "Mmad"
                         : "pipe M",
         Type::kHalf, issue, nullptr, {words});
  if (words.empty()) jobs.back().plain = [](Image*) {};
  jobs.back().cube = true;
}

// A mask of which only the first bytes are written: of `count` choices those
// that have a bit there are right, others nobody wrote.
inline void AddMasked(SELMODE mode, int bytes, int count,
                      const std::string& words) {
  const auto issue = [=] {
    const LocalTensor<uint16_t> written(TPosition::VECIN, kImage, 16);
    Duplicate(written, uint16_t{0xFFFF}, bytes / 2);
    PipeBarrier<PIPE_V>();
    Select(OnChip<float>(false, 0),
           LocalTensor<uint8_t>(TPosition::VECIN, kImage, 32),
           OnChip<float>(false, kRegion), OnChip<float>(false, 2 * kRegion),
           mode, uint32_t(count));
  };
  if (!words.empty()) {
    return AddJob("pipe MTE3", Type::kFloat, issue, nullptr, {words});
  }
  AddJob("Select", Type::kFloat, issue, [=](Image* m) {
    std::memcpy(m->data(), m->data() + kRegion, count * sizeof(float));
  });
}

inline void ListUnwritten() {
  const std::string nobody = ", which nobody has written";
  const auto tensors = SELMODE::VSEL_TENSOR_TENSOR_MODE;
  const auto repeats = SELMODE::VSEL_CMPMASK_SPR;
  AddMasked(tensors, 8, 64, "");
  AddMasked(tensors, 8, 72, "DataCopy reads UB [0x100, 0x120)" + nobody);
  AddMasked(repeats, 8, 128, "");
  AddMasked(repeats, 6, 128, "DataCopy reads UB [0xc0, 0x100)" + nobody);
  for (const Load load : {LoadFractal<false>, LoadImage<false>}) {
    AddUnwritten(load, 'm', "");
    AddUnwritten(load, 'm', "Fixpipe reads L0C [0x80, 0xc0)" + nobody);
  }
  for (const Load load : {LoadFractal<true>, LoadSquare, LoadImage<true>}) {
    AddUnwritten(load, 'k', "");
    AddUnwritten(load, 'k', "Fixpipe reads L0C [0x0, 0x400)" + nobody);
  }
  const auto gather = [] {
    const LocalTensor<uint32_t> offsets(TPosition::VECIN, kImage, 8);
    Gather(OnChip<float>(false, 0), OnChip<float>(false, kRegion), offsets, 0,
           8);
  };
  AddJob("pipe V", Type::kFloat, gather, nullptr,
         {"Gather reads UB [0x12000, 0x12020)" + nobody});
  AddUnwritten(LoadFractal<false>, 'n', "");
  AddUnwritten(LoadFractal<false>, 'n', "Mmad reads L0B [0x40, 0x60)" + nobody);
}

}  // namespace twin_calls

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_UNWRITTEN_CALLS_TESTING_H_
