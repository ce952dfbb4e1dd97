#include <algorithm>
#include <cinttypes>
#include <iterator>
#include <map>

#include "backend_ascend/compiler/proofs/proofs_rules.h"

namespace hpmoe::proofs {
namespace {

// once: the writes tile every space.
class OnceRule {
 public:
  OnceRule(Context* context, const Spaces& spaces)
      : c_(context), v_(context->v), spaces_(spaces) {}

  void Run() {
    CheckSpaces();
    CheckHomes();
    const Box* at = spaces_.boxes.data();
    const Box* const end = at + spaces_.boxes.size();
    for (int32_t s = 0; s < v_.num_spaces; ++s) {
      const Box* first = at;
      while (at != end && at->space == s) ++at;
      Tile(s, {first, at});
    }
  }

 private:
  // Every buffer that tasks write has one space on every rank, or one for all.
  void CheckSpaces() {
    for (uint16_t buffer = 0; buffer < kNumBuffers; ++buffer) {
      if (!IsWritten(*v_.header, buffer)) continue;
      const bool any = spaces_.Find(buffer, kAnyRank) >= 0;
      int64_t count = 0;
      for (int32_t i = 0; i < v_.num_spaces; ++i) {
        count += v_.spaces[i].buffer == buffer;
      }
      int32_t rank = 0;
      while (!any && rank < v_.header->num_ranks &&
             spaces_.Find(buffer, rank) >= 0) {
        ++rank;
      }
      const int64_t expected = any ? 1 : v_.header->num_ranks;
      if (count == expected && (any || rank == expected)) continue;
      c_->Refuse(kOnceRule, -1, -1, -1, nullptr,
                 "once: spaces of %s: expected one for each of %d ranks, or "
                 "one for all, got %" PRId64,
                 BufferName(buffer), v_.header->num_ranks, count);
    }
  }

  void CheckHomes() {
    for (int32_t i = 0; i < v_.num_tasks; ++i) {
      for (const RegionDesc& r : c_->Writes(v_.tasks[i])) {
        ++c_->result.checked[kOnceRule];
        const int32_t space = spaces_.Find(r.buffer, r.rank);
        if (space >= 0 && v_.spaces[space].view == r.view) continue;
        c_->Refuse(kOnceRule, i, -1, -1, &r,
                   "once: %s writes %s, which has no space in that view",
                   TaskText(*c_, i).s, RegionText(r).s);
      }
    }
  }

  // How far down the columns from a map key to the next are written.
  struct Front {
    int32_t col_end;
    int32_t row_end;
    int32_t task;
  };

  // Boxes come by (group, row, column).  Each must sit exactly on the front
  // that the boxes before it left: higher is an overlap, lower is a gap.
  void Tile(int32_t space, Span<Box> boxes) {
    const SpaceDesc& s = v_.spaces[space];
    int64_t group = 0;
    for (const Box* at = boxes.begin(); at != boxes.end(); ++group) {
      if (at->group > group) {
        Missing(s, static_cast<int32_t>(group), 0, s.rows, 0, s.cols);
        group = at->group;
      }
      front_.clear();
      front_[0] = {s.cols, 0, -1};
      whole_ = true;
      for (; at != boxes.end() && at->group == group; ++at) Drop(s, *at);
      for (const auto& [col, front] : front_) {
        if (front.row_end < s.rows) {
          Gap(s, at[-1].group, front.row_end, s.rows, col, front.col_end);
        }
      }
    }
    if (group < s.groups) {
      Missing(s, static_cast<int32_t>(group), 0, s.rows, 0, s.cols);
    }
  }

  void Drop(const SpaceDesc& s, const Box& box) {
    Split(box.col_begin);
    Split(box.col_end);
    int32_t col = box.col_begin;  // the box's front is laid up to here
    auto at = front_.find(col);
    while (at != front_.end() && at->first < box.col_end) {
      const Front front = at->second;
      if (front.row_end > box.row_begin) {
        Overlap(s, box, at->first, front);
      } else if (front.row_end < box.row_begin) {
        Gap(s, box.group, front.row_end, box.row_begin, at->first,
            front.col_end);
      }
      if (front.row_end > box.row_end) {  // a taller box stays on top
        Lay(col, at->first, box);
        col = front.col_end;
        ++at;
      } else {
        at = front_.erase(at);
      }
    }
    Lay(col, box.col_end, box);
  }

  void Lay(int32_t col_begin, int32_t col_end, const Box& box) {
    if (col_begin < col_end) {
      front_[col_begin] = {col_end, box.row_end, box.task};
    }
  }

  void Split(int32_t col) {
    const auto after = front_.upper_bound(col);
    if (after == front_.begin()) return;
    const auto at = std::prev(after);
    if (at->first == col || at->second.col_end <= col) return;
    front_[col] = at->second;
    at->second.col_end = col;
  }

  void Overlap(const SpaceDesc& s, const Box& box, int32_t col,
               const Front& front) {
    const RegionDesc region = {
        s.buffer,  s.view,        s.rank,
        box.group, box.row_begin, std::min(box.row_end, front.row_end),
        col,       front.col_end, 0};
    c_->Refuse(kOnceRule, front.task, box.task, -1, &region,
               "once: %s and %s both write %s", TaskText(*c_, front.task).s,
               TaskText(*c_, box.task).s, RegionText(region).s);
  }

  // The first gap of a group; more would repeat it.
  void Gap(const SpaceDesc& s, int32_t group, int32_t row_begin,
           int32_t row_end, int32_t col_begin, int32_t col_end) {
    if (!whole_) return;
    whole_ = false;
    Missing(s, group, row_begin, row_end, col_begin, col_end);
  }

  void Missing(const SpaceDesc& s, int32_t group, int32_t row_begin,
               int32_t row_end, int32_t col_begin, int32_t col_end) {
    const RegionDesc region = {s.buffer, s.view,    s.rank,  group, row_begin,
                               row_end,  col_begin, col_end, 0};
    c_->Refuse(kOnceRule, -1, -1, -1, &region, "once: no task writes %s",
               RegionText(region).s);
  }

  Context* const c_;
  const ImageView& v_;
  const Spaces& spaces_;
  std::map<int32_t, Front> front_;  // first column -> front
  bool whole_ = true;
};

}  // namespace

void ProveOnce(Context* context, const Spaces& spaces) {
  OnceRule(context, spaces).Run();
}

}  // namespace hpmoe::proofs
