#include "backend_ascend/twin/instructions/moves.h"

#include <cstring>
#include <string>
#include <utility>

#include "backend_ascend/twin/instructions/numbers.h"

namespace ascend_twin {
namespace {

constexpr int64_t kMost16 = 65535;

template <typename T, typename Add>
void AddEach(char* dst, const char* src, uint64_t bytes, Add add) {
  for (uint64_t at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
    Write<T>(dst + at, add(Read<T>(dst + at), Read<T>(src + at)));
  }
}

template <typename T>
T WrappingSum(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

}  // namespace

void StoreToGlobal(char* dst, const char* src, uint64_t bytes, Type atomic) {
  switch (atomic) {
    case Type::kInt8:
      AddEach<int8_t>(dst, src, bytes, WrappingSum<int8_t>);
      break;
    case Type::kInt16:
      AddEach<int16_t>(dst, src, bytes, WrappingSum<int16_t>);
      break;
    case Type::kInt32:
      AddEach<int32_t>(dst, src, bytes, WrappingSum<int32_t>);
      break;
    case Type::kHalf:
      AddEach<uint16_t>(dst, src, bytes, [](uint16_t a, uint16_t b) {
        return HalfOfFloat(FloatOfHalf(a) + FloatOfHalf(b));
      });
      break;
    case Type::kBf16:
      AddEach<uint16_t>(dst, src, bytes, [](uint16_t a, uint16_t b) {
        return Bf16OfFloat(FloatOfBf16(a) + FloatOfBf16(b));
      });
      break;
    case Type::kFloat:
      AddEach<float>(dst, src, bytes,
                     [](float a, float b) { return Canonical(a + b); });
      break;
    default:
      std::memmove(dst, src, bytes);
  }
}

Type AtomicFor(const Call& call, const Operand& dst) {
  const Type atomic = ThisAtomicType();
  if (dst.memory != Memory::kGm || atomic == Type::kNone) {
    return Type::kNone;
  }
  if (dst.type != atomic) {
    call.Refuse(std::string("dst: expected the element type of SetAtomicAdd, "
                            "which is still on, got ") +
                NameOf(dst.type));
  }
  return atomic;
}

void SetAtomic(const Call& call, Type type) {
  call.OneOf("T", type,
             {Type::kInt8, Type::kInt16, Type::kInt32, Type::kHalf, Type::kBf16,
              Type::kFloat});
  SetAtomicType(type);
}

namespace {

// Which pipe moves, after checks of core, memories and alignment.
Pipe PipeOf(const Call& call, const Operand& dst, const Operand& src) {
  if (src.memory == Memory::kL1 && dst.memory == Memory::kBias) {
    call.On(CoreType::kAic);
    call.Aligned("dst", dst, 64);
    call.Aligned("src", src, kBlock);
    return Pipe::kMte1;  // [inferred]
  }
  call.In("dst", dst,
          src.memory == Memory::kGm
              ? std::initializer_list<Memory>{Memory::kUb, Memory::kL1}
          : src.memory == Memory::kUb
              ? std::initializer_list<Memory>{Memory::kGm, Memory::kUb}
              : std::initializer_list<Memory>{Memory::kGm});
  call.In("src", src, {Memory::kGm, Memory::kUb, Memory::kL1});
  const bool l1 = src.memory == Memory::kL1 || dst.memory == Memory::kL1;
  call.On(l1 ? CoreType::kAic : CoreType::kAiv);
  call.Aligned("dst", dst, dst.memory == Memory::kGm ? dst.size() : kBlock);
  call.Aligned("src", src, src.memory == Memory::kGm ? src.size() : kBlock);
  if (src.memory == Memory::kGm) return Pipe::kMte2;
  return dst.memory == Memory::kGm ? Pipe::kMte3 : Pipe::kV;
}

// `rows` of `bytes` bytes at pitches of their own.
void MoveRows(const Call& call, Pipe pipe, const Operand& dst,
              const Operand& src, uint64_t rows, uint64_t bytes,
              uint64_t dst_pitch, uint64_t src_pitch) {
  Instruction instruction = call.Start(pipe);
  AddSpan(&instruction.reads, src.memory, src.begin, bytes, rows, src_pitch);
  AddSpan(&instruction.writes, dst.memory, dst.begin, bytes, rows, dst_pitch);
  if (pipe == Pipe::kV) {
    CheckOverlaps(call, Family::kMove, "src",
                  RowsOf(dst.begin, bytes, rows, dst_pitch),
                  RowsOf(src.begin, bytes, rows, src_pitch));
  }
  instruction.work.bytes = rows * bytes;
  const Type atomic = AtomicFor(call, dst);
  const bool flush = ThisNumerics().flush_subnormals;
  instruction.atomic = atomic != Type::kNone;
  const auto move = [=](const char* from, char* to) {
    const FloatScope scope(flush);
    for (uint64_t row = 0; row < rows; ++row) {
      StoreToGlobal(to + row * dst_pitch, from + row * src_pitch, bytes,
                    atomic);
    }
  };
  instruction.run = [=] {
    move(Bytes(src.memory, src.begin), Bytes(dst.memory, dst.begin));
  };
  // A bias is moved in 64 bytes: past its end nobody need have written, unless
  // Mmad reads it.
  if (dst.memory == Memory::kBias || instruction.pipe == Pipe::kV) {
    Copies(move, &instruction);
  }
  Issue(std::move(instruction));
}

}  // namespace

void MoveCount(const Call& call, const Operand& dst, const Operand& src,
               uint64_t count) {
  const Pipe pipe = PipeOf(call, dst, src);
  const uint64_t bytes = count * dst.size() / kBlock * kBlock;
  if (bytes == 0) return;
  MoveRows(call, pipe, dst, src, 1, bytes, 0, 0);
}

void MoveBlocks(const Call& call, const Operand& dst, const Operand& src,
                const AscendC::DataCopyParams& params) {
  const Pipe pipe = PipeOf(call, dst, src);
  call.Between("blockCount", params.blockCount, 0, 4095);
  const uint64_t unit = dst.memory == Memory::kBias ? 64 : kBlock;
  const uint64_t bytes = params.blockLen * unit;
  if (params.blockCount == 0 || bytes == 0) return;
  MoveRows(call, pipe, dst, src, params.blockCount, bytes,
           bytes + params.dstGap * unit, bytes + params.srcGap * kBlock);
}

void MovePadIn(const Call& call, const Operand& dst, const Operand& src,
               const AscendC::DataCopyExtParams& params, const PadFill& fill) {
  call.In("dst", dst, {Memory::kUb});
  const Pipe pipe = PipeOf(call, dst, src);
  const uint64_t size = dst.size();
  call.Between("blockCount", params.blockCount, 0, 4095);
  call.Between("blockLen", params.blockLen, 0, 2097151);
  call.Multiple("blockLen", params.blockLen, size);
  call.Between("bytes of leftPadding", fill.left * size, 0, kBlock);
  call.Between("bytes of rightPadding", fill.right * size, 0, kBlock);
  call.Between("dstStride", params.dstStride, 0, kMost16);
  if (size == 8 && fill.is_pad && fill.value != 0) {
    call.Refuse("paddingValue: expected 0 for elements of 8 B");
  }
  if (params.blockCount == 0 || params.blockLen == 0) return;
  const uint64_t rows = params.blockCount;
  const uint64_t bytes = params.blockLen;
  const uint64_t left = fill.left * size;
  const uint64_t row = RoundUp(left + bytes + fill.right * size, kBlock);
  const uint64_t dst_pitch = row + params.dstStride * kBlock;
  const uint64_t src_pitch = bytes + params.srcStride;
  const bool first = fill.left == 0 && fill.right == 0;

  Instruction instruction = call.Start(pipe);
  AddSpan(&instruction.reads, src.memory, src.begin, bytes, rows, src_pitch);
  AddSpan(&instruction.writes, dst.memory, dst.begin, row, rows, dst_pitch);
  instruction.work.bytes = rows * bytes;
  instruction.run = [=] {
    char* const to = Bytes(dst.memory, dst.begin);
    const char* const from = Bytes(src.memory, src.begin);
    for (uint64_t i = 0; i < rows; ++i) {
      char* const begin = to + i * dst_pitch;
      if (first || fill.is_pad) {
        // Without padding the rest of a block repeats the row's first element.
        const char* const value =
            first ? from + i * src_pitch
                  : reinterpret_cast<const char*>(&fill.value);
        for (uint64_t at = 0; at < row; at += size) {
          if (at < left || at >= left + bytes) {
            std::memcpy(begin + at, value, size);
          }
        }
      } else {
        std::memset(begin, kUnspecified, left);
        std::memset(begin + left + bytes, kUnspecified, row - left - bytes);
      }
      std::memcpy(begin + left, from + i * src_pitch, bytes);
    }
  };
  Issue(std::move(instruction));
}

void MovePadOut(const Call& call, const Operand& dst, const Operand& src,
                const AscendC::DataCopyExtParams& params) {
  call.In("src", src, {Memory::kUb});
  call.In("dst", dst, {Memory::kGm});
  const Pipe pipe = PipeOf(call, dst, src);
  call.Between("blockCount", params.blockCount, 0, 4095);
  call.Between("blockLen", params.blockLen, 0, 2097151);
  call.Multiple("blockLen", params.blockLen, dst.size());
  call.Between("srcStride", params.srcStride, 0, kMost16);
  if (params.blockCount == 0 || params.blockLen == 0) return;
  const uint64_t bytes = params.blockLen;
  MoveRows(call, pipe, dst, src, params.blockCount, bytes,
           bytes + params.dstStride,
           RoundUp(bytes, kBlock) + params.srcStride * kBlock);
}

void MoveNdToNz(const Call& call, const Operand& dst, const Operand& src,
                const AscendC::Nd2NzParams& params) {
  call.In("dst", dst, {Memory::kL1});
  const Pipe pipe = PipeOf(call, dst, src);
  const uint64_t size = dst.size();
  call.Between("bytes of an element", size, 1, 4);
  call.Between("ndNum", params.ndNum, 0, 4095);
  call.Between("nValue", params.nValue, 0, 16384);
  if (params.ndNum == 0 || params.nValue == 0 || params.dValue == 0) return;
  call.Between("srcDValue", params.srcDValue, 1, kMost16);
  call.Between("dstNzC0Stride", params.dstNzC0Stride, 1, 16384);
  call.Between("dstNzNStride", params.dstNzNStride, 1, 16384);
  call.Multiple("bytes of dstNzMatrixStride",
                params.ndNum == 1 ? 0 : params.dstNzMatrixStride * size,
                kBlock);  // [inferred]

  const uint64_t rows = params.nValue;
  const uint64_t row_bytes = params.dValue * size;
  const uint64_t columns = CeilDiv(row_bytes, kBlock);
  const uint64_t src_pitch = params.srcDValue * size;
  const uint64_t column_pitch = params.dstNzC0Stride * kBlock;
  const uint64_t row_pitch = params.dstNzNStride * kBlock;
  const uint64_t src_matrix = params.srcNdMatrixStride * size;
  const uint64_t dst_matrix = params.dstNzMatrixStride * size;
  const uint64_t matrices = params.ndNum;

  Instruction instruction = call.Start(pipe);
  for (uint64_t i = 0; i < matrices; ++i) {
    AddSpan(&instruction.reads, src.memory, src.begin + i * src_matrix,
            row_bytes, rows, src_pitch);
    const uint64_t begin = dst.begin + i * dst_matrix;
    if (row_pitch == kBlock) {
      AddSpan(&instruction.writes, dst.memory, begin, rows * kBlock, columns,
              column_pitch);
    } else {
      for (uint64_t column = 0; column < columns; ++column) {
        AddSpan(&instruction.writes, dst.memory, begin + column * column_pitch,
                kBlock, rows, row_pitch);
      }
    }
  }
  instruction.work.bytes = matrices * rows * row_bytes;
  instruction.run = [=] {
    for (uint64_t i = 0; i < matrices; ++i) {
      char* const to = Bytes(dst.memory, dst.begin + i * dst_matrix);
      const char* const from = Bytes(src.memory, src.begin + i * src_matrix);
      for (uint64_t row = 0; row < rows; ++row) {
        const char* const line = from + row * src_pitch;
        char* at = to + row * row_pitch;
        uint64_t column = 0;
        for (; column < row_bytes / kBlock; ++column, at += column_pitch) {
          std::memcpy(at, line + column * kBlock, kBlock);
        }
        if (column < columns) {  // the inner edge is filled with zeros
          const uint64_t rest = row_bytes - column * kBlock;
          std::memcpy(at, line + column * kBlock, rest);
          std::memset(at + rest, 0, kBlock - rest);
        }
      }
    }
  };
  Issue(std::move(instruction));
}

}  // namespace ascend_twin
