#include <algorithm>
#include <cinttypes>
#include <vector>

#include "backend_ascend/compiler/proofs/proofs_rules.h"
#include "backend_ascend/image/put_law.h"

namespace hpmoe::proofs {
namespace {

// All that happens before one task: a vector clock, computed backwards.
// Moving down a queue extends it, so a queue costs each ancestor once.
class Ancestors {
 public:
  explicit Ancestors(const Context& context)
      : c_(context),
        clock_(context.v.num_queues, 0),
        expanded_(context.v.num_queues, 0),
        waited_(context.v.num_events, 0) {}

  void MoveTo(int32_t task) {
    const int32_t queue = c_.queue_of[task];
    if (queue != queue_) Reset(queue);
    Cover(queue, c_.position_of[task]);
    Expand(task);
    while (!pending_.empty()) {
      const int32_t q = pending_.back();
      pending_.pop_back();
      const uint32_t* tasks = c_.QueueTasks(q).begin();
      while (expanded_[q] < clock_[q]) Expand(tasks[expanded_[q]++]);
    }
  }

  // Whether the task, or one that happens before it, waits for the event.
  bool Waited(int32_t event) const { return waited_[event] != 0; }

  // Whether all that the task writes is there.  An event that counts rows may
  // be met without its other rows.
  bool Done(int32_t task) const {
    const TaskDesc& t = c_.v.tasks[task];
    return IsComplete(
        IsPut(FormOf(t)), c_.position_of[task] < clock_[c_.queue_of[task]],
        c_.Signals(t), [&](const SignalDesc& s) {
          return c_.v.events[s.event].mode != kCountRows && Waited(s.event);
        });
  }

 private:
  void Reset(int32_t queue) {
    queue_ = queue;
    std::fill(clock_.begin(), clock_.end(), 0);
    std::fill(expanded_.begin(), expanded_.end(), 0);
    for (const int32_t event : touched_) waited_[event] = 0;
    touched_.clear();
  }

  void Cover(int32_t queue, int32_t count) {
    if (count <= clock_[queue]) return;
    clock_[queue] = count;
    pending_.push_back(queue);
  }

  void Expand(int32_t task) {
    for (const WaitDesc& w : c_.Waits(c_.v.tasks[task])) {
      if (waited_[w.event] != 0) continue;
      waited_[w.event] = 1;
      touched_.push_back(w.event);
      // A row event is met by the rows that landed, not by all who may send.
      if (c_.v.events[w.event].mode == kCountRows) continue;
      for (const int32_t s : c_.Signallers(w.event)) {
        Cover(c_.queue_of[s], c_.position_of[s] + 1);
      }
    }
  }

  const Context& c_;
  int32_t queue_ = -1;
  std::vector<int32_t> clock_;     // queue -> tasks known to be done, or sent
  std::vector<int32_t> expanded_;  // queue -> of those, waits followed
  std::vector<uint8_t> waited_;
  std::vector<int32_t> touched_;
  std::vector<int32_t> pending_;
};

// order: reads come after the writes that they overlap.
class OrderRule {
 public:
  OrderRule(Context* context, const Spaces& spaces)
      : c_(context),
        v_(context->v),
        spaces_(spaces),
        ancestors_(*context),
        waited_by_(v_.num_events, -1) {}

  void Run() {
    for (int32_t q = 0; q < v_.num_queues; ++q) {
      for (const uint32_t task : c_->QueueTasks(q)) CheckTask(task);
    }
  }

 private:
  void CheckTask(int32_t task) {
    const TaskDesc& t = v_.tasks[task];
    for (const WaitDesc& w : c_->Waits(t)) waited_by_[w.event] = task;
    for (const RegionDesc& read : c_->Reads(t)) {
      if (c_->IsInput(read.buffer) || IsEmpty(read)) continue;
      if (!c_->Open(kOrderRule)) return;
      CheckRead(task, read);
    }
  }

  void CheckRead(int32_t task, const RegionDesc& read) {
    const Family* f = read.view == kRows
                          ? c_->Find(read.buffer, read.rank, read.group)
                          : nullptr;
    if (f == nullptr) {
      ++c_->result.checked[kOrderRule];
      return CheckWriters(task, read, -1);
    }
    const int32_t last = (read.row_end - 1) / f->part_rows;
    for (int32_t p = read.row_begin / f->part_rows; p <= last; ++p) {
      ++c_->result.checked[kOrderRule];
      if (waited_by_[f->first + p] == task) continue;
      RegionDesc part = read;
      const int64_t begin = int64_t{p} * f->part_rows;
      part.row_begin = std::max<int64_t>(read.row_begin, begin);
      part.row_end = std::min<int64_t>(read.row_end, begin + f->part_rows);
      CheckWriters(task, part, f->first + p);
    }
  }

  // The slow path: somebody earlier waited, or the writer was done before.
  void CheckWriters(int32_t task, const RegionDesc& read, int32_t event) {
    if (!c_->Open(kOrderRule)) return;
    ancestors_.MoveTo(task);
    if (event >= 0 && ancestors_.Waited(event)) return;
    const int32_t space = spaces_.Holding(read.buffer, read.rank);
    if (read.view != kRows || space < 0) {
      return Race(-1, task, event, read);
    }
    const bool rows = v_.spaces[space].view == kRows;
    for (const Box& box : Writers(space, read)) {
      if (box.col_begin >= read.col_end || read.col_begin >= box.col_end) {
        continue;
      }
      if (rows &&
          (box.row_begin >= read.row_end || read.row_begin >= box.row_end)) {
        continue;
      }
      if (ancestors_.Done(box.task)) continue;
      return Race(box.task, task, event, Common(read, box, rows));
    }
  }

  Span<Box> Writers(int32_t space, const RegionDesc& read) const {
    const int64_t ranks = v_.header->num_ranks, group = read.group;
    if (v_.spaces[space].view == kRows) {
      return spaces_.Groups(space, group, group + 1);
    }
    const Form form = c_->FormOf(read.buffer);
    if (form == Form::kSlicePut) {
      return spaces_.Groups(space, group * ranks, (group + 1) * ranks);
    }
    if (form == Form::kRelayTile) return spaces_.Groups(space, 0, group + 1);
    return spaces_.Groups(space, 0, v_.spaces[space].groups);
  }

  static RegionDesc Common(const RegionDesc& read, const Box& box, bool rows) {
    RegionDesc r = read;
    r.col_begin = std::max(r.col_begin, box.col_begin);
    r.col_end = std::min(r.col_end, box.col_end);
    if (rows) {
      r.row_begin = std::max(r.row_begin, box.row_begin);
      r.row_end = std::min(r.row_end, box.row_end);
    }
    return r;
  }

  void Race(int32_t writer, int32_t reader, int32_t event,
            const RegionDesc& region) {
    c_->Refuse(kOrderRule, writer, reader, event, &region,
               "order: %s writes %s (event %d) and nothing makes %s, which "
               "reads it, run later",
               TaskText(*c_, writer).s, RegionText(region).s, event,
               TaskText(*c_, reader).s);
  }

  Context* const c_;
  const ImageView& v_;
  const Spaces& spaces_;
  Ancestors ancestors_;
  std::vector<int32_t> waited_by_;  // event -> last task seen to wait for it
};

}  // namespace

void ProveOrder(Context* context, const Spaces& spaces) {
  OrderRule(context, spaces).Run();
}

}  // namespace hpmoe::proofs
