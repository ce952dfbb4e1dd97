#include "backend_ascend/taskflow/proofs.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_map>

namespace hpmoe {
namespace {

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

uint64_t Key(uint16_t buffer, int32_t rank, int32_t group) {
  // The loader keeps rank + 1 under 2^21 and group under 2^31.
  return (uint64_t{buffer} << 56) | (uint64_t(rank + 1) << 32) |
         static_cast<uint32_t>(group);
}

bool IsEmpty(const RegionDesc& r) {
  return r.row_begin == r.row_end || r.col_begin == r.col_end;
}

bool Contains(const RegionDesc& outer, const RegionDesc& inner) {
  return outer.buffer == inner.buffer && outer.view == inner.view &&
         outer.rank == inner.rank && outer.group == inner.group &&
         outer.row_begin <= inner.row_begin && inner.row_end <= outer.row_end &&
         outer.col_begin <= inner.col_begin && inner.col_end <= outer.col_end;
}

bool IsInput(uint16_t buffer) { return buffer < kExpertIn; }

uint16_t UnitOfKind(uint16_t kind) {
  return kind == kGateUp || kind == kDown ? kAic : kAiv;
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
    } else if (r.buffer == kExpertIn) {
      all(Find(kExpertIn, r.rank, r.group / v.header->num_ranks));
    } else if (r.rank == kAnyRank) {
      for (const int32_t family : returned) all(&families[family]);
    } else {
      all(Find(kReturned, r.rank, 0));
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
  std::vector<int32_t> returned;   // families of the buffer `returned`
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
      if (f.whole && f.buffer == kReturned) returned.push_back(i);
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

__attribute__((format(printf, 1, 2))) Text Format(const char* format, ...) {
  Text text;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.s, sizeof(text.s), format, arguments);
  va_end(arguments);
  return text;
}

Text TaskText(const Context& c, int64_t task) {
  if (task < 0) return Format("no task");
  const TaskDesc& t = c.v.tasks[task];
  return Format("%s(rank %d, expert %d, row block %d, col block %d, %s %d)",
                KindName(t.kind), t.rank, t.expert, t.row_block, t.col_block,
                UnitName(c.v.queues[c.queue_of[task]].unit), t.core);
}

Text RegionText(const RegionDesc& r) {
  return Format("%s%s(rank %d, group %d, rows %d:%d, cols %d:%d)",
                BufferName(r.buffer), r.view == kSender ? " as sent" : "",
                r.rank, r.group, r.row_begin, r.row_end, r.col_begin,
                r.col_end);
}

// unit: a core can run what its queue holds.
void ProveUnits(Context* c) {
  for (int32_t q = 0; q < c->v.num_queues; ++q) {
    const uint16_t unit = c->v.queues[q].unit;
    for (const uint32_t task : c->QueueTasks(q)) {
      const TaskDesc& t = c->v.tasks[task];
      ++c->result.checked[kUnitRule];
      const uint16_t wanted = UnitOfKind(t.kind);
      if (t.unit == wanted && unit == wanted) continue;
      const RegionDesc* write = c->Writes(t).begin();
      c->Refuse(kUnitRule, task, -1, -1, t.write_count > 0 ? write : nullptr,
                "unit: %s: expected an %s task on an %s queue, got an %s task "
                "on an %s queue",
                TaskText(*c, task).s, UnitName(wanted), UnitName(wanted),
                UnitName(t.unit), UnitName(unit));
    }
  }
}

// What a kind of task touches in buffers that tasks write.
struct Touched {
  RegionDesc write;
  RegionDesc reads[2];
  int num_reads;
};

Touched TouchedBy(const ImageHeader& h, const TaskDesc& t) {
  const int32_t local = h.num_experts / h.num_ranks;
  const int32_t group = t.kind == kCombine ? 0 : t.expert % local;
  const int32_t d = h.d_model, f = h.d_ff;
  const auto rows = [&](uint16_t buffer, int32_t r0, int32_t r1, int32_t c0,
                        int32_t c1) {
    return RegionDesc{buffer, kRows, t.rank, group, r0, r1, c0, c1, 0};
  };
  const auto tile = [&](uint16_t buffer, int32_t c0, int32_t c1) {
    return rows(buffer, t.row_begin, t.row_end, c0, c1);
  };
  const auto sent = [&](uint16_t buffer, int32_t rank, int32_t sender,
                        int32_t cols) {
    return RegionDesc{buffer,    kSender, rank, sender, t.row_begin,
                      t.row_end, 0,       cols, 0};
  };
  switch (t.kind) {
    case kDispatch:
      return {
          sent(kExpertIn, t.peer, group * h.num_ranks + t.rank, d + 1), {}, 0};
    case kGateUp:
      return {tile(kGateUpBuffer, t.col_begin, t.col_end),
              {tile(kExpertIn, 0, d)},
              1};
    case kSwiglu: {
      // One box spans gate and up columns; reading all is at least that.
      Touched touched = {tile(kActivation, t.col_begin, t.col_end),
                         {tile(kGateUpBuffer, t.col_begin, f + t.col_end),
                          tile(kExpertIn, d, d + 1)},
                         h.placement == kBeforeDown ? 2 : 1};
      return touched;
    }
    case kDown:
      return {tile(kExpertOut, t.col_begin, t.col_end),
              {tile(kActivation, 0, f)},
              1};
    case kReturn: {
      // Where a slice lies among the expert's rows is known at launch only.
      const bool slice = t.peer != kRowBlockRange;
      const int32_t r0 = slice ? 0 : t.row_begin;
      const int32_t r1 = slice ? h.expert_capacity : t.row_end;
      return {
          sent(kReturned, slice ? t.peer : kAnyRank, t.expert, d),
          {rows(kExpertOut, r0, r1, 0, d), rows(kExpertIn, r0, r1, d, d + 1)},
          2};
    }
    default:  // kCombine
      return {tile(kY, t.col_begin, t.col_end),
              {rows(kReturned, t.row_begin * h.top_k, t.row_end * h.top_k,
                    t.col_begin, t.col_end)},
              1};
  }
}

// regions: tasks declare what their kind and tile touch.
void ProveRegions(Context* c) {
  for (int64_t i = 0; i < c->v.num_tasks; ++i) {
    const TaskDesc& t = c->v.tasks[i];
    ++c->result.checked[kRegionsRule];
    const Touched touched = TouchedBy(*c->v.header, t);
    const auto writes = c->Writes(t);
    if (t.write_count != 1 ||
        std::memcmp(writes.begin(), &touched.write, sizeof(RegionDesc)) != 0) {
      c->Refuse(kRegionsRule, i, -1, -1, &touched.write,
                "regions: %s writes %s, which its %d write regions do not say",
                TaskText(*c, i).s, RegionText(touched.write).s, t.write_count);
    }
    for (int k = 0; k < touched.num_reads; ++k) {
      const RegionDesc& need = touched.reads[k];
      const auto reads = c->Reads(t);
      const auto has = [&](const RegionDesc& r) { return Contains(r, need); };
      if (IsEmpty(need) || std::any_of(reads.begin(), reads.end(), has)) {
        continue;
      }
      c->Refuse(kRegionsRule, i, -1, -1, &need,
                "regions: %s reads %s, which its read regions do not say",
                TaskText(*c, i).s, RegionText(need).s);
    }
  }
}

// progress: runs all queues with every event as late as its signals allow.
class Simulation {
 public:
  explicit Simulation(Context* context)
      : c_(context),
        v_(context->v),
        head_(v_.num_queues, 0),
        counter_(v_.num_events, 0),
        needed_(v_.num_events, kNever),
        first_blocked_(v_.num_events, -1),
        next_blocked_(v_.num_queues, -1) {
    for (const Family& f : c_->families) left_.push_back(f.counters);
  }

