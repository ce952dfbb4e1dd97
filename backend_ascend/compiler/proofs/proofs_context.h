// What the rules share: the view, where tasks and events stand, the report.

#ifndef BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_CONTEXT_H_
#define BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_CONTEXT_H_

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <unordered_map>
#include <vector>

#include "backend_ascend/compiler/proofs/proof_result.h"
#include "backend_ascend/host/load/image_loader.h"

namespace hpmoe::proofs {

// A slice of a side table.
template <typename T>
struct Span {
  const T* first;
  const T* last;
  const T* begin() const { return first; }
  const T* end() const { return last; }
};

// The events of one (buffer, rank, group): partitions 0, 1, ... in a run.
struct Family {
  int32_t first;  // event of partition 0
  int32_t count;
  int32_t rank;
  int32_t group;
  int32_t part_rows;
  uint16_t buffer;
  uint16_t mode;
  bool whole;        // partitions cover all rows, once
  int64_t rows;      // of the group
  int32_t counters;  // tasks that signal it per row

  int64_t RowsOf(int32_t part) const {
    return std::min<int64_t>(part_rows, rows - int64_t{part} * part_rows);
  }
};

inline uint64_t Key(uint16_t buffer, int32_t rank, int32_t group) {
  // The loader keeps rank + 1 under 2^21 and group under 2^31.
  return (uint64_t{buffer} << 56) | (uint64_t(rank + 1) << 32) |
         static_cast<uint32_t>(group);
}

inline bool IsEmpty(const RegionDesc& r) {
  return r.row_begin == r.row_end || r.col_begin == r.col_end;
}

inline bool Contains(const RegionDesc& outer, const RegionDesc& inner) {
  return outer.buffer == inner.buffer && outer.view == inner.view &&
         outer.rank == inner.rank && outer.group == inner.group &&
         outer.row_begin <= inner.row_begin && inner.row_end <= outer.row_end &&
         outer.col_begin <= inner.col_begin && inner.col_end <= outer.col_end;
}

// What the rules share: the view, where tasks and events stand, the report.
class Context {
 public:
  Context(const ImageView& view, int max_violations)
      : v(view), max_violations_(max_violations) {
    IndexQueues();
    IndexEvents();
    IndexSignals();
  }

  Span<WaitDesc> Waits(const TaskDesc& t) const {
    const WaitDesc* p = v.waits + t.wait_begin;
    return {p, p + t.wait_count};
  }
  Span<SignalDesc> Signals(const TaskDesc& t) const {
    const SignalDesc* p = v.signals + t.signal_begin;
    return {p, p + t.signal_count};
  }
  Span<RegionDesc> Reads(const TaskDesc& t) const {
    const RegionDesc* p = v.regions + t.region_begin;
    return {p, p + t.read_count};
  }
  Span<RegionDesc> Writes(const TaskDesc& t) const {
    const RegionDesc* p = v.regions + t.region_begin + t.read_count;
    return {p, p + t.write_count};
  }
  Span<uint32_t> QueueTasks(int32_t queue) const {
    const uint32_t* p = v.queue_tasks + v.queues[queue].begin;
    return {p, p + v.queues[queue].count};
  }

  const Family* Find(uint16_t buffer, int32_t rank, int32_t group) const {
    const auto found = family_at_.find(Key(buffer, rank, group));
    return found == family_at_.end() ? nullptr : &families[found->second];
  }
  const Family& FamilyOf(int32_t event) const {
    return families[family_of[event]];
  }

  // Whether a signal counts rows over all partitions of one group.
  bool CountsRows(const SignalDesc& s) const {
    if (s.amount != kPerRow) return false;
    const Family& f = FamilyOf(s.event);
    return f.whole && f.mode == kCountRows && s.event == f.first &&
           s.span == f.count;
  }

  // Of the tasks that write a buffer.
  Form FormOf(uint16_t buffer) const { return BufferForm(*v.header, buffer); }

  // Inputs are written before the launch.
  bool IsInput(uint16_t buffer) const {
    return PassUse(*v.header, buffer) == Use::kInput;
  }

  // Calls f(family, first event, last event) for all partitions in which rows
  // of a write may land: a put may land anywhere in its row-view group.
  template <class F>
  void ForEachLanding(const RegionDesc& r, F f) const {
    if (IsEmpty(r)) return;
    const auto all = [&](const Family* family) {
      if (family == nullptr) return;
      f(*family, family->first, family->first + family->count - 1);
    };
    if (r.view == kRows) {
      const Family* family = Find(r.buffer, r.rank, r.group);
      if (family == nullptr) return;
      f(*family, family->first + r.row_begin / family->part_rows,
        family->first + (r.row_end - 1) / family->part_rows);
    } else if (FormOf(r.buffer) == Form::kSlicePut) {
      all(Find(r.buffer, r.rank, r.group / v.header->num_ranks));
    } else if (FormOf(r.buffer) == Form::kRelayTile) {
      // Its own expert is the lowest that a relayed row goes to.
      for (int32_t g = r.group; g < LocalExperts(*v.header); ++g) {
        all(Find(r.buffer, r.rank, g));
      }
    } else if (r.rank == kAnyRank) {
      for (const int32_t family : homes) all(&families[family]);
    } else {
      all(Find(r.buffer, r.rank, 0));
    }
  }

