#include "backend_ascend/simulator/flows/flow.h"

#include <algorithm>
#include <numeric>

#include "backend_ascend/simulator/core/channels.h"
#include "backend_ascend/simulator/core/event_core.h"
#include "backend_ascend/simulator/core/fifo.h"
#include "backend_ascend/simulator/core/one_task.h"
#include "backend_ascend/simulator/core/server.h"

namespace hpmoe::sim {
namespace {

struct Unit {
  int32_t pool = 0;
  int32_t task = kNobody;
  int32_t wait = 0;  // of the task, the first that is not reached
  bool runs = false;
  bool works = false;  // its core does
};

// Where a message, or a copy or part of it, is.
enum class Leg { kUp, kToPeer, kAsked, kAnswer, kHome };
struct Flight {
  int32_t message, peer;
  Leg leg;
  int32_t parts;  // that are summed in it
};

// Of a message.
struct Underway {
  int32_t owner = kNobody;  // unit that holds for it
  int32_t left = 0;         // arrivals
};

class FlowEngine : private EventCore {
 public:
  FlowEngine(const FlowTables& flow, const Switch& of, FlowTotals* totals)
      : EventCore(std::accumulate(flow.pool_servers.begin(),
                                  flow.pool_servers.end(), size_t{0}),
                  flow.threshold.size(), flow.own.size()),
        flow_(flow),
        switch_(of),
        packets_(switch_),
        totals_(*totals),
        sessions_(of, flow.ranks),
        underway_(flow.op.size()),
        holding_(flow.own.size(), 0),
        asked_(flow.op.size(), 0),
        given_(flow.region_event.size(), 0),
        next_(flow.pool_servers.size()) {
    const size_t tasks = flow.own.size();
    totals_.start.assign(tasks, 0);
    totals_.end.assign(tasks, 0);
    totals_.arrived.assign(flow.op.size(), 0);
    totals_.row.assign(flow.peer.size(), -1);
    totals_.delivered.assign(flow.ranks, 0);
    for (const Column<double>* of_rank : {&flow.up, &flow.down}) {
      for (const double capacity : *of_rank) {
        links_.Add({capacity, static_cast<int>(of.channels)});
      }
    }
    links_.Open();
    cores_.resize(std::accumulate(flow.pool_servers.begin(),
                                  flow.pool_servers.end(), size_t{0}));
    for (size_t p = 0; p < next_.size(); ++p) {
      next_[p] = flow.pool_begin[p];
      for (int32_t s = 0; s < flow.pool_servers[p]; ++s) {
        calendar_.Set(flow.pool_start[p], static_cast<int32_t>(units_.size()));
        units_.push_back({});
        units_.back().pool = static_cast<int32_t>(p);
      }
    }
  }

  Status Run() {
    RunEvents(
        Source{[&] { return links_.next(); },
               [&] {
                 links_.Leave([&](Flight flight) {
                   coming_.Push(now_ + switch_.hop, flight);
                 });
               }},
        Source{[&] { return coming_.empty() ? kNoTime : coming_.front().at; },
               [&] {
                 const Flight flight = coming_.front().flight;
                 coming_.Pop();
                 Come(flight);
               }},
        Source{[&] { return calendar_.next(); }, [&] { Go(calendar_.Take()); }},
        Source{[&] { return sessions_.next(); },
               [&] {
                 sessions_.TimeOut(now_, &leaves_);
                 SendPartials();
               }});
    totals_.total = total_;
    totals_.sessions = sessions_.totals();
    for (int32_t r = 0; r < flow_.ranks; ++r) {
      const auto& down = links_[flow_.ranks + r];
      totals_.up_bytes.push_back(links_[r].offered());
      totals_.up_busy.push_back(links_[r].busy());
      totals_.down_bytes.push_back(down.offered());
      totals_.down_busy.push_back(down.busy());
    }
    return Ended();
  }

 private:
  // --- Units: the servers of pools.

