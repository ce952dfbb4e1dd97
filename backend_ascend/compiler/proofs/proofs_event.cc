#include <algorithm>
#include <cinttypes>
#include <vector>

#include "backend_ascend/compiler/proofs/proofs_rules.h"

namespace hpmoe::proofs {
namespace {

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
      if (t.rank != v_.events[w.event].rank) ForeignWait(i, w);
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

  void ForeignWait(int64_t task, const WaitDesc& w) {
    const RegionDesc region = c_->Partition(w.event);
    c_->Refuse(kEventRule, task, -1, w.event, &region,
               "event: %s waits for event %d, %s: expected a counter of its "
               "own rank, got one of rank %d",
               TaskText(*c_, task).s, w.event, RegionText(region).s,
               v_.events[w.event].rank);
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

}  // namespace

void ProveEvents(Context* context) { EventRule(context).Run(); }

}  // namespace hpmoe::proofs
