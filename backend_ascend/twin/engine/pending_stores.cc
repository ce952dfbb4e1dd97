// Stores to words that cores poll, which are on their way.
//
// A store to global memory is done at a time of its own: two of one pipe are
// seen in either order unless a barrier of that pipe, or a DataSyncBarrier for
// the scalar unit's, stands between them.

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend_ascend/twin/engine/machine.h"

namespace ascend_twin {

// In order each is done at once.
bool Machine::Holds() {
  return spec_.mode == Mode::kLate ||
         (spec_.mode == Mode::kSeeded && (random_() & 7) != 0);
}

void Machine::Hold(Core* core, const Place& at, uint64_t begin,
                   std::string bytes) {
  CompleteHeldAt(core, begin, begin + bytes.size());
  held_.push_back(
      {core, at, begin, std::move(bytes), core->pipe(at.pipe).known});
}

// A move to polled words that adds nothing.
bool Machine::HoldsMove(const Instruction& work) {
  if (spec_.mode == Mode::kInOrder || work.pipe != Pipe::kMte3 || work.atomic)
    return false;
  const Span& to = work.writes[0];
  if (to.memory != Memory::kGm || to.bytes == 0 || to.rows == 0) return false;
  const Global* global = globals_.Find(to.begin, to.begin + to.bytes);
  return global->range.kind == GlobalKind::kFlags && Holds();
}

void Machine::RunHeld(Core* core, const Place& at, const Instruction& work) {
  const Span& to = work.writes[0];
  const auto row = [&to](uint64_t i) {
    return reinterpret_cast<char*>(to.begin + i * to.pitch);
  };
  std::vector<std::string> rows;
  for (uint64_t i = 0; i < to.rows; ++i) rows.emplace_back(row(i), to.bytes);
  work.run();
  for (uint64_t i = 0; i < to.rows; ++i) {
    std::swap_ranges(rows[i].begin(), rows[i].end(), row(i));
  }
  for (uint64_t i = 0; i < to.rows; ++i) {
    Hold(core, at, to.begin + i * to.pitch, std::move(rows[i]));
  }
}

// Seen by all from here on.
void Machine::CompleteHeld(size_t index) {
  const HeldStore store = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  const uint64_t end = store.begin + store.bytes.size();
  Clock known = store.known;
  TouchFlags(store.begin, end, &known, true, false);
  std::memcpy(reinterpret_cast<char*>(store.begin), store.bytes.data(),
              store.bytes.size());
  NoteWrite(store.at, store.begin, end,
            store.at.pipe == Pipe::kS ? store.core : nullptr);
  ++flags_version_;
}

// Barriers and flags of the pipe wait for them.
bool Machine::IsHeld(const Core& core, Pipe pipe) const {
  return std::any_of(held_.begin(), held_.end(), [&](const HeldStore& store) {
    return store.core == &core && store.at.pipe == pipe;
  });
}

// A core's stores to the same bytes stay in order.
void Machine::CompleteHeldAt(const Core* core, uint64_t begin, uint64_t end) {
  for (size_t i = 0; i < held_.size();) {
    const HeldStore& store = held_[i];
    if (store.core == core && store.begin < end &&
        begin < store.begin + store.bytes.size()) {
      CompleteHeld(i);
    } else {
      ++i;
    }
  }
}

// A scalar unit sees what it stored itself.
void Machine::SeeOwnHeld(const Core& core, uint64_t begin, Line* line) const {
  for (const HeldStore& store : held_) {
    if (store.core != &core || store.at.pipe != Pipe::kS) continue;
    const uint64_t first = std::max(begin, store.begin);
    const uint64_t last =
        std::min(begin + kLineBytes, store.begin + store.bytes.size());
    if (first >= last) continue;
    std::memcpy(line->bytes + (first - begin),
                store.bytes.data() + (first - store.begin), last - first);
  }
}

// The youngest first, as late has it, or any.
bool Machine::StepHeld() {
  if (held_.empty()) return false;
  const bool any = spec_.mode == Mode::kSeeded;
  CompleteHeld(any ? random_() % held_.size() : held_.size() - 1);
  return true;
}

}  // namespace ascend_twin