  // One that waited, begins or ends.
  void Go(int32_t u) {
    Unit& unit = units_[u];
    if (unit.runs) {
      unit.runs = false;
      if (!Finish(u)) return;
      unit.task = kNobody;
    }
    if (unit.task == kNobody && !Fetch(&unit)) return;
    while (unit.wait < flow_.wait_begin[unit.task + 1]) {
      const int32_t event = flow_.wait_event[unit.wait];
      Counter& counter = counters_[event];
      if (counter.count < flow_.threshold[event]) {
        return WaitIn(&counter.waiting, u);
      }
      if (counter.seen > now_) return calendar_.Set(counter.seen, u);
      ++unit.wait;
    }
    BeginTask(unit.task);
    totals_.start[unit.task] = now_;
    unit.runs = true;
    const double own = flow_.own[unit.task];
    if (own == 0) return calendar_.Set(now_, u);
    unit.works = true;
    cores_[u].Enter(now_, 0, own, u);
    calendar_.Set(cores_[u].next(), u);
  }

  bool Fetch(Unit* unit) {
    int32_t* const next = &next_[unit->pool];
    if (*next == flow_.pool_begin[unit->pool + 1]) return false;
    unit->task = flow_.pool_tasks[(*next)++];
    unit->wait = flow_.wait_begin[unit->task];
    return true;
  }

  // Whether the task has ended, too.
  bool Finish(int32_t u) {
    Unit& unit = units_[u];
    const int32_t task = unit.task;
    if (holding_[task] < 0) return End(task);  // all has arrived
    if (unit.works) cores_[u].LeaveBy(now_, [](int32_t) {});
    unit.works = false;
    const int32_t begin = flow_.message_begin[task];
    const int32_t end = flow_.message_begin[task + 1];
    const bool holds = flow_.holds[task] != 0;
    if (holds) holding_[task] = end - begin;
    for (int32_t m = begin; m < end; ++m) {
      underway_[m] = {holds ? u : kNobody, Arrivals(m)};
    }
    for (int32_t m = begin; m < end; ++m) Send(m);
    if (holds && end > begin) {
      unit.runs = true;
      return false;
    }
    return End(task);
  }

  bool End(int32_t task) {
    EndTask(task);
    totals_.end[task] = now_;
    for (int32_t i = flow_.signal_begin[task]; i < flow_.signal_begin[task + 1];
         ++i) {
      Add(flow_.signal_event[i], flow_.signal_amount[i]);
    }
    return true;
  }

  void Add(int32_t event, int32_t amount) {
    if (!Count(event, amount, flow_.threshold[event])) return;
    Reach(event, flow_.release[event],
          [&](int32_t u) { calendar_.Set(counters_[event].seen, u); });
  }

  // --- Messages.

  int32_t Arrivals(int32_t m) const {
    return flow_.op[m] == kPut ? flow_.peer_begin[m + 1] - flow_.peer_begin[m]
                               : 1;
  }

  double Ids(int32_t m) const {
    double ids = 0;
    for (int32_t p = flow_.peer_begin[m]; p < flow_.peer_begin[m + 1]; ++p) {
      if (flow_.op[m] != kPut || flow_.peer[p] != flow_.rank[m]) {
        ids += flow_.ids[p];
      }
    }
    return ids;
  }

  void Send(int32_t m) {
    const double ids = Ids(m), bytes = flow_.bytes[m];
    if (flow_.op[m] == kPut) {
      bool away = false;
      for (int32_t p = flow_.peer_begin[m]; p < flow_.peer_begin[m + 1]; ++p) {
        if (flow_.peer[p] != flow_.rank[m]) {
          away = true;
        } else {
          Deliver(m, p, 1);
        }
      }
      if (away) Up(m, -1, Leg::kUp, packets_.Data(bytes, ids), 1);
    } else if (flow_.op[m] == kReducePut) {
      Up(m, flow_.peer_begin[m], Leg::kUp, packets_.Data(bytes, ids), 1);
    } else {
      Up(m, -1, Leg::kUp, packets_.Request(bytes, ids), 1);
    }
  }

