#include "backend_ascend/simulator/engine.h"

#include <algorithm>

#include "backend_ascend/host/load/worker_order.h"
#include "backend_ascend/image/rows.h"
#include "backend_ascend/image/worker.h"
#include "backend_ascend/simulator/contention.h"
#include "backend_ascend/simulator/core/event_core.h"
#include "backend_ascend/simulator/core/one_task.h"
#include "backend_ascend/simulator/core/server.h"
#include "backend_ascend/simulator/operators.h"
#include "backend_ascend/simulator/prices.h"

namespace hpmoe::sim {
namespace {

// Tasks of one worker before its thread looks at the others, as on the host.
constexpr int32_t kMaxRun = 16;

// Of a host: drives one worker at a time, whichever has a task ready.
struct Thread {
  int32_t next = 0;   // worker to look at, into the turns
  int32_t ran = 0;    // tasks of the worker that it drives
  bool done = false;  // it ran a long one: its worker's turn ends
  bool idle = false;
};

struct Worker {
  int32_t thread = kNobody;  // that drives it
  Cursor cursor;
  double seen = 0;         // s, the last event of its next task
  uint32_t pending = 0;    // demands that still flow
  double since = kNoTime;  // when it was blocked; kNoTime: it is not
  Server<OneTask> core;    // puts beside it take from an AIC's rate
  double own_end = 0;      // of the task that it runs
  int32_t beside = 0;      // puts that run on AIVs beside an AIC
  double fixed = 0;
  bool runs = false;
  bool puts = false;  // and takes from the AIC beside it
};

class Engine : private EventCore {
 public:
  Engine(const Launch& launch, const Figures& figures,
         const FabricTables& fabric, const Pricing& pricing,
         const SimOptions& options, TaskTime* times)
      : EventCore(launch.view->num_queues, launch.view->num_events,
                  launch.view->num_tasks),
        launch_(launch),
        view_(*launch.view),
        figures_(figures),
        fabric_(fabric),
        pricing_(pricing),
        options_(options),
        times_(times),
        costs_(launch, figures, fabric, pricing, figures.l2_bytes),
        contention_(figures, fabric, view_.header->num_ranks,
                    options.barriers ? figures.collective : 1, options.sharing),
        operators_(view_, pricing, options.barriers),
        workers_(view_.num_queues),
        threads_(static_cast<size_t>(figures.threads)),
        busy_(view_.num_queues, 0.0) {
    if (!threads_.empty()) {
      work_ = CountWork(view_, launch.plan);
      worker_order_ = OrderWorkers(view_, work_);
    }
    for (int q = 0; q < view_.num_queues; ++q) {
      const QueueDesc& queue = view_.queues[q];
      workers_[q].cursor = {operators_.tasks() + queue.begin, queue.count, 0,
                            0};
    }
  }

  Status Run(SimTotals* totals) {
    if (!options_.sharing) FindMisses();
    if (figures_.home_beside > 0) FindBeside();
    Open(0);
    if (threads_.empty()) {
      for (int q = 0; q < view_.num_queues; ++q) Resume(q);
    }
    for (size_t t = 0; t < threads_.size(); ++t) {
      Scan(static_cast<int32_t>(t));
    }
    Settle();
    RunEvents(Source{[&] { return contention_.next(); },
                     [&] {
                       Flowed();
                       Settle();
                     }},
              Source{[&] { return calendar_.next(); },
                     [&] {
                       TakeTimer();
                       Settle();
                     }});
    totals->total = total_;
    totals->busy = busy_;
    contention_.Report(&totals->hbm, &totals->l2, &totals->links);
    return Ended();
  }

