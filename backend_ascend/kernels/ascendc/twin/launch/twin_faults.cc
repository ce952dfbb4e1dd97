#include "backend_ascend/kernels/ascendc/twin/launch/twin_faults.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "backend_ascend/kernels/host/tiles/storage.h"

namespace hpmoe {
namespace {

using ascend_twin::Bytes;
using ascend_twin::Instruction;
using ascend_twin::Memory;
using ascend_twin::Span;

constexpr uint64_t kBlockBytes = 32;  // of a row of a fractal
constexpr uint64_t kFractalBytes = 512;

// Calls visit(begin, bytes) for each run of spans that `wanted` holds for.
template <class Wanted, class Visit>
void ForEachRun(const std::vector<Span>& spans, Wanted wanted, Visit visit) {
  for (const Span& span : spans) {
    for (uint64_t r = 0; wanted(span.memory) && r < span.rows; ++r) {
      visit(span.memory, span.begin + r * span.pitch, span.bytes);
    }
  }
}

const Span* Find(const std::vector<Span>& spans, Memory memory) {
  for (const Span& span : spans) {
    if (span.memory == memory) return &span;
  }
  return nullptr;
}

// Bytes of a memory that are not what they were.
class Changed {
 public:
  // Puts `bytes` in the place of as many; whether they differ.
  bool Put(char* at, const std::vector<char>& bytes) {
    const bool differs = std::memcmp(at, bytes.data(), bytes.size()) != 0;
    before_.push_back({at, {at, at + bytes.size()}});
    std::memcpy(at, bytes.data(), bytes.size());
    return differs;
  }
  void Restore() const {
    for (auto it = before_.rbegin(); it != before_.rend(); ++it) {
      std::memcpy(it->first, it->second.data(), it->second.size());
    }
  }

 private:
  std::vector<std::pair<char*, std::vector<char>>> before_;
};

float Narrow(float value, int dropped_bits) {
  const uint32_t bits = FloatBits(value);
  const uint32_t half =
      (1u << (dropped_bits - 1)) - 1 + ((bits >> dropped_bits) & 1u);
  return BitsFloat((bits + half) >> dropped_bits << dropped_bits);
}

// Rewrites the floats that an instruction wrote; whether any changed.
template <class Rewrite>
bool RewriteFloats(const std::vector<Span>& spans, Memory memory,
                   Rewrite rewrite) {
  bool changed = false;
  ForEachRun(
      spans, [=](Memory m) { return m == memory; },
      [&](Memory m, uint64_t begin, uint64_t bytes) {
        auto* const values = reinterpret_cast<float*>(Bytes(m, begin));
        for (uint64_t i = 0; i < bytes / sizeof(float); ++i) {
          const float right = values[i];
          values[i] = rewrite(right);
          changed |= FloatBits(values[i]) != FloatBits(right);
        }
      });
  return changed;
}

// A product of an Mmad by parts of its depth.  What it reads of L0A are stripes
// of whole fractals, then a stripe of fewer rows, or one plain row: rows of 32
// bytes, each with some of the terms.
class Product {
 public:
  Product(const Instruction& mmad, bool is_float, std::function<void()> run)
      : run_(std::move(run)),
        reads_(mmad.reads),
        sum_(*Find(mmad.writes, Memory::kL0C)),
        is_float_(is_float),
        term_bytes_(is_float ? 4 : 2),
        blocks_(Find(mmad.reads, Memory::kL0B)->rows) {}

  // In terms.
  uint64_t depth() const { return blocks_ * block_terms(); }

