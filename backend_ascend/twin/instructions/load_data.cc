#include "backend_ascend/twin/instructions/load_data.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend_ascend/twin/instructions/numbers.h"

namespace ascend_twin {
namespace {

void CheckOperands(const Call& call, const Operand& dst, const Operand& src) {
  call.On(CoreType::kAic);
  call.In("src", src, {Memory::kL1});
  call.In("dst", dst, {Memory::kL0A, Memory::kL0B});
  call.Aligned("src", src, kBlock);
  call.Aligned("dst", dst, kFractal);
}

// dst[column][row] = src[row][column]; rows of `src` are 32 bytes, those of
// `dst` are `dst_pitch` bytes.
template <typename T>
void Transpose(const char* src, char* dst, uint64_t rows, uint64_t columns,
               uint64_t dst_pitch) {
  for (uint64_t column = 0; column < columns; ++column) {
    for (uint64_t row = 0; row < rows; ++row) {
      std::memcpy(dst + column * dst_pitch + row * sizeof(T),
                  src + row * kBlock + column * sizeof(T), sizeof(T));
    }
  }
}

}  // namespace

void LoadFractals(const Call& call, const Operand& dst, const Operand& src,
                  const AscendC::LoadData2DParams& params) {
  CheckOperands(call, dst, src);
  call.Equal("addrMode", params.addrMode, 0);
  if (params.ifTranspose) {
    call.OneOf("src of ifTranspose", src.type,
               {Type::kHalf, Type::kBf16, Type::kInt16, Type::kUint16});
  }
  if (params.repeatTimes == 0) return;
  const uint64_t repeats = params.repeatTimes;
  const uint64_t src_pitch = params.srcStride * kFractal;
  const uint64_t dst_pitch = (params.dstGap + uint64_t{1}) * kFractal;
  const uint64_t begin = src.begin + params.startIndex * kFractal;
  const bool transpose = params.ifTranspose;

  Instruction instruction = call.Start(Pipe::kMte1);
  AddSpan(&instruction.reads, src.memory, begin, kFractal, repeats, src_pitch);
  AddSpan(&instruction.writes, dst.memory, dst.begin, kFractal, repeats,
          dst_pitch);
  instruction.work.bytes = repeats * kFractal;
  const auto copy = [=](const char* from, char* to) {
    for (uint64_t i = 0; i < repeats; ++i) {
      if (transpose) {
        Transpose<uint16_t>(from + i * src_pitch, to + i * dst_pitch, kSide,
                            kSide, kBlock);
      } else {
        std::memcpy(to + i * dst_pitch, from + i * src_pitch, kFractal);
      }
    }
  };
  Copies(copy, &instruction);
  Issue(std::move(instruction));
}

void LoadTransposed(const Call& call, const Operand& dst, const Operand& src,
                    const AscendC::LoadData2dTransposeParams& params) {
  CheckOperands(call, dst, src);
  call.OneOf("src", src.type,
             {Type::kInt8, Type::kUint8, Type::kHalf, Type::kBf16, Type::kInt32,
              Type::kUint32, Type::kFloat});
  call.Equal("addrMode", params.addrMode, 0);
  if (params.repeatTimes == 0) return;
  const uint64_t repeats = params.repeatTimes;
  // A square: one fractal of 2-byte elements, two of 1 and of 4 bytes.
  const uint64_t fractals = src.size() == 2 ? 1 : 2;
  const bool bytes = src.size() == 1;
  const uint64_t square = fractals * kFractal;
  const uint64_t src_pitch = params.srcStride * square;
  const uint64_t dst_pitch = (params.dstGap + uint64_t{1}) * kFractal;
  const uint64_t half_pitch = (params.dstFracGap + uint64_t{1}) * kFractal;
  const uint64_t begin = src.begin + params.startIndex * square;

  Instruction instruction = call.Start(Pipe::kMte1);
  AddSpan(&instruction.reads, src.memory, begin, square, repeats, src_pitch);
  for (uint64_t i = 0; i < fractals; ++i) {
    AddSpan(&instruction.writes, dst.memory, dst.begin + i * half_pitch,
            kFractal, repeats, dst_pitch);
  }
  instruction.work.bytes = repeats * square;
  const auto copy = [=](const char* from, char* to) {
    for (uint64_t i = 0; i < repeats; ++i) {
      const char* const in = from + i * src_pitch;
      char* const out = to + i * dst_pitch;
      if (fractals == 1) {
        Transpose<uint16_t>(in, out, kSide, kSide, kBlock);
        continue;
      }
      if (bytes) {
        for (uint64_t half = 0; half < 2; ++half) {
          Transpose<uint8_t>(in + half * kSide, out + half * half_pitch, kBlock,
                             kSide, kBlock);
        }
        continue;
      }
      // Eight columns of one source fractal are eight rows of both results;
      // its upper eight rows go to the first, its lower to the second.
      for (uint64_t column = 0; column < 2; ++column) {
        for (uint64_t row = 0; row < 2; ++row) {
          Transpose<uint32_t>(in + column * kFractal + row * kFractal / 2,
                              out + row * half_pitch + column * kFractal / 2, 8,
                              8, kBlock);
        }
      }
    }
  };
  Copies(copy, &instruction);
  Issue(std::move(instruction));
}

namespace {

// Checks that leave a matrix of what could be an image.
void CheckMatrix(const Call& call, const Operand& src,
                 const AscendC::LoadData3DParamsV2Base& params) {
  call.OneOf(
      "src", src.type,
      {Type::kHalf, Type::kBf16, Type::kInt32, Type::kUint32, Type::kFloat});
  call.Between("l1H", params.l1H, 1, 32767);
  call.Between("l1W", params.l1W, 1, 32767);
  for (const uint8_t pad : params.padList) call.Equal("padList", pad, 0);
  call.Equal("strideW", params.strideW, 1);
  call.Equal("strideH", params.strideH, 1);
  call.Equal("filterW", params.filterW, 1);
  call.Equal("filterH", params.filterH, 1);
  call.Equal("dilationFilterW", params.dilationFilterW, 1);
  call.Equal("dilationFilterH", params.dilationFilterH, 1);
  call.Equal("filterSizeW", params.filterSizeW, 0);
  call.Equal("filterSizeH", params.filterSizeH, 0);
  call.Equal("fMatrixCtrl", params.fMatrixCtrl, 0);
  call.Equal("enSmallK", params.enSmallK, 0);
  call.Between("mStartPt", params.mStartPt, 0, 32767);
  const uint64_t c0 = kBlock / src.size();
  const uint64_t rest = params.channelSize % c0;
  if (rest != 0 && rest != 4 && rest != 8) {
    call.Refuse("channelSize: expected a multiple of " + std::to_string(c0) +
                ", or 4 or 8 more, got " + std::to_string(params.channelSize));
  }
  call.Multiple("kStartPt", params.kStartPt, c0);
  const uint64_t right = params.kStartPt + params.kExtension;
  if (right < params.channelSize) {
    call.Multiple("kExtension short of channelSize", params.kExtension, c0);
  }
  call.Between("kStartPt + kExtension", right, 1,
               RoundUp(params.channelSize, c0));
  const uint64_t bottom = params.mStartPt + params.mExtension;
  const uint64_t rows = uint64_t{params.l1H} * params.l1W;
  if (bottom < rows && src.size() < 4) {
    call.Multiple("mExtension short of l1H * l1W", params.mExtension, kSide);
  }
  // Rows past the image: what they give is not published.  [inferred]
  call.Between("mStartPt + mExtension", bottom, 1, RoundUp(rows, kSide));
}

}  // namespace

// Elements of `size` bytes, `c0` a block.  A source fractal is 16 rows of one
// block; rows pad to 16 in the destination.  Transposed elements of 4 bytes
// make fractals of 16 columns and 8 rows, and columns beyond kExtension are not
// written.
void LoadMatrix(const Call& call, const Operand& dst, const Operand& src,
                const AscendC::LoadData3DParamsV2Base& params) {
  CheckOperands(call, dst, src);
  if (params.l1H == 0 || params.l1W == 0 || params.channelSize == 0 ||
      params.kExtension == 0 || params.mExtension == 0) {
    return;
  }
  CheckMatrix(call, src, params);
  if (dst.memory == Memory::kL0B && src.size() == 4 &&
      ThisNumerics().no_float_to_l0b) {
    call.Refuse(
        "dst by no_float_to_l0b: expected L0A for elements of 4 B, got L0B");
  }
  const uint64_t size = src.size();
  const uint64_t c0 = kBlock / size;
  const uint64_t image_rows = uint64_t{params.l1H} * params.l1W;
  const uint64_t rows =
      std::min<uint64_t>(params.mExtension, image_rows - params.mStartPt);
  const uint64_t columns = params.kExtension;
  const uint64_t row_fractals = CeilDiv(params.mExtension, kSide);
  const uint64_t blocks = CeilDiv(columns, c0);
  const uint64_t begin = src.begin +
                         params.kStartPt / c0 * image_rows * kBlock +
                         params.mStartPt * kBlock;
  const bool to_b = dst.memory == Memory::kL0B;
  const bool transpose = to_b || params.enTranspose;
  const bool wide = size == 4;
  // Fractals across a transposed matrix of 4-byte elements.
  const uint64_t squares = CeilDiv(columns, kSide);

  Instruction instruction = call.Start(Pipe::kMte1);
  AddSpan(&instruction.reads, src.memory, begin, rows * kBlock, blocks,
          image_rows * kBlock);
  if (!transpose || !wide) {
    AddSpan(&instruction.writes, dst.memory, dst.begin,
            row_fractals * blocks * kFractal);
  } else if (to_b) {
    AddSpan(&instruction.writes, dst.memory, dst.begin, columns * kBlock,
            2 * row_fractals, squares * kFractal);
  } else {
    const uint64_t whole = columns / kSide * 2 * row_fractals * kFractal;
    AddSpan(&instruction.writes, dst.memory, dst.begin, whole);
    AddSpan(&instruction.writes, dst.memory, dst.begin + whole,
            columns % kSide * kBlock, 2 * row_fractals, kFractal);
  }
  instruction.work.bytes = blocks * rows * kBlock;
  const auto copy = [=](const char* from, char* to) {
    for (uint64_t block = 0; block < blocks; ++block) {
      for (uint64_t i = 0; i < row_fractals; ++i) {
        char fractal[kFractal];
        const uint64_t have =
            rows > i * kSide ? std::min(kSide, rows - i * kSide) : 0;
        std::memset(fractal, kUnspecified, kFractal);
        std::memcpy(fractal,
                    from + block * image_rows * kBlock + i * kSide * kBlock,
                    have * kBlock);
        if (!transpose) {
          std::memcpy(to + (i * blocks + block) * kFractal, fractal, kFractal);
        } else if (!wide) {
          const uint64_t index =
              to_b ? i * blocks + block : block * row_fractals + i;
          Transpose<uint16_t>(fractal, to + index * kFractal, kSide, kSide,
                              kBlock);
        } else {
          const uint64_t across = block / 2;
          const uint64_t take = std::min<uint64_t>(8, columns - block * 8);
          for (uint64_t half = 0; half < 2; ++half) {
            const uint64_t down = 2 * i + half;
            const uint64_t index = to_b ? down * squares + across
                                        : across * 2 * row_fractals + down;
            Transpose<uint32_t>(fractal + half * 8 * kBlock,
                                to + index * kFractal + block % 2 * 8 * kBlock,
                                8, take, kBlock);
          }
        }
      }
    }
  };
  Copies(copy, &instruction);
  Issue(std::move(instruction));
}

}  // namespace ascend_twin