  void Run() {
    for (int32_t q = v_.num_queues - 1; q >= 0; --q) ready_.push_back(q);
    while (!ready_.empty()) {
      const int32_t queue = ready_.back();
      ready_.pop_back();
      Advance(queue);
    }
    c_->result.checked[kProgressRule] = ran_;
    if (ran_ < v_.num_tasks) Diagnose();
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  void Advance(int32_t queue) {
    const uint32_t* tasks = c_->QueueTasks(queue).begin();
    while (!Finished(queue)) {
      const TaskDesc& t = v_.tasks[tasks[head_[queue]]];
      const WaitDesc* unmet = Unmet(t);
      if (unmet != nullptr) {
        next_blocked_[queue] = first_blocked_[unmet->event];
        first_blocked_[unmet->event] = queue;
        int64_t& needed = needed_[unmet->event];
        needed = std::min<int64_t>(needed, unmet->threshold);
        return;
      }
      ++head_[queue];
      ++ran_;
      for (const SignalDesc& s : c_->Signals(t)) Signal(s);
    }
  }

  const WaitDesc* Unmet(const TaskDesc& t) const {
    for (const WaitDesc& w : c_->Waits(t)) {
      if (counter_[w.event] < w.threshold) return &w;
    }
    return nullptr;
  }

  void Signal(const SignalDesc& s) {
    if (s.amount != kPerRow) return Add(s.event, s.amount);
    if (!c_->CountsRows(s)) return;  // `event` refuses it
    const int32_t index = c_->family_of[s.event];
    if (--left_[index] > 0) return;
    const Family& f = c_->families[index];
    for (int32_t p = 0; p < f.count; ++p) Add(f.first + p, f.RowsOf(p));
  }

  void Add(int32_t event, int64_t amount) {
    counter_[event] += amount;
    if (counter_[event] < needed_[event]) return;
    needed_[event] = kNever;
    for (int32_t q = first_blocked_[event]; q >= 0; q = next_blocked_[q]) {
      ready_.push_back(q);
    }
    first_blocked_[event] = -1;
  }

  bool Finished(int32_t queue) const {
    return head_[queue] == static_cast<int64_t>(v_.queues[queue].count);
  }
  int32_t Head(int32_t queue) const {
    return c_->QueueTasks(queue).begin()[head_[queue]];
  }

  // All that the signals of an event can ever add up to.
  int64_t Available(int32_t event) const {
    const Family& f = c_->FamilyOf(event);
    int64_t sum = f.counters > 0 ? f.RowsOf(event - f.first) : 0;
    for (const int32_t task : c_->Signallers(event)) {
      for (const SignalDesc& s : c_->Signals(v_.tasks[task])) {
        if (s.event == event && s.amount != kPerRow) sum += s.amount;
      }
    }
    return sum;
  }

  // A task that signals `event` and has not run, or -1.
  int32_t PendingSignaller(int32_t event) const {
    for (const int32_t task : c_->Signallers(event)) {
      if (c_->position_of[task] >= head_[c_->queue_of[task]]) return task;
    }
    return -1;
  }

  // Every blocked head waits for one event; some task that signals it stands
  // in a queue whose head is blocked too, or nobody is left to signal.  So the
  // walk from any head ends in an unreachable threshold or in a cycle.
  void Diagnose() {
    std::vector<int32_t> walk_of(v_.num_queues, -1);
    for (int32_t start = 0; start < v_.num_queues; ++start) {
      int32_t queue = start;
      while (!Finished(queue) && walk_of[queue] < 0) {
        if (!c_->Open(kProgressRule)) return;
        walk_of[queue] = start;
        const int32_t task = Head(queue);
        const WaitDesc& w = *Unmet(v_.tasks[task]);
        const int64_t available = Available(w.event);
        const int32_t signaller = PendingSignaller(w.event);
        if (available < w.threshold || signaller < 0) {
          Unreachable(task, w, available);
          break;
        }
        queue = c_->queue_of[signaller];
        if (walk_of[queue] == start) Cycle(task, w, signaller);
      }
    }
  }

  void Unreachable(int32_t task, const WaitDesc& w, int64_t available) {
    const RegionDesc region = c_->Partition(w.event);
    const int64_t signaller = c_->AnySignaller(w.event);
    c_->Refuse(kProgressRule, task, signaller, w.event, &region,
               "progress: unreachable threshold: %s waits for event %d, %s: "
               "expected %d, all signals add up to %" PRId64 " (one from %s)",
               TaskText(*c_, task).s, w.event, RegionText(region).s,
               w.threshold, available, TaskText(*c_, signaller).s);
  }

  void Cycle(int32_t task, const WaitDesc& w, int32_t signaller) {
    const RegionDesc region = c_->Partition(w.event);
    const int32_t head = Head(c_->queue_of[signaller]);
    const int32_t other = head == task ? signaller : head;
    c_->Refuse(kProgressRule, task, other, w.event, &region,
               "progress: cycle: %s waits for event %d, %s, whose signaller "
               "task %d cannot run before %s",
               TaskText(*c_, task).s, w.event, RegionText(region).s, signaller,
               other == signaller ? "it" : TaskText(*c_, other).s);
  }

  Context* const c_;
  const ImageView& v_;
  std::vector<int64_t> head_;     // queue -> position of its next task
  std::vector<int64_t> counter_;  // event -> value
  std::vector<int64_t> needed_;   // event -> least threshold blocked on it
  std::vector<int32_t> first_blocked_;  // event -> queue, a linked list
  std::vector<int32_t> next_blocked_;   // queue -> queue
  std::vector<int32_t> left_;           // family -> tasks yet to count rows
  std::vector<int32_t> ready_;
  int64_t ran_ = 0;
};

// event: a met wait means that its whole partition is written.
class EventRule {
 public:
  explicit EventRule(Context* context)
      : c_(context), v_(context->v), sum_(v_.num_events, 0) {}