  // The sum is rounded after each `step` terms, but for the last ones if it is
  // not the `last`; whether that changes what is stored of it.
  bool SumNarrow(uint64_t step, bool last) const {
    auto* const sums = reinterpret_cast<float*>(Bytes(sum_.memory, sum_.begin));
    const uint64_t count = sum_.bytes / sizeof(float);
    const bool begins = Find(reads_, Memory::kL0C) == nullptr;
    std::vector<float> total(count, 0.0f);
    if (!begins) total.assign(sums, sums + count);
    run_();
    const std::vector<float> right(sums, sums + count);
    for (uint64_t term = 0; term < depth(); term += step) {
      std::fill_n(sums, count, 0.0f);
      RunPart(term, term + step);
      const bool rounds = last || term + step < depth();
      for (uint64_t i = 0; i < count; ++i) {
        const float sum = total[i] + sums[i];
        total[i] = rounds ? RoundToBf16(sum) : sum;
      }
    }
    std::copy(total.begin(), total.end(), sums);
    return !std::equal(total.begin(), total.end(), right.begin(),
                       [this](float a, float b) {
                         return FloatBits(Stored(a)) == FloatBits(Stored(b));
                       });
  }

 private:
  uint64_t block_terms() const { return kBlockBytes / term_bytes_; }
  float Stored(float value) const {
    return is_float_ ? value : RoundToBf16(value);
  }

  // With the terms outside of [begin, end) zero.
  void RunPart(uint64_t begin, uint64_t end) const {
    Changed changed;
    for (const Span& span : reads_) {
      if (span.memory != Memory::kL0A) continue;
      for (uint64_t block = 0; block < blocks_; ++block) {
        const uint64_t first = block * block_terms();
        const uint64_t past = first + block_terms();
        Clear(span, block, first, std::min(past, begin), &changed);
        Clear(span, block, std::max(first, end), past, &changed);
      }
    }
    run_();
    changed.Restore();
  }

  // Terms [begin, end), which lie in a block of each row.
  void Clear(const Span& span, uint64_t block, uint64_t begin, uint64_t end,
             Changed* changed) const {
    if (begin >= end) return;
    const uint64_t from = begin % block_terms() * term_bytes_;
    const uint64_t bytes = (end - begin) * term_bytes_;
    const auto clear = [&](uint64_t at, uint64_t rows) {
      for (uint64_t row = 0; row < rows; ++row) {
        changed->Put(Bytes(span.memory, at + row * kBlockBytes + from),
                     std::vector<char>(bytes));
      }
    };
    constexpr uint64_t kRows = kFractalBytes / kBlockBytes;
    if (span.bytes == blocks_ * kFractalBytes) {
      for (uint64_t r = 0; r < span.rows; ++r) {
        clear(span.begin + r * span.pitch + block * kFractalBytes, kRows);
      }
    } else if (span.rows == blocks_) {
      clear(span.begin + block * span.pitch, span.bytes / kBlockBytes);
    } else {
      const uint64_t at = block * kBlockBytes + from;
      if (at >= span.bytes) return;
      changed->Put(Bytes(span.memory, span.begin + at),
                   std::vector<char>(std::min(bytes, span.bytes - at)));
    }
  }