  void Enter(int32_t link, double bytes, Flight flight) {
    links_.Enter(now_, link, flow_.channel[flight.message], bytes, flight);
  }
  // From the rank that sends, or from a peer that answers.
  void Up(int32_t m, int32_t peer, Leg leg, double bytes, int32_t parts) {
    const int32_t from = leg == Leg::kUp ? flow_.rank[m] : flow_.peer[peer];
    Enter(from, bytes, {m, peer, leg, parts});
  }
  void Down(int32_t m, int32_t peer, Leg leg, double bytes, int32_t parts) {
    const int32_t to = leg == Leg::kHome ? flow_.rank[m] : flow_.peer[peer];
    Enter(flow_.ranks + to, bytes, {m, peer, leg, parts});
  }

  // A flight has passed a link and a hop.
  void Come(Flight flight) {
    const int32_t m = flight.message;
    const double bytes = flow_.bytes[m];
    switch (flight.leg) {
      case Leg::kUp:
        return Switched(m);
      case Leg::kToPeer:
        return Deliver(m, flight.peer, flight.parts);
      case Leg::kAsked:  // a peer answers
        return Up(m, flight.peer, Leg::kAnswer, packets_.Data(bytes, 1), 1);
      case Leg::kAnswer:
        return Answered(m);
      case Leg::kHome:
        return Deliver(m, flow_.peer_begin[m], 1);
    }
  }

  // A message came to a switch from the rank that sent it.
  void Switched(int32_t m) {
    const int32_t begin = flow_.peer_begin[m], end = flow_.peer_begin[m + 1];
    const double bytes = flow_.bytes[m];
    switch (flow_.op[m]) {
      case kPut:
        for (int32_t p = begin; p < end; ++p) {
          if (flow_.peer[p] == flow_.rank[m]) continue;
          Down(m, p, Leg::kToPeer, packets_.Data(bytes, flow_.ids[p]), 1);
        }
        return;
      case kReducePut:
        Release(m);
        if (flow_.key[m] < 0) {
          leaves_.push_back({m, 1});
        } else {
          sessions_.Add(now_, flow_.key[m], m, flow_.rank[m], flow_.peer[begin],
                        flow_.expected[m], bytes, &leaves_);
        }
        return SendPartials();
      case kReduceGet:
        asked_[m] = end - begin;
        for (int32_t p = begin; p < end; ++p) Ask(m, p);
        return;
      default:
        return Get(m);
    }
  }

  void Ask(int32_t m, int32_t p) {
    Down(m, p, Leg::kAsked, packets_.Request(flow_.bytes[m], flow_.ids[p]), 1);
  }

  void Get(int32_t m) {
    const int64_t key = flow_.key[m];
    using Load = Sessions::Load;
    const Load load = key < 0 ? Load::kBypass
                              : sessions_.Ask(now_, key, m, flow_.expected[m],
                                              flow_.bytes[m], &leaves_);
    SendPartials();
    if (load == Load::kForward) asked_[m] = kOfSession;
    if (load == Load::kForward || load == Load::kBypass) {
      Ask(m, flow_.peer_begin[m]);
    } else if (load == Load::kAnswer) {
      Home(m);
    }
  }

  void Answered(int32_t m) {
    if (flow_.op[m] == kReduceGet) {
      if (--asked_[m] > 0) return;
    } else if (asked_[m] == kOfSession) {
      for (const int32_t other : sessions_.Arrive(now_, flow_.key[m])) {
        Home(other);
      }
    }
    Home(m);
  }

  void Home(int32_t m) {
    Down(m, -1, Leg::kHome, packets_.Data(flow_.bytes[m], 1), 1);
  }

  void SendPartials() {
    for (const Partial& partial : leaves_) {
      const int32_t m = partial.message;
      Down(m, flow_.peer_begin[m], Leg::kToPeer,
           packets_.Data(flow_.bytes[m], 1), partial.parts);
    }
    leaves_.clear();
  }

  // What holds for a message has one arrival less to wait for.
  void Release(int32_t m) {
    Underway& message = underway_[m];
    if (--message.left > 0 || message.owner == kNobody) return;
    const int32_t unit = message.owner;
    message.owner = kNobody;
    int32_t* const holding = &holding_[units_[unit].task];
    if (--*holding > 0) return;
    *holding = -1;
    calendar_.Set(now_, unit);
  }