  void Run() {
    c_->result.checked[kEventRule] = v_.num_events;
    for (const Family& f : c_->families) CheckFamily(f);
    for (int64_t i = 0; i < v_.num_tasks; ++i) CheckTask(i);
    for (int32_t e = 0; e < v_.num_events; ++e) CheckThreshold(e);
  }

 private:
  void CheckFamily(const Family& f) {
    if (f.whole) return;
    const RegionDesc region = c_->Partition(f.first);
    c_->Refuse(kEventRule, -1, -1, f.first, &region,
               "event: events %d..%d: expected the partitions 0, 1, ... of "
               "%s, all rows, in one run and once",
               f.first, f.first + f.count - 1, RegionText(region).s);
  }

  void CheckTask(int64_t i) {
    const TaskDesc& t = v_.tasks[i];
    for (const WaitDesc& w : c_->Waits(t)) {
      if (w.threshold != v_.events[w.event].threshold) WrongWait(i, w);
    }
    signals_.assign(c_->Signals(t).begin(), c_->Signals(t).end());
    const auto by_event = [](const SignalDesc& a, const SignalDesc& b) {
      return a.event < b.event;
    };
    if (!std::is_sorted(signals_.begin(), signals_.end(), by_event)) {
      std::stable_sort(signals_.begin(), signals_.end(), by_event);
    }
    int64_t end = 0;
    for (const SignalDesc& s : signals_) {
      if (s.event < end) {
        WrongSignal(i, s, "expected each event once per task, got it twice");
      }
      end = int64_t{s.event} + s.span;
      CheckSignal(i, s);
    }
    for (const RegionDesc& write : c_->Writes(t)) {
      c_->ForEachLanding(write, [&](const Family&, int32_t lo, int32_t hi) {
        const int32_t missed = FirstMissed(lo, hi);
        if (missed <= hi) MissingSignal(i, missed, write);
      });
    }
  }

