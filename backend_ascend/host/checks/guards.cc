#include "backend_ascend/host/checks/guards.h"

#include <algorithm>
#include <cstring>

#include "backend_ascend/host/tiles/poison.h"

namespace hpmoe {
namespace {

// The first of some elements that is no longer poison, or -1.
int64_t FirstChanged(const char* begin, int64_t elements,
                     int64_t element_bytes) {
  for (int64_t i = 0; i < elements; ++i) {
    if (element_bytes == 1) {
      if (static_cast<uint8_t>(begin[i]) != kPoison8) return i;
    } else if (element_bytes == 2) {
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

void* Margins::Place(const TileOperand& operand, bool written) {
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
  const auto* const copy =
      static_cast<const char*>(margins_.Place(operand, false));
  if (copy == nullptr) return nullptr;
  rows_.resize(operand.rows);
  for (int64_t row = 0; row < operand.rows; ++row) {
    rows_[row] =
        copy + row * Margins::Pitch(operand.cols) * operand.element_bytes;
  }
  return rows_.data();
}

void GuardedKernels::Copy(const void* from, size_t bytes, void* to) {
  const int64_t each = bytes % 2 == 0 ? 2 : 1;
  const int64_t size = static_cast<int64_t>(bytes) / each;
  const void* source =
      margins_.Place({"from", from, 1, size, size, each}, false);
  void* target = margins_.Place({"to", to, 1, size, size, each}, true);
  kernels_.Copy(source, bytes, target);
  Finish();
}

void GuardedKernels::WriteHeader(int32_t slot, float weight, int32_t* slot_to,
                                 float* weight_to) {
  void* slot_copy = margins_.Place({"slot", slot_to, 1, 1, 1, 4}, true);
  void* weight_copy = margins_.Place(Floats("weight", weight_to, 1), true);
  kernels_.WriteHeader(slot, weight, static_cast<int32_t*>(slot_copy),
                       static_cast<float*>(weight_copy));
  Finish();
}

void* GuardedKernels::Scratch(GemmScratch::Slot slot, int64_t elements,
                              int64_t element_bytes) {
  return kernels_.Scratch(slot, elements, element_bytes);
}

}  // namespace hpmoe