  // What Fetch and Finish call.
  const TaskDesc& Task(uint32_t index) const { return view_.tasks[index]; }
  const WaitDesc& Wait(uint32_t index) const { return view_.waits[index]; }
  bool Reached(const WaitDesc& wait) {
    const Counter& event = counters_[wait.event];
    blocking_ = wait.event;
    if (event.count < wait.threshold) return false;
    seen_ = std::max(seen_, event.seen);
    return true;
  }
  void Signal(uint32_t index) {
    const TaskDesc& task = view_.tasks[index];
    const bool adds =
        KindOf(task).info().unit == kAiv && !pricing_.skipped[task.kind];
    in_flight_ = adds ? InFlight(figures_) : 0;
    SignalTask(*this, task, view_.signals, view_.events, launch_.plan,
               launch_.Headers(task));
  }
  void Add(const SignalDesc&, int32_t number, int32_t amount) {
    if (!Count(number, amount, view_.events[number].threshold)) return;
    // Tasks of one kind signal an event: its last word arrives last.
    Reach(number, in_flight_ + SeenAfter(figures_),
          [&](int32_t w) { ready_.push_back(w); });
  }

 private:
  // Of tasks as they are numbered, so that no time depends on who came first.
  void FindMisses() {
    CostModel costs(launch_, figures_, fabric_, pricing_, figures_.l2_bytes);
    missed_.reserve(view_.num_tasks);
    for (int32_t t = 0; t < view_.num_tasks; ++t) {
      missed_.push_back(costs.Of(view_.tasks[t]).missed);
    }
  }

  // AIVs are shared out to the AICs of their rank in order.
  void FindBeside() {
    const int32_t aic = view_.header->num_aic, aiv = view_.header->num_aiv;
    beside_.assign(view_.num_queues, kNobody);
    for (int32_t q = 0; q < view_.num_queues; ++q) {
      const QueueDesc& put = view_.queues[q];
      if (put.unit != kAiv) continue;
      for (int32_t c = 0; c < view_.num_queues; ++c) {
        const QueueDesc& cube = view_.queues[c];
        const bool near = cube.core == put.core * aic / aiv;
        if (cube.unit == kAic && cube.rank == put.rank && near) beside_[q] = c;
      }
    }
  }

  // Lets every worker that something happened to go on.
  void Settle() {
    for (size_t i = 0; i < ready_.size(); ++i) Resume(ready_[i]);
    ready_.clear();
  }

  // A worker that runs nothing looks at its next task.
  void Resume(int32_t w) {
    Worker& worker = workers_[w];
    while (true) {
      seen_ = worker.seen;
      const Fetched fetched = Fetch(&worker.cursor, *this);
      worker.seen = seen_;
      if (fetched.result == StepResult::kDone) return;
      if (fetched.result == StepResult::kBlocked) {
        return Block(w, &counters_[blocking_].waiting);
      }
      const TaskDesc& task = view_.tasks[fetched.task];
      double at = pricing_.skipped[task.kind] ? now_ : seen_;
      if (options_.barriers && !operators_.IsOpen(task, now_)) {
        if (operators_.OpensAt(task) == kNoTime) {
          return Block(w, operators_.Waiting(task));
        }
        at = std::max(at, operators_.OpensAt(task));
      }
      if (at > now_) {
        Blocked(&worker);
        return calendar_.Set(at, w);
      }
      if (!Begin(w, fetched.task)) return;
    }
  }

  // A thread that drives no worker takes the first that has a task ready;
  // each that it looks at takes it the time of a poll.
  void Scan(int32_t t) {
    Thread& thread = threads_[t];
    thread.idle = thread.done = false;
    thread.ran = 0;
    for (size_t looked = 1; looked <= workers_.size(); ++looked) {
      const auto w = static_cast<int32_t>(worker_order_[thread.next]);
      Worker& worker = workers_[w];
      thread.next =
          (thread.next + 1) % static_cast<int32_t>(worker_order_.size());
      if (worker.thread != kNobody) continue;
      const Fetched fetched = Fetch(&worker.cursor, *this);
      if (fetched.result == StepResult::kBlocked) Blocked(&worker);
      if (fetched.result != StepResult::kRan) continue;
      worker.thread = t;
      const double polled = static_cast<double>(looked) * figures_.poll;
      return calendar_.Set(now_ + polled, w);
    }
    thread.idle = true;
  }