  void Deliver(int32_t m, int32_t p, int32_t parts) {
    const bool home = flow_.op[m] == kGet || flow_.op[m] == kReduceGet;
    const int32_t rank = home ? flow_.rank[m] : flow_.peer[p];
    if (rank != flow_.rank[m] || home) {
      totals_.delivered[rank] += flow_.bytes[m];
    }
    totals_.arrived[m] = now_;
    total_ = std::max(total_, now_);
    const int32_t event = flow_.event[p];
    if (event >= 0) Add(event, flow_.amount[m] * parts);
    if (event < -1) Place(-2 - event, p, flow_.amount[m]);
    if (flow_.op[m] != kReducePut) Release(m);
  }

  // Rows take the next addresses; each block counts those that it got.
  void Place(int32_t region, int32_t p, int32_t rows) {
    const int32_t block = flow_.region_block[region];
    int32_t* const given = &given_[region];
    totals_.row[p] = *given;
    if (*given + rows > flow_.region_rows[region]) {
      overflow_ = region;
      return Stop();
    }
    while (rows > 0) {
      const int32_t taken = std::min(rows, block - *given % block);
      Add(flow_.region_event[region] + *given / block, taken);
      *given += taken;
      rows -= taken;
    }
  }

  Status Ended() const {
    if (overflow_ != kNobody) {
      return Refused(1,
                     "region: expected at most %d rows of region %d, got more",
                     flow_.region_rows[overflow_], overflow_);
    }
    for (size_t p = 0; p < next_.size(); ++p) {
      int32_t task = kNobody;
      for (const Unit& unit : units_) {
        if (unit.pool == static_cast<int32_t>(p) && unit.task != kNobody) {
          task = unit.task;
        }
      }
      if (task == kNobody && next_[p] < flow_.pool_begin[p + 1]) {
        task = flow_.pool_tasks[next_[p]];
      }
      if (task == kNobody) continue;
      return Refused(1,
                     "flow: expected one that ends, got task %d of pool %d "
                     "that waits for ever",
                     task, static_cast<int>(p));
    }
    return Conserves();
  }

  Status Conserves() const {
    Status status = EventCore::Conserves();
    if (status.code == 0) status = sessions_.Conserves();
    // Bytes may pass a link after the last that a task waits for.
    const double total = std::max(total_, now_);
    for (size_t i = 0; i < links_.size() && status.code == 0; ++i) {
      const auto at = static_cast<int32_t>(i);
      const bool up = at < flow_.ranks;
      status = CheckAccount(links_[i].account(), total,
                            up ? "the link from rank" : "the link to rank",
                            up ? at : at - flow_.ranks);
    }
    for (size_t i = 0; i < units_.size() && status.code == 0; ++i) {
      status = CheckAccount(cores_[i].account(), total, "server",
                            static_cast<int>(i));
    }
    return status;
  }

  struct Coming {
    Coming(double t, Flight f) : at(t), flight(f) {}
    double at;
    Flight flight;
  };
  static constexpr int32_t kOfSession = -1;

  const FlowTables flow_;
  const Switch switch_;
  Packets packets_;
  FlowTotals& totals_;
  Sessions sessions_;
  Servers<Channels<Flight>> links_;  // up [R], down [R]
  Fifo<Coming> coming_;  // a hop is the same for all: in order of time
  std::vector<Unit> units_;
  std::vector<Server<OneTask>> cores_;  // of units
  std::vector<Underway> underway_;      // [messages]
  std::vector<int32_t> holding_;  // [tasks] messages; -1: all have arrived
  std::vector<int32_t> asked_;    // [messages] answers, or kOfSession
  std::vector<int32_t> given_;    // [regions] rows
  std::vector<int32_t> next_;     // [pools] into their tasks
  std::vector<Partial> leaves_;
  int32_t overflow_ = kNobody;  // region without room
};

// --- Checks of tables that come from outside.

class Checker {
 public:
  explicit Checker(const FlowTables& flow) : flow_(flow) {}

