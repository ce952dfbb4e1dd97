#include "backend_ascend/kernels/host/checks/guards.h"

#include <algorithm>
#include <cstring>

#include "backend_ascend/kernels/host/tiles/poison.h"

namespace hpmoe {
namespace {

// `count` floats side by side.
TileOperand Floats(const char* name, const float* data, int64_t count) {
  return {name, data, 1, count, count, sizeof(float)};
}

// The first of some elements that is no longer poison, or -1.
int64_t FirstChanged(const char* begin, int64_t elements,
                     int64_t element_bytes) {
  for (int64_t i = 0; i < elements; ++i) {
    if (element_bytes == 2) {
      if (reinterpret_cast<const uint16_t*>(begin)[i] != kPoison16) return i;
    } else if (reinterpret_cast<const uint32_t*>(begin)[i] != kPoison) {
      return i;
    }
  }
  return -1;
}

std::string Place(int64_t row, int64_t col) {
  return "[" + std::to_string(row) + ", " + std::to_string(col) + "]";
}

}  // namespace

char* Margins::At(Copy* copy, int64_t row, int64_t col) {
  const int64_t index = (row + kRows) * Pitch(copy->of.cols) + col + kCols;
  return copy->bytes.data() + index * copy->of.element_bytes;
}

char* Margins::Place(const TileOperand& operand, bool written) {
  if (operand.IsNone()) return nullptr;
  if (used_ == copies_.size()) copies_.emplace_back();
  Copy& copy = copies_[used_++];
  copy.of = operand;
  copy.written = written;
  const int64_t elements = (operand.rows + 2 * kRows) * Pitch(operand.cols);
  copy.bytes.resize(elements * operand.element_bytes);
  PoisonElements(copy.bytes.data(), elements, operand.element_bytes);
  for (int64_t row = 0; row < operand.rows; ++row) {
    std::memcpy(At(&copy, row, 0), operand.Row(row),
                operand.cols * operand.element_bytes);
  }
  if (!written) copy.kept = copy.bytes;
  return At(&copy, 0, 0);
}

const void* Margins::Read(const TileOperand& operand) {
  return Place(operand, false);
}

void* Margins::Write(const TileOperand& operand) {
  return Place(operand, true);
}

std::string Margins::Changed(Copy* copy) {
  const TileOperand& of = copy->of;
  const int64_t pitch = Pitch(of.cols);
  const auto say = [&of](int64_t row, int64_t col) {
    return "wrote element " + hpmoe::Place(row, col) + " of " + of.name +
           ", which is " + hpmoe::Place(of.rows, of.cols);
  };
  for (int64_t row = -kRows; row < of.rows + kRows; ++row) {
    const bool beyond = row < 0 || row >= of.rows;
    const int64_t ends[] = {-kCols, beyond ? pitch - kCols : 0};
    const int64_t rest[] = {of.cols, pitch - kCols};
    for (const int64_t* part : {ends, rest}) {
      const int64_t at = FirstChanged(At(copy, row, part[0]), part[1] - part[0],
                                      of.element_bytes);
      if (at >= 0) return say(row, part[0] + at);
    }
    if (beyond || copy->written) continue;
    // Not the source: a task that nobody waited for may have changed that.
    const char* now = At(copy, row, 0);
    if (std::memcmp(copy->kept.data() + (now - copy->bytes.data()), now,
                    of.cols * of.element_bytes)) {
      return say(row, 0) + " and only read";
    }
  }
  return "";
}

std::string Margins::Finish() {
  std::string found;
  for (size_t i = 0; i < used_; ++i) {
    Copy& copy = copies_[i];
    if (found.empty()) found = Changed(&copy);
    if (!copy.written) continue;
    const TileOperand& of = copy.of;
    for (int64_t row = 0; row < of.rows; ++row) {
      std::memcpy(of.Row(row), At(&copy, row, 0), of.cols * of.element_bytes);
    }
  }
  used_ = 0;
  return found;
}

void GuardedKernels::Finish() {
  const std::string found = margins_.Finish();
  if (found_.empty()) found_ = found;
}

const void* const* GuardedKernels::ReadRows(const TileOperand& operand) {
  const auto* const copy = static_cast<const char*>(margins_.Read(operand));
  if (copy == nullptr) return nullptr;
  rows_.resize(operand.rows);
  for (int64_t row = 0; row < operand.rows; ++row) {
    rows_[row] =
        copy + row * Margins::Pitch(operand.cols) * operand.element_bytes;
  }
  return rows_.data();
}

void GuardedKernels::Gemm(const GemmTile& tile) {
  GemmTile copy = tile;
  const int64_t bytes = BytesOf(tile.dtype);
  const int64_t a[] = {tile.m, tile.k}, b[] = {tile.k, tile.n};
  const bool ta = tile.trans_a, tb = tile.trans_b;
  copy.a = margins_.Read({"a", tile.a, a[ta], a[!ta], tile.lda, bytes});
  copy.b = margins_.Read({"b", tile.b, b[tb], b[!tb], tile.ldb, bytes});
  copy.a_rows = ReadRows({"a", nullptr, a[ta], a[!ta], 0, bytes, tile.a_rows});
  copy.lda = Margins::Pitch(a[!ta]);
  copy.ldb = Margins::Pitch(b[!tb]);
  copy.row_weight = static_cast<const float*>(
      margins_.Read(Floats("row_weight", tile.row_weight, tile.m)));
  const bool carries = tile.carry != nullptr;
  if (!carries || !tile.carry_out) {
    copy.c = margins_.Write({"c", tile.c, tile.m, tile.n, tile.ldc, bytes});
    copy.ldc = Margins::Pitch(tile.n);
  }
  const TileOperand carry = {"carry", tile.carry,    tile.m,
                             tile.n,  tile.ld_carry, sizeof(float)};
  if (carries && (tile.carry_in || tile.carry_out)) {
    copy.carry = static_cast<float*>(margins_.Write(carry));
    copy.ld_carry = Margins::Pitch(tile.n);
  }
  kernels_.Gemm(copy);
  Finish();
}

void GuardedKernels::Swiglu(const SwigluTile& tile) {
  SwigluTile copy = tile;
  const int64_t rows = tile.rows, cols = tile.cols;
  const int64_t bytes = BytesOf(tile.dtype);
  copy.gate = margins_.Read({"gate", tile.gate, rows, cols, tile.ld_in, bytes});
  copy.up = margins_.Read({"up", tile.up, rows, cols, tile.ld_in, bytes});
  copy.row_weight = static_cast<const float*>(
      margins_.Read(Floats("row_weight", tile.row_weight, rows)));
  copy.out = margins_.Write({"out", tile.out, rows, cols, tile.ld_out, bytes});
  copy.ld_in = copy.ld_out = Margins::Pitch(cols);
  kernels_.Swiglu(copy);
  Finish();
}

void GuardedKernels::SwigluGrad(const SwigluGradTile& tile) {
  SwigluGradTile copy = tile;
  const int64_t rows = tile.rows, cols = tile.cols;
  const int64_t bytes = BytesOf(tile.dtype);
  const auto of = [=](const char* name, const void* data, int64_t ld) {
    return TileOperand{name, data, rows, cols, ld, bytes};
  };
  copy.d_out = margins_.Read(of("d_out", tile.d_out, tile.ld_d_out));
  copy.gate = margins_.Read(of("gate", tile.gate, tile.ld_in));
  copy.up = margins_.Read(of("up", tile.up, tile.ld_in));
  copy.row_weight = static_cast<const float*>(
      margins_.Read(Floats("row_weight", tile.row_weight, rows)));
  copy.d_gate = margins_.Write(of("d_gate", tile.d_gate, tile.ld_grad));
  copy.d_up = margins_.Write(of("d_up", tile.d_up, tile.ld_grad));
  copy.d_row_weight = static_cast<float*>(
      margins_.Write(Floats("d_row_weight", tile.d_row_weight, rows)));
  copy.ld_d_out = copy.ld_in = copy.ld_grad = Margins::Pitch(cols);
  kernels_.SwigluGrad(copy);
  Finish();
}

void GuardedKernels::Combine(const CombineTile& tile) {
  CombineTile copy = tile;
  const int64_t slots = int64_t{tile.tokens} * tile.top_k, cols = tile.cols;
  const int64_t bytes = BytesOf(tile.dtype);
  copy.returned =
      margins_.Read({"returned", tile.returned, slots, cols, tile.ld, bytes});
  copy.rows = ReadRows({"rows", nullptr, slots, cols, 0, bytes, tile.rows});
  copy.weights = static_cast<const float*>(
      margins_.Read(Floats("weights", tile.weights, slots)));
  copy.y = margins_.Write({"y", tile.y, tile.tokens, cols, tile.ld_y, bytes});
  copy.ld = copy.ld_y = Margins::Pitch(cols);
  kernels_.Combine(copy);
  Finish();
}

void GuardedKernels::RowDots(const RowDotTile& tile) {
  RowDotTile copy = tile;
  const int64_t bytes = BytesOf(tile.dtype), pitch = Margins::Pitch(tile.cols);
  const int64_t rows_a = tile.ld_a == 0 ? 1 : tile.rows;
  const int64_t rows_b = tile.ld_b == 0 ? 1 : tile.rows;
  copy.a = margins_.Read({"a", tile.a, rows_a, tile.cols, tile.ld_a, bytes});
  copy.b = margins_.Read({"b", tile.b, rows_b, tile.cols, tile.ld_b, bytes});
  copy.out =
      static_cast<float*>(margins_.Write(Floats("out", tile.out, tile.rows)));
  if (tile.ld_a != 0) copy.ld_a = pitch;
  if (tile.ld_b != 0) copy.ld_b = pitch;
  kernels_.RowDots(copy);
  Finish();
}

void GuardedKernels::ScaleRows(const ScaleRowsTile& tile) {
  ScaleRowsTile copy = tile;
  const int64_t bytes = BytesOf(tile.dtype), pitch = Margins::Pitch(tile.cols);
  const int64_t rows = tile.ld_x == 0 ? 1 : tile.rows;
  copy.x = margins_.Read({"x", tile.x, rows, tile.cols, tile.ld_x, bytes});
  copy.weight = static_cast<const float*>(
      margins_.Read(Floats("weight", tile.weight, tile.rows)));
  copy.out = margins_.Write(
      {"out", tile.out, tile.rows, tile.cols, tile.ld_out, bytes});
  if (tile.ld_x != 0) copy.ld_x = pitch;
  copy.ld_out = pitch;
  kernels_.ScaleRows(copy);
  Finish();
}

void GuardedKernels::Norm(const NormTile& tile) {
  NormTile copy = tile;
  const int64_t bytes = BytesOf(tile.dtype), pitch = Margins::Pitch(tile.cols);
  const bool sums = tile.work == Work::kGainGrad;
  // What sums over tokens read is looked at in place: rows of two widths.
  if (tile.dx != nullptr && !sums) {
    copy.dx =
        margins_.Read({"dx", tile.dx, tile.rows, tile.cols, tile.ld, bytes});
  }
  if (!sums) {
    copy.y = margins_.Read({"y", tile.y, tile.rows, tile.cols, tile.ld, bytes});
    copy.gain =
        margins_.Read({"gain", tile.gain, 1, tile.cols, tile.cols, bytes});
    copy.ld = pitch;
    copy.out =
        margins_.Write({"out", tile.out, tile.rows, tile.cols, tile.ld, bytes});
  } else {
    copy.out =
        margins_.Write({"out", tile.out, 1, tile.out_cols, tile.out_cols, 4});
  }
  kernels_.Norm(copy);
  Finish();
}

void GuardedKernels::Copy(const void* from, size_t bytes, void* to) {
  const auto size = static_cast<int64_t>(bytes / 2);  // two bytes each
  const void* source = margins_.Read({"from", from, 1, size, size, 2});
  void* target = margins_.Write({"to", to, 1, size, size, 2});
  kernels_.Copy(source, bytes, target);
  Finish();
}

void GuardedKernels::WriteHeader(int32_t slot, float weight, int32_t* slot_to,
                                 float* weight_to) {
  void* slot_copy = margins_.Write({"slot", slot_to, 1, 1, 1, 4});
  void* weight_copy = margins_.Write(Floats("weight", weight_to, 1));
  kernels_.WriteHeader(slot, weight, static_cast<int32_t*>(slot_copy),
                       static_cast<float*>(weight_copy));
  Finish();
}

void* GuardedKernels::Scratch(GemmScratch::Slot slot, int64_t elements,
                              int64_t element_bytes) {
  return kernels_.Scratch(slot, elements, element_bytes);
}

}  // namespace hpmoe
