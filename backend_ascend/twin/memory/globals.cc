#include "backend_ascend/twin/memory/globals.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace ascend_twin {
namespace {

std::string Named(const GlobalRange& range) {
  return range.name + " of rank " + std::to_string(range.rank);
}

std::string Hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx",
                static_cast<unsigned long long>(value));
  return text;
}

bool HasShadow(GlobalKind kind) {
  return kind == GlobalKind::kFilled || kind == GlobalKind::kEmpty;
}

uint64_t Distance(const Global& global, uint64_t address) {
  if (address < global.range.begin) return global.range.begin - address;
  return address >= global.end() ? address - global.end() + 1 : 0;
}

}  // namespace

Globals::Globals(const std::vector<GlobalRange>& ranges, bool hazards) {
  for (const GlobalRange& range : ranges) {
    Global global{range, nullptr};
    if (hazards && HasShadow(range.kind)) {
      global.shadow = std::make_unique<Shadow>(
          range.bytes, range.kind == GlobalKind::kFilled);
    }
    globals_.push_back(std::move(global));
  }
  std::sort(globals_.begin(), globals_.end(),
            [](const Global& a, const Global& b) {
              return a.range.begin < b.range.begin;
            });
}

Global* Globals::Find(uint64_t begin, uint64_t end) {
  if (last_ != nullptr && last_->Holds(begin, end)) return last_;
  auto after = std::upper_bound(
      globals_.begin(), globals_.end(), begin,
      [](uint64_t at, const Global& g) { return at < g.range.begin; });
  if (after == globals_.begin()) return nullptr;
  --after;
  if (!after->Holds(begin, end)) return nullptr;
  return last_ = &*after;
}

std::string Globals::Nearest(uint64_t address) const {
  if (globals_.empty()) return "nothing";
  const Global& nearest =
      *std::min_element(globals_.begin(), globals_.end(),
                        [address](const Global& a, const Global& b) {
                          return Distance(a, address) < Distance(b, address);
                        });
  const GlobalRange& range = nearest.range;
  if (address < range.begin) {
    return Named(range) + ", " + std::to_string(range.begin - address) +
           " bytes before its begin";
  }
  if (address < nearest.end()) {
    return NameOf(address) + " of " + Hex(range.bytes);
  }
  return Named(range) + ", " + std::to_string(address - nearest.end()) +
         " bytes after its end";
}

std::string Globals::NameOf(uint64_t address) const {
  for (const Global& global : globals_) {
    if (global.Holds(address, address + 1)) {
      return Named(global.range) + " + " + Hex(address - global.range.begin);
    }
  }
  return Hex(address);
}

void Globals::Publish(uint64_t begin, uint64_t end, const Clock& known,
                      bool atomic) {
  for (uint64_t word = begin / 4; word < (end + 3) / 4; ++word) {
    Clock& published = published_[word];
    if (atomic) {
      published.Join(known);
    } else {
      published = known;
    }
  }
}

void Globals::Acquire(uint64_t begin, uint64_t end, Clock* known) const {
  for (uint64_t word = begin / 4; word < (end + 3) / 4; ++word) {
    const auto published = published_.find(word);
    if (published != published_.end()) known->Join(published->second);
  }
}

}  // namespace ascend_twin