  Status Check(const Switch& of) {
    const auto tasks = static_cast<int64_t>(flow_.own.size());
    const auto messages = static_cast<int64_t>(flow_.op.size());
    const auto pools = static_cast<int64_t>(flow_.pool_servers.size());
    const auto events = static_cast<int64_t>(flow_.threshold.size());
    const auto regions = static_cast<int64_t>(flow_.region_event.size());
    Require("ranks", flow_.ranks > 0 && flow_.ranks <= 64);
    Require("up", Size(flow_.up) == flow_.ranks);
    Require("down", Size(flow_.down) == flow_.ranks);
    Require("pool_start", Size(flow_.pool_start) == pools);
    Rows("pool_begin", flow_.pool_begin, pools, Size(flow_.pool_tasks));
    Within("pool_tasks", flow_.pool_tasks, 0, tasks);
    Within("pool_servers", flow_.pool_servers, 0, 1 << 20);
    Require("holds", Size(flow_.holds) == tasks);
    Rows("wait_begin", flow_.wait_begin, tasks, Size(flow_.wait_event));
    Within("wait_event", flow_.wait_event, 0, events);
    Rows("signal_begin", flow_.signal_begin, tasks, Size(flow_.signal_event));
    Within("signal_event", flow_.signal_event, 0, events);
    Require("signal_amount",
            Size(flow_.signal_amount) == Size(flow_.signal_event));
    Rows("message_begin", flow_.message_begin, tasks, messages);
    for (const auto* column :
         {&flow_.rank, &flow_.channel, &flow_.expected, &flow_.amount}) {
      Require("messages", Size(*column) == messages);
    }
    Require("bytes", Size(flow_.bytes) == messages);
    Require("key", Size(flow_.key) == messages);
    Within("op", flow_.op, 0, kNumOps);
    Within("rank", flow_.rank, 0, flow_.ranks);
    Within("channel", flow_.channel, 0, static_cast<int64_t>(of.channels));
    Rows("peer_begin", flow_.peer_begin, messages, Size(flow_.peer));
    Within("peer", flow_.peer, 0, flow_.ranks);
    Require("ids", Size(flow_.ids) == Size(flow_.peer));
    Require("event", Size(flow_.event) == Size(flow_.peer));
    Within("event", flow_.event, -1 - regions, events);
    Require("release", Size(flow_.release) == events);
    Require("region", Size(flow_.region_block) == regions &&
                          Size(flow_.region_rows) == regions);
    if (status_.code != 0) return status_;
    for (int64_t r = 0; r < regions; ++r) {
      const int64_t block = flow_.region_block[r];
      Require("region_block", block > 0);
      if (block <= 0) return status_;
      const int64_t blocks = (flow_.region_rows[r] + block - 1) / block;
      Require("region_event", flow_.region_event[r] >= 0 &&
                                  flow_.region_event[r] + blocks <= events);
    }
    for (int64_t m = 0; m < messages; ++m) {
      const int32_t peers = flow_.peer_begin[m + 1] - flow_.peer_begin[m];
      const bool many = flow_.op[m] == kPut || flow_.op[m] == kReduceGet;
      Require("peers of a message", many ? peers > 0 : peers == 1);
      Require("expected of a key", flow_.key[m] < 0 || flow_.expected[m] > 0);
    }
    return status_;
  }

 private:
  template <class T>
  static int64_t Size(const Column<T>& column) {
    return static_cast<int64_t>(column.size());
  }
  void Require(const char* name, bool holds) {
    if (holds || status_.code != 0) return;
    status_ =
        Refused(1, "flow: expected tables that fit each other, got %s", name);
  }
  void Within(const char* name, const Column<int32_t>& column, int64_t least,
              int64_t end) {
    Require(name, std::all_of(column.begin(), column.end(), [&](int32_t x) {
              return x >= least && x < end;
            }));
  }
  void Rows(const char* name, const Column<int32_t>& begin, int64_t rows,
            int64_t size) {
    Require(name, Size(begin) == rows + 1 && begin[0] == 0 &&
                      begin[rows] == size &&
                      std::is_sorted(begin.begin(), begin.end()));
  }

  const FlowTables& flow_;
  Status status_{};
};

}  // namespace

Status SimulateFlow(const FlowTables& flow, const Switch& of,
                    FlowTotals* totals) {
  const Status status = Checker(flow).Check(of);
  if (status.code != 0) return status;
  return FlowEngine(flow, of, totals).Run();
}

}  // namespace hpmoe::sim