  // The thread of a worker goes on with it, or with another.
  void GoOn(int32_t w) {
    Worker& worker = workers_[w];
    const int32_t t = worker.thread;
    while (threads_[t].ran < kMaxRun && !threads_[t].done) {
      const Fetched fetched = Fetch(&worker.cursor, *this);
      if (fetched.result == StepResult::kBlocked) Blocked(&worker);
      if (fetched.result != StepResult::kRan) break;
      if (!Begin(w, fetched.task)) return;
    }
    worker.thread = kNobody;
    Scan(t);
  }

  void WakeThreads() {
    for (size_t t = 0; t < threads_.size(); ++t) {
      if (threads_[t].idle) Scan(static_cast<int32_t>(t));
    }
  }

  void Blocked(Worker* worker) {
    if (worker->since == kNoTime) worker->since = now_;
  }

  void Block(int32_t w, int32_t* list) {
    Blocked(&workers_[w]);
    WaitIn(list, w);
  }

  // Whether the task has ended, too.
  bool Begin(int32_t w, uint32_t index) {
    Worker& worker = workers_[w];
    const TaskDesc& task = view_.tasks[index];
    BeginTask(index);
    times_[index].start = now_;
    times_[index].thread = worker.thread;
    if (worker.thread != kNobody) {
      ++threads_[worker.thread].ran;
      threads_[worker.thread].done = work_[index] > 0;
    }
    times_[index].waited = worker.since == kNoTime ? 0 : now_ - worker.since;
    worker.since = kNoTime;
    worker.seen = 0;
    if (pricing_.skipped[task.kind]) {
      Record(index, Cost{});
      End(w, index);
      return true;
    }
    Cost cost = costs_.Of(task);
    if (!options_.sharing) cost.missed = missed_[index];
    Record(index, cost);
    worker.core.Enter(now_, 0, cost.own, w);
    worker.own_end = worker.core.next();
    worker.fixed = cost.fixed;
    worker.runs = true;
    worker.pending =
        contention_.Enter(now_, w, task, cost, costs_.sent(), &worker.own_end);
    if (worker.pending == 0) calendar_.Set(worker.own_end + cost.fixed, w);
    worker.puts = SlowsCubes(task, cost);
    if (worker.puts) Beside(w, 1);
    return false;
  }

  // Whether it takes from the AIC beside its AIV.
  bool SlowsCubes(const TaskDesc& task, const Cost& cost) const {
    return figures_.home_beside > 0 && options_.sharing && threads_.empty() &&
           FormOf(task) == Form::kHomePut && cost.linked > 0;
  }

  // A put on an AIV begins or ends: the product beside it goes on at another
  // rate from now.
  void Beside(int32_t w, int32_t more) {
    const int32_t beside = beside_[w];
    if (beside == kNobody) return;
    Worker& worker = workers_[beside];
    worker.beside += more;
    const double rate = std::max(0.0, 1 - figures_.home_beside * worker.beside);
    if (worker.core.next() <= now_) LeaveCore(&worker);
    worker.core.Retune(now_, [&](OneTask* core) { core->set_rate(rate); });
    if (worker.core.discipline().idle()) return;
    worker.own_end = worker.core.next();
    if (worker.pending == 0) {
      calendar_.Set(worker.own_end + worker.fixed, beside);
    }
  }

  void LeaveCore(Worker* worker) {
    worker->core.LeaveBy(now_, [](int32_t) {});
  }

  void Record(uint32_t index, const Cost& cost) {
    times_[index].hbm_bytes = cost.missed + cost.written;
    times_[index].l2_bytes = cost.read + cost.written;
    times_[index].link_bytes = cost.linked;
  }