  void CheckSignal(int64_t i, const SignalDesc& s) {
    const EventDesc& e = v_.events[s.event];
    if (s.rank != e.rank) {
      WrongSignal(i, s, "expected the rank of the event, got another");
    }
    if ((s.amount == kPerRow) != (e.mode == kCountRows)) {
      WrongSignal(i, s,
                  "expected an amount in the event's mode (tasks or "
                  "rows), got the other");
    } else if (s.amount != kPerRow) {
      sum_[s.event] += s.amount;
    } else if (!c_->CountsRows(s)) {
      WrongSignal(i, s,
                  "expected a row signal over all partitions of the "
                  "group, got some");
    } else if (!SendsRowsTo(v_.tasks[i], c_->FamilyOf(s.event))) {
      WrongSignal(i, s,
                  "expected the rows that the task sends, full width, "
                  "to land there, got others");
    }
  }

  // Whether the rows that a task counts are those of its one write, each of
  // them once, and may land in the family.
  bool SendsRowsTo(const TaskDesc& t, const Family& f) const {
    if (t.write_count != 1) return false;
    const RegionDesc& w = *c_->Writes(t).begin();
    bool lands = false;
    c_->ForEachLanding(w, [&](const Family& family, int32_t, int32_t) {
      lands = lands || &family == &f;
    });
    const Extent x = ExtentOf(*v_.header, w.buffer, w.view);
    return lands && w.view == kSender && w.row_begin == t.row_begin &&
           w.row_end == t.row_end && w.col_begin == 0 && w.col_end == x.cols;
  }

  // The first event of [lo, hi] that signals_ leave out, or hi + 1.
  int32_t FirstMissed(int32_t lo, int32_t hi) const {
    auto next = std::upper_bound(
        signals_.begin(), signals_.end(), lo,
        [](int32_t event, const SignalDesc& s) { return event < s.event; });
    if (next == signals_.begin()) return lo;
    int64_t event = lo;
    for (--next; next != signals_.end() && next->event <= event; ++next) {
      event = std::max(event, int64_t{next->event} + next->span);
      if (event > hi) return hi + 1;
    }
    return static_cast<int32_t>(event);
  }

