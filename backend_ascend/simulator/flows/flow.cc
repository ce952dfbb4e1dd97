#include "backend_ascend/simulator/flows/flow.h"

#include <algorithm>

#include "backend_ascend/simulator/first_of.h"
#include "backend_ascend/simulator/flows/fifo.h"
#include "backend_ascend/simulator/flows/link.h"

namespace hpmoe::sim {
namespace {

constexpr int32_t kNobody = -1;

struct Event {
  int64_t counter = 0;
  double seen = 0;            // s, when all see that it was reached
  int32_t waiting = kNobody;  // the last server that came to wait for it
};

struct Server {
  int32_t pool;
  int32_t task = kNobody;
  int32_t wait = 0;          // of the task, the first that is not reached
  int32_t behind = kNobody;  // the next that waits for the same
  bool runs = false;
};

// Where a message, or a copy or part of it, is.
enum class Leg { kUp, kToPeer, kAsked, kAnswer, kHome };
struct Flight {
  int32_t message, peer;
  Leg leg;
  int32_t parts;  // that are summed in it
};

struct Timer {
  double at;
  int32_t server;
  // A heap's top is the greatest.
  bool operator<(const Timer& other) const {
    return at != other.at ? at > other.at : server > other.server;
  }
};

class FlowEngine {
 public:
  FlowEngine(const FlowTables& flow, const Switch& of, FlowTotals* totals)
      : flow_(flow),
        switch_(of),
        packets_{switch_},
        totals_(*totals),
        sessions_(of, flow.ranks),
        events_(flow.threshold.size()),
        owners_(flow.op.size(), kNobody),
        left_(flow.op.size(), 0),
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
        links_.emplace_back(capacity, static_cast<int>(of.channels));
      }
    }
    soonest_.Resize(static_cast<uint32_t>(links_.size()));
    for (size_t p = 0; p < next_.size(); ++p) {
      next_[p] = flow.pool_begin[p];
      for (int32_t s = 0; s < flow.pool_servers[p]; ++s) {
        SetTimer(flow.pool_start[p], static_cast<int32_t>(servers_.size()));
        servers_.push_back({static_cast<int32_t>(p)});
      }
    }
  }

  Status Run() {
    while (Step()) {
    }
    totals_.sessions = sessions_.totals();
    for (int32_t r = 0; r < flow_.ranks; ++r) {
      const Link<Flight>& down = links_[flow_.ranks + r];
      totals_.up_bytes.push_back(links_[r].bytes());
      totals_.up_busy.push_back(links_[r].busy());
      totals_.down_bytes.push_back(down.bytes());
      totals_.down_busy.push_back(down.busy());
    }
    return Ended();
  }

 private:
  bool Step() {
    const double flowed = soonest_.time();
    const double come = coming_.empty() ? kNoTime : coming_.front().at;
    const double timed = timers_.empty() ? kNoTime : timers_.front().at;
    const double old = sessions_.next();
    const double first = std::min({flowed, come, timed, old});
    if (first == kNoTime || !status_ok_) return false;
    now_ = first;
    if (flowed == first) {
      const uint32_t link = soonest_.index();
      coming_.Push({now_ + switch_.hop, links_[link].Leave()});
      soonest_.Set(link, links_[link].next());
    } else if (come == first) {
      const Flight flight = coming_.front().flight;
      coming_.Pop();
      Come(flight);
    } else if (timed == first) {
      const int32_t server = timers_.front().server;
      std::pop_heap(timers_.begin(), timers_.end());
      timers_.pop_back();
      Go(server);
    } else {
      sessions_.TimeOut(now_, &leaves_);
      SendPartials();
    }
    return true;
  }

  // --- Servers.

  void SetTimer(double at, int32_t server) {
    timers_.push_back({at, server});
    std::push_heap(timers_.begin(), timers_.end());
  }

  // A server that waited, begins or ends.
  void Go(int32_t s) {
    Server& server = servers_[s];
    if (server.runs) {
      server.runs = false;
      if (!Finish(s)) return;
      server.task = kNobody;
    }
    if (server.task == kNobody && !Fetch(&server)) return;
    while (server.wait < flow_.wait_begin[server.task + 1]) {
      Event& event = events_[flow_.wait_event[server.wait]];
      if (event.counter < flow_.threshold[flow_.wait_event[server.wait]]) {
        server.behind = event.waiting;
        event.waiting = s;
        return;
      }
      if (event.seen > now_) return SetTimer(event.seen, s);
      ++server.wait;
    }
    totals_.start[server.task] = now_;
    server.runs = true;
    SetTimer(now_ + flow_.own[server.task], s);
  }

  bool Fetch(Server* server) {
    int32_t* const next = &next_[server->pool];
    if (*next == flow_.pool_begin[server->pool + 1]) return false;
    server->task = flow_.pool_tasks[(*next)++];
    server->wait = flow_.wait_begin[server->task];
    return true;
  }

  // Whether the task has ended, too.
  bool Finish(int32_t s) {
    const int32_t task = servers_[s].task;
    if (holding_[task] < 0) return EndTask(task);  // all has arrived
    const int32_t begin = flow_.message_begin[task];
    const int32_t end = flow_.message_begin[task + 1];
    const bool holds = flow_.holds[task] != 0;
    for (int32_t m = begin; m < end; ++m) left_[m] = Arrivals(m);
    if (holds) {
      holding_[task] = end - begin;
      for (int32_t m = begin; m < end; ++m) owners_[m] = s;
    }
    for (int32_t m = begin; m < end; ++m) Send(m);
    if (holds && end > begin) {
      servers_[s].runs = true;
      return false;
    }
    return EndTask(task);
  }

  bool EndTask(int32_t task) {
    totals_.end[task] = now_;
    totals_.total = std::max(totals_.total, now_);
    for (int32_t i = flow_.signal_begin[task]; i < flow_.signal_begin[task + 1];
         ++i) {
      Count(flow_.signal_event[i], flow_.signal_amount[i]);
    }
    return true;
  }

  void Count(int32_t number, int32_t amount) {
    Event& event = events_[number];
    const bool reached = event.counter >= flow_.threshold[number];
    event.counter += amount;
    if (reached || event.counter < flow_.threshold[number]) return;
    event.seen = now_ + flow_.release[number];
    for (int32_t s = event.waiting; s != kNobody; s = servers_[s].behind) {
      SetTimer(event.seen, s);
    }
    event.waiting = kNobody;
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

  void Enter(int32_t link, double bytes, const Flight& flight) {
    const int32_t channel = flow_.channel[flight.message];
    if (!links_[link].Enter(now_, channel, bytes, flight)) return;
    soonest_.Set(link, links_[link].next());
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
  void Come(const Flight& flight) {
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
    if (--left_[m] > 0 || owners_[m] == kNobody) return;
    const int32_t s = owners_[m];
    owners_[m] = kNobody;
    int32_t* const holding = &holding_[servers_[s].task];
    if (--*holding > 0) return;
    *holding = -1;
    SetTimer(now_, s);
  }

  void Deliver(int32_t m, int32_t p, int32_t parts) {
    const bool home = flow_.op[m] == kGet || flow_.op[m] == kReduceGet;
    const int32_t rank = home ? flow_.rank[m] : flow_.peer[p];
    if (rank != flow_.rank[m] || home) {
      totals_.delivered[rank] += flow_.bytes[m];
    }
    totals_.arrived[m] = now_;
    totals_.total = std::max(totals_.total, now_);
    const int32_t event = flow_.event[p];
    if (event >= 0) Count(event, flow_.amount[m] * parts);
    if (event < -1) Place(-2 - event, p, flow_.amount[m]);
    if (flow_.op[m] != kReducePut) Release(m);
  }

  // Rows take the next addresses; each block counts those that it got.
  void Place(int32_t region, int32_t p, int32_t rows) {
    const int32_t block = flow_.region_block[region];
    int32_t* const given = &given_[region];
    totals_.row[p] = *given;
    if (*given + rows > flow_.region_rows[region]) {
      status_ok_ = false;
      overflow_ = region;
      return;
    }
    while (rows > 0) {
      const int32_t taken = std::min(rows, block - *given % block);
      Count(flow_.region_event[region] + *given / block, taken);
      *given += taken;
      rows -= taken;
    }
  }

  Status Ended() const {
    if (!status_ok_) {
      return Refused(1,
                     "region: expected at most %d rows of region %d, got more",
                     flow_.region_rows[overflow_], overflow_);
    }
    for (size_t p = 0; p < next_.size(); ++p) {
      int32_t task = kNobody;
      for (const Server& server : servers_) {
        if (server.pool == static_cast<int32_t>(p) && server.task != kNobody) {
          task = server.task;
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
    return Status{};
  }

  struct Coming {
    double at;
    Flight flight;
  };
  static constexpr int32_t kOfSession = -1;

  const FlowTables& flow_;
  const Switch switch_;
  const Packets packets_;
  FlowTotals& totals_;
  Sessions sessions_;
  double now_ = 0;
  std::vector<Link<Flight>> links_;  // up [R], down [R]
  FirstOf soonest_;                  // of links_
  Fifo<Coming> coming_;        // a hop is the same for all: in order of time
  std::vector<Timer> timers_;  // a heap
  std::vector<Event> events_;
  std::vector<Server> servers_;
  std::vector<int32_t> owners_;   // [messages] server that holds for it
  std::vector<int32_t> left_;     // [messages] arrivals
  std::vector<int32_t> holding_;  // [tasks] messages; -1: all have arrived
  std::vector<int32_t> asked_;    // [messages] answers, or kOfSession
  std::vector<int32_t> given_;    // [regions] rows
  std::vector<int32_t> next_;     // [pools] into their tasks
  std::vector<Partial> leaves_;
  bool status_ok_ = true;
  int32_t overflow_ = 0;
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