  void Flowed() {
    for (const uint32_t w : contention_.Leave()) {
      Worker& worker = workers_[w];
      if (--worker.pending > 0) continue;
      calendar_.Set(std::max(now_, worker.own_end) + worker.fixed, w);
    }
  }

  // What the next task of a queue needs is far from all that was of use lately.
  void Prefetch(const Cursor& cursor) const {
    if (cursor.next + 1 >= cursor.count) return;
    const uint32_t next = cursor.tasks[cursor.next + 1];
    __builtin_prefetch(view_.tasks + next);
    __builtin_prefetch(times_ + next, 1);
  }

  // A task ends, or a worker that was blocked has seen why it no longer is.
  void TakeTimer() {
    const int32_t w = calendar_.Take();
    Worker& worker = workers_[w];
    const uint32_t index = worker.cursor.tasks[worker.cursor.next];
    if (!worker.runs) {
      if (!Begin(w, index)) return;
    } else {
      worker.runs = false;
      End(w, index);
    }
    if (worker.thread == kNobody) return ready_.push_back(w);
    GoOn(w);
    WakeThreads();
  }

  void End(int32_t w, uint32_t index) {
    if (workers_[w].puts) {
      workers_[w].puts = false;
      Beside(w, -1);
    }
    if (!workers_[w].core.discipline().idle()) LeaveCore(&workers_[w]);
    EndTask(index);
    times_[index].end = now_;
    busy_[w] += now_ - times_[index].start;
    Finish(&workers_[w].cursor, *this);
    if (options_.barriers && operators_.End(view_.tasks[index])) Open(now_);
  }

  // Operators whose turn has come start after a launch.
  void Open(double now) {
    if (!options_.barriers) return;
    operators_.Open(now + figures_.launch, [&](int32_t first) {
      WakeAll(first, [&](int32_t w) {
        calendar_.Set(std::max(now + figures_.launch, workers_[w].seen), w);
      });
    });
  }

  Status Ended() const {
    for (const Worker& worker : workers_) {
      if (worker.cursor.next == worker.cursor.count) continue;
      return Refused(
          1,
          "image: expected a flow that ends%s, got task %u that waits for ever",
          options_.barriers ? " operator by operator" : "",
          worker.cursor.tasks[worker.cursor.next]);
    }
    Status status = EventCore::Conserves();
    if (status.code == 0) status = contention_.Conserves(total_);
    for (size_t q = 0; q < workers_.size() && status.code == 0; ++q) {
      status = CheckAccount(workers_[q].core.account(), total_,
                            "the core of queue", static_cast<int>(q));
    }
    return status;
  }

  const Launch& launch_;
  const ImageView& view_;
  const Figures& figures_;
  const FabricTables& fabric_;
  const Pricing& pricing_;
  const SimOptions options_;
  TaskTime* const times_;  // by task
  CostModel costs_;
  Contention contention_;
  Operators operators_;

  double in_flight_ = 0;         // s, of what the task that signals adds
  int32_t blocking_ = 0;         // the event that was looked at last
  double seen_ = 0;              // the last of those that were reached
  std::vector<Worker> workers_;  // by queue
  std::vector<int32_t> beside_;  // by queue: of the AIC beside an AIV
  std::vector<Thread> threads_;  // of a host; none: workers are cores
  std::vector<int64_t> work_;    // by task, and the order in which threads
  std::vector<uint32_t>
      worker_order_;  // look at workers; where there are threads
  std::vector<double> busy_;
  std::vector<int32_t> ready_;
  std::vector<double> missed_;  // by task, without sharing
};

}  // namespace

Status Simulate(const Launch& launch, const Figures& figures,
                const FabricTables& fabric, const Pricing& pricing,
                const SimOptions& options, TaskTime* times, SimTotals* totals) {
  return Engine(launch, figures, fabric, pricing, options, times).Run(totals);
}

}  // namespace hpmoe::sim
