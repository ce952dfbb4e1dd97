// Where every write stands in the space of its buffer.

#ifndef BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_SPACES_H_
#define BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_SPACES_H_

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "backend_ascend/compiler/proofs/proofs_context.h"

namespace hpmoe::proofs {

// One write, placed in its space.
struct Box {
  int32_t space;
  int32_t group;
  int32_t row_begin;
  int32_t col_begin;
  int32_t row_end;
  int32_t col_end;
  int32_t task;

  bool operator<(const Box& b) const {
    return std::tie(space, group, row_begin, col_begin, task) <
           std::tie(b.space, b.group, b.row_begin, b.col_begin, b.task);
  }
};

// The spaces by (buffer, rank), and every write in its space, sorted.
class Spaces {
 public:
  explicit Spaces(const Context& c) : v_(c.v) {
    for (int32_t i = 0; i < v_.num_spaces; ++i) {
      const SpaceDesc& s = v_.spaces[i];
      at_.emplace(Key(s.buffer, s.rank, 0), i);
    }
    for (int32_t i = 0; i < v_.num_tasks; ++i) {
      for (const RegionDesc& r : c.Writes(v_.tasks[i])) {
        const int32_t space = Find(r.buffer, r.rank);
        if (IsEmpty(r) || space < 0 || v_.spaces[space].view != r.view) {
          continue;
        }
        boxes.push_back({space, r.group, r.row_begin, r.col_begin, r.row_end,
                         r.col_end, i});
      }
    }
    std::sort(boxes.begin(), boxes.end());
  }

  // Space of a buffer on a rank, or -1.
  int32_t Find(uint16_t buffer, int32_t rank) const {
    const auto found = at_.find(Key(buffer, rank, 0));
    return found == at_.end() ? -1 : found->second;
  }

  // Space in which the rows of a buffer on a rank are written, or -1.
  int32_t Holding(uint16_t buffer, int32_t rank) const {
    const int32_t space = Find(buffer, rank);
    return space >= 0 ? space : Find(buffer, kAnyRank);
  }

  // The boxes of groups [begin, end) of a space.
  Span<Box> Groups(int32_t space, int64_t begin, int64_t end) const {
    const auto before = [&](const Box& b, int64_t group) {
      return b.space < space || (b.space == space && b.group < group);
    };
    const Box* first = boxes.data();
    const Box* last = first + boxes.size();
    return {std::lower_bound(first, last, begin, before),
            std::lower_bound(first, last, end, before)};
  }

  std::vector<Box> boxes;

 private:
  const ImageView& v_;
  std::unordered_map<uint64_t, int32_t> at_;
};

}  // namespace hpmoe::proofs

#endif  // BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_SPACES_H_