  // Tasks that signal `event` or, per row, its whole family.
  Span<int32_t> Signallers(int32_t event) const {
    const Family& f = FamilyOf(event);
    const int32_t key = f.mode == kCountRows ? f.first : event;
    const int32_t* p = signallers_.data();
    return {p + signallers_begin_[key], p + signallers_begin_[key + 1]};
  }

  int64_t AnySignaller(int32_t event) const {
    const auto tasks = Signallers(event);
    return tasks.begin() == tasks.end() ? -1 : *tasks.begin();
  }

  // Scans: for reports only.
  int64_t AnyWaiter(int32_t event) const {
    for (int64_t i = 0; i < v.num_tasks; ++i) {
      for (const WaitDesc& w : Waits(v.tasks[i])) {
        if (w.event == event) return i;
      }
    }
    return -1;
  }

  RegionDesc Partition(int32_t event) const {
    const EventDesc& e = v.events[event];
    const Extent x = ExtentOf(*v.header, e.buffer, kRows);
    const int64_t begin = int64_t{e.part} * e.part_rows;
    const int64_t end = std::min(begin + e.part_rows, x.rows);
    return {e.buffer,
            kRows,
            e.rank,
            e.group,
            static_cast<int32_t>(begin),
            static_cast<int32_t>(end),
            0,
            static_cast<int32_t>(x.cols),
            0};
  }

  // True while the rule may still report.
  bool Open(Rule rule) const { return result.refused[rule] < max_violations_; }

  __attribute__((format(printf, 7, 8))) void Refuse(Rule rule, int64_t task_a,
                                                    int64_t task_b,
                                                    int64_t event,
                                                    const RegionDesc* region,
                                                    const char* format, ...) {
    if (result.refused[rule]++ >= max_violations_) return;
    Violation out = {};
    out.rule = rule;
    out.task_a = task_a;
    out.task_b = task_b;
    out.event = event;
    out.has_region = region != nullptr;
    if (region != nullptr) out.region = *region;
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(out.text, sizeof(out.text), format, arguments);
    va_end(arguments);
    result.violations.push_back(out);
  }

  const ImageView& v;
  std::vector<int32_t> queue_of;     // task -> queue
  std::vector<int32_t> position_of;  // task -> position in its queue
  std::vector<Family> families;
  std::vector<int32_t> family_of;  // event -> family
  // Families of the one buffer that puts home fill: `returned`, d_returned.
  std::vector<int32_t> homes;
  ProofResult result = {};

 private:
  void IndexQueues() {
    queue_of.resize(v.num_tasks);
    position_of.resize(v.num_tasks);
    for (int32_t q = 0; q < v.num_queues; ++q) {
      int32_t position = 0;
      for (const uint32_t task : QueueTasks(q)) {
        queue_of[task] = q;
        position_of[task] = position++;
      }
    }
  }

  void IndexEvents() {
    family_of.resize(v.num_events);
    for (int32_t e = 0; e < v.num_events; ++e) {
      const EventDesc& d = v.events[e];
      if (families.empty() || !Continues(families.back(), d)) {
        const Extent x = ExtentOf(*v.header, d.buffer, kRows);
        families.push_back({e, 0, d.rank, d.group, d.part_rows, d.buffer,
                            d.mode, d.part == 0, x.rows, 0});
      }
      ++families.back().count;
      family_of[e] = static_cast<int32_t>(families.size()) - 1;
    }
    family_at_.reserve(families.size());
    for (size_t i = 0; i < families.size(); ++i) {
      Family& f = families[i];
      f.whole = f.whole && int64_t{f.count} * f.part_rows >= f.rows;
      if (!f.whole) continue;
      f.whole = family_at_.emplace(Key(f.buffer, f.rank, f.group), i).second;
      const bool home = FormOf(f.buffer) == Form::kHomePut;
      if (f.whole && home) homes.push_back(static_cast<int32_t>(i));
    }
  }

  static bool Continues(const Family& f, const EventDesc& d) {
    return f.whole && f.buffer == d.buffer && f.rank == d.rank &&
           f.group == d.group && f.part_rows == d.part_rows &&
           f.mode == d.mode && f.count == d.part;
  }

  void IndexSignals() {
    signallers_begin_.assign(v.num_events + 1, 0);
    ForEachSignal([&](int32_t, const SignalDesc& s) {
      ++signallers_begin_[s.event + 1];
      if (CountsRows(s)) ++families[family_of[s.event]].counters;
    });
    for (int32_t e = 0; e < v.num_events; ++e) {
      signallers_begin_[e + 1] += signallers_begin_[e];
    }
    signallers_.resize(signallers_begin_.back());
    std::vector<int64_t> next(signallers_begin_.begin(),
                              signallers_begin_.end() - 1);
    ForEachSignal([&](int32_t task, const SignalDesc& s) {
      signallers_[next[s.event]++] = task;
    });
  }

  template <class F>
  void ForEachSignal(F f) const {
    for (int32_t i = 0; i < v.num_tasks; ++i) {
      for (const SignalDesc& s : Signals(v.tasks[i])) f(i, s);
    }
  }

  const int max_violations_;
  std::unordered_map<uint64_t, int32_t> family_at_;
  std::vector<int64_t> signallers_begin_;
  std::vector<int32_t> signallers_;
};

// Names for reports.

struct Text {
  char s[128];
};

Text TaskText(const Context& c, int64_t task);
Text RegionText(const RegionDesc& region);

}  // namespace hpmoe::proofs

#endif  // BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_CONTEXT_H_