  const std::function<void()> run_;
  const std::vector<Span> reads_;
  const Span sum_;
  const bool is_float_;
  const uint64_t term_bytes_;
  const uint64_t blocks_;  // of 32 bytes, in the depth
};

}  // namespace

FaultyTask::FaultyTask(const ImageView& view, const Plan& plan,
                       const DeviceMemory& memory, const FaultSpec& fault)
    : fault_(fault),
      is_float_(view.header->dtype == kFloat32),
      patches_(PatchesOf(view, plan, memory, fault)) {}

void FaultyTask::OnIssue(int64_t task, Instruction* issued) {
  if (task != fault_.task || fault_.task < 0) return;
  switch (fault_.kind) {
    case FaultKind::kZeroOutput:
    case FaultKind::kDroppedTile:
    case FaultKind::kEmptyGradNotZeroed:
      return SpoilStore(issued);
    case FaultKind::kEarlyRounding:
    case FaultKind::kSiluOff:
      return SpoilQuotient(issued);
    case FaultKind::kNarrowOperandsTf32:
    case FaultKind::kNarrowOperandsBf16:
      return NarrowOperand(issued);
    case FaultKind::kWrongAccumulation:
    case FaultKind::kNarrowAccumulator:
      return SpoilProduct(issued);
    default:
      return PatchLoads(issued);
  }
}

// The load sees other bytes.
void FaultyTask::PatchLoads(Instruction* issued) {
  struct Part {
    char* at;
    const Patch* patch;
    uint64_t offset, bytes;
  };
  std::vector<Part> parts;
  ForEachRun(
      issued->reads, [](Memory m) { return m == Memory::kGm; },
      [&](Memory, uint64_t begin, uint64_t bytes) {
        for (const Patch& patch : patches_) {
          const uint64_t from = std::max(begin, patch.begin);
          const uint64_t to =
              std::min(begin + bytes, patch.begin + patch.bytes);
          if (from >= to) continue;
          parts.push_back({reinterpret_cast<char*>(from), &patch,
                           from - patch.begin, to - from});
        }
      });
  if (parts.empty()) return;
  issued->run = [this, parts, run = issued->run] {
    // All of them first: one may be made of what another stands in for.
    std::vector<std::vector<char>> made;
    for (const Part& part : parts) {
      made.emplace_back(part.bytes);
      part.patch->make(part.offset, part.bytes, made.back().data());
    }
    Changed changed;
    bool differs = false;
    for (size_t i = 0; i < parts.size(); ++i) {
      differs |= changed.Put(parts[i].at, made[i]);
    }
    run();
    changed.Restore();
    num_changed_ += differs;
  };
}

// The move writes zeros, or nothing.
void FaultyTask::SpoilStore(Instruction* issued) {
  if (issued->atomic || Find(issued->writes, Memory::kGm) == nullptr) return;
  if (fault_.kind != FaultKind::kZeroOutput) {
    ++num_changed_;
    issued->run = [] {};
    return;
  }
  issued->run = [this, reads = issued->reads, run = issued->run] {
    Changed changed;
    bool differs = false;
    ForEachRun(
        reads, [](Memory m) { return m != Memory::kGm; },
        [&](Memory m, uint64_t begin, uint64_t bytes) {
          differs |= changed.Put(Bytes(m, begin), std::vector<char>(bytes));
        });
    run();
    changed.Restore();
    num_changed_ += differs;
  };
}

// silu is a quotient; so are the other factors of its slope.
void FaultyTask::SpoilQuotient(Instruction* issued) {
  if (std::string_view(issued->name) != "Div") return;
  issued->run = [this, writes = issued->writes, run = issued->run] {
    run();
    num_changed_ += RewriteFloats(writes, Memory::kUb, [this](float value) {
      return fault_.kind == FaultKind::kSiluOff ? value * 1.0001f
                                                : RoundToBf16(value);
    });
  };
}

void FaultyTask::NarrowOperand(Instruction* issued) {
  const bool loads = Find(issued->writes, Memory::kL0A) != nullptr ||
                     Find(issued->writes, Memory::kL0B) != nullptr;
  if (!loads || !is_float_) return;
  const int dropped = fault_.kind == FaultKind::kNarrowOperandsTf32 ? 13 : 16;
  issued->run = [this, dropped, writes = issued->writes, run = issued->run] {
    run();
    for (const Memory memory : {Memory::kL0A, Memory::kL0B}) {
      num_changed_ += RewriteFloats(
          writes, memory, [=](float value) { return Narrow(value, dropped); });
    }
  };
}

// Sums are rounded after each term, or once half way.
void FaultyTask::SpoilProduct(Instruction* issued) {
  if (std::string_view(issued->name) != "Mmad") return;
  const bool always = fault_.kind == FaultKind::kWrongAccumulation;
  if (num_products_++ > 0 && !always) return;
  const Product product(*issued, is_float_, issued->run);
  issued->run = [this, always, product] {
    const uint64_t depth = product.depth();
    const uint64_t step = always || depth == 1 ? 1 : (depth + 1) / 2;
    num_changed_ += product.SumNarrow(step, always || depth == 1);
  };
}

}  // namespace hpmoe