  void CheckThreshold(int32_t event) {
    const EventDesc& e = v_.events[event];
    const Family& f = c_->FamilyOf(event);
    const bool rows = e.mode == kCountRows;
    if (!f.whole) return;
    const int64_t expected = rows ? f.RowsOf(e.part) : sum_[event];
    if (e.threshold == expected) return;
    const RegionDesc region = c_->Partition(event);
    const int64_t waiter = c_->AnyWaiter(event);
    const int64_t signaller = c_->AnySignaller(event);
    c_->Refuse(kEventRule, waiter, signaller, event, &region,
               "event: event %d, %s: threshold: expected %" PRId64
               " (%s), "
               "got %d; %s waits, %s signals",
               event, RegionText(region).s, expected,
               rows ? "rows of the partition" : "sum of its signals",
               e.threshold, TaskText(*c_, waiter).s,
               TaskText(*c_, signaller).s);
  }

  void WrongWait(int64_t task, const WaitDesc& w) {
    const RegionDesc region = c_->Partition(w.event);
    const int64_t signaller = c_->AnySignaller(w.event);
    c_->Refuse(kEventRule, task, signaller, w.event, &region,
               "event: %s waits for event %d, %s: threshold: expected the "
               "event's %d, got %d; %s signals",
               TaskText(*c_, task).s, w.event, RegionText(region).s,
               v_.events[w.event].threshold, w.threshold,
               TaskText(*c_, signaller).s);
  }

  void WrongSignal(int64_t task, const SignalDesc& s, const char* what) {
    if (!c_->Open(kEventRule)) return;
    const RegionDesc region = c_->Partition(s.event);
    const int64_t waiter = c_->AnyWaiter(s.event);
    c_->Refuse(kEventRule, task, waiter, s.event, &region,
               "event: %s signals event %d, %s: %s", TaskText(*c_, task).s,
               s.event, RegionText(region).s, what);
  }

  void MissingSignal(int64_t task, int32_t event, const RegionDesc& write) {
    if (!c_->Open(kEventRule)) return;
    const int64_t waiter = c_->AnyWaiter(event);
    c_->Refuse(kEventRule, task, waiter, event, &write,
               "event: %s writes %s and does not signal event %d: %s could "
               "pass before it has written",
               TaskText(*c_, task).s, RegionText(write).s, event,
               TaskText(*c_, waiter).s);
  }

  Context* const c_;
  const ImageView& v_;
  std::vector<int64_t> sum_;         // event -> sum of amounts
  std::vector<SignalDesc> signals_;  // of the task at hand, by event
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
    for (uint16_t buffer = kExpertIn; buffer < kNumBuffers; ++buffer) {
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

  bool Contains(int32_t task) const {
    return c_.position_of[task] < clock_[c_.queue_of[task]];
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
  std::vector<int32_t> clock_;     // queue -> tasks known to be done
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
      if (IsInput(read.buffer) || IsEmpty(read)) continue;
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

  // The slow path: somebody earlier waited, or was the writer.
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
      if (ancestors_.Contains(box.task)) continue;
      return Race(box.task, task, event, Common(read, box, rows));
    }
  }

  Span<Box> Writers(int32_t space, const RegionDesc& read) const {
    const int64_t ranks = v_.header->num_ranks, group = read.group;
    if (v_.spaces[space].view == kRows) {
      return spaces_.Groups(space, group, group + 1);
    }
    if (read.buffer == kExpertIn) {
      return spaces_.Groups(space, group * ranks, (group + 1) * ranks);
    }
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

const char* RuleName(int32_t rule) {
  constexpr const char* kNames[kNumRules] = {"unit",  "regions", "progress",
                                             "event", "once",    "order"};
  return rule >= 0 && rule < kNumRules ? kNames[rule] : "unknown";
}

ProofResult Prove(const ImageView& view, int max_violations) {
  Context context(view, max_violations);
  ProveUnits(&context);
  ProveRegions(&context);
  Simulation(&context).Run();
  EventRule(&context).Run();
  const Spaces spaces(context);
  OnceRule(&context, spaces).Run();
  OrderRule(&context, spaces).Run();
  return context.result;
}

}  // namespace hpmoe
