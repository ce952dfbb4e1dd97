#include "backend_ascend/compiler/orders/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "backend_ascend/compiler/orders/positions.h"
#include "backend_ascend/image/regions.h"
#include "backend_ascend/simulator/prices.h"

namespace hpmoe::schedule {
namespace {

// Parts of an expert where events are row blocks.
constexpr int kParts = 4;

struct Stage {
  double at;  // place in the order, in experts
  int kind, expert, part;
};

// Work of a stage, and of the longest of its tasks.
struct Work {
  double seconds = 0;  // of all tasks, one after another
  double longest = 0;
  double count = 0;
  double shared = 0;  // s on a link or memory that they all need
};

class Predictor {
 public:
  Predictor(const ImageHeader& header, const sim::Figures& figures,
            const Elements& elements, const Routing& routing)
      : h_(header),
        f_(figures),
        e_(elements),
        routing_(routing),
        experts_(LocalExperts(header)) {
    for (int k = 0; k < kNumTaskKinds; ++k) {
      if (DirectionOf(k) == static_cast<Direction>(h_.direction) &&
          HasKind(k, h_.span == kSublayer ? kIsSublayer : kIsDirect)) {
        kinds_.push_back(k);
      }
    }
    part_rows_.resize(experts_ * kParts);
    empty_.resize(kNumTaskKinds * experts_);
    ends_.resize(int64_t{kNumTaskKinds} * experts_ * kParts);
    for (const int k : kinds_) {
      for (const int p : kinds_) {
        for (int i = 0; i < kKinds[k].num_reads(); ++i) {
          const ReadSpec& read = kKinds[k].reads[i];
          if (p != k && read.buffer == kKinds[p].written &&
              read.cols != Cols::kBeside && Applies(h_, read.when)) {
            producers_[k].push_back(p);
          }
        }
      }
    }
  }

  double Of(const Point& p) {
    Take(p);
    Prepare();
    double pools[3] = {0, 0, 0};
    double total = 0;
    for (const Stage& stage : Ordered()) {
      total = std::max(total, Run(stage, pools));
    }
    return total;
  }

  // Points that differ in orders alone have one floor.
  double Floor(const Point& p) {
    const std::array<double, 11> key = {
        p.by_row,      p.row_block,   p.col_block,      p.put_rows,
        p.token_block, p.vector_rows, p.chain_rows,     p.weight_rows,
        p.num_aic,     p.num_aiv,     p.expert_capacity};
    const auto [at, is_new] = floors_.try_emplace(key);
    if (is_new) {
      Take(p);
      double aic = 0, aiv = 0;
      for (const int kind : kinds_) {
        (kKinds[kind].info().unit == kAic ? aic : aiv) += Least(kind);
      }
      at->second = std::max(aic / p.num_aic, aiv / p.num_aiv);
    }
    return at->second;
  }

 private:
  void Take(const Point& p) {
    p_ = p;
    parts_ = p.by_row != 0 ? kParts : 1;
    h_.chain_rows = static_cast<int32_t>(p.chain_rows);
    h_.expert_capacity = static_cast<int32_t>(p.expert_capacity);
  }

  double& End(int kind, int expert, int part) {
    return ends_[(kind * experts_ + expert) * kParts + part];
  }

  // The stages in the order of a schedule; schedules share few orders.
  const std::vector<Stage>& Ordered() {
    const std::array<double, 7> key = {p_.by_row,
                                       p_.lead,
                                       p_.lag,
                                       p_.weight_lag,
                                       p_.gate_weight_lag,
                                       p_.expert_order,
                                       p_.swizzle == 0 ? 1.0 : 0.0};
    const auto found = orders_.find(key);
    if (found != orders_.end()) return found->second;
    const Rules rules = {p_.lead, p_.lag, p_.weight_lag, p_.gate_weight_lag};
    std::vector<Stage> stages;
    for (const int kind : kinds_) {
      const Form form = kKinds[kind].form();
      const bool tokens = form == Form::kTokenTile;
      const int parts = form == Form::kWeightTile ? 1 : parts_;
      for (int l = 0; l < (tokens ? 1 : experts_); ++l) {
        for (int c = 0; c < parts; ++c) {
          const double part =
              p_.swizzle == 0 ? 0.0 : static_cast<double>(c) / parts_;
          stages.push_back(
              {Position(rules, experts_, kind, l, part), kind, l, c});
        }
      }
    }
    std::stable_sort(stages.begin(), stages.end(),
                     [](const Stage& a, const Stage& b) {
                       return a.at != b.at ? a.at < b.at : a.kind < b.kind;
                     });
    return orders_[key] = stages;
  }

  // The local expert that is taken `place`th.
  int ExpertAt(int place) const {
    if (p_.expert_order == 1) return experts_ - 1 - place;
    if (p_.expert_order == 2) return (place + routing_.rank) % experts_;
    return place;
  }

  double Run(const Stage& s, double* pools) {
    const Form form = kKinds[s.kind].form();
    const bool put = IsPut(form);
    const bool aic = kKinds[s.kind].info().unit == kAic;
    const int pool = aic ? 0 : put && p_.put_aiv > 0 ? 1 : 2;
    const double cores = aic         ? p_.num_aic
                         : pool == 1 ? p_.put_aiv
                                     : p_.num_aiv - p_.put_aiv;
    double extra = 0;
    const Work work = WorkOf(s, &extra);
    const double start = std::max(pools[pool], Ready(s));
    const double length = std::max(work.seconds / cores, work.shared);
    // Tasks that come in waves end half a task late.
    const bool waves = work.count > cores;
    const double task =
        waves ? std::max(work.longest, length * cores / work.count)
              : std::max(work.longest, work.shared);
    pools[pool] =
        start + std::max(work.seconds / cores, waves ? work.shared : 0.0);
    double end = start + std::max(length, task) + (waves ? task / 2 : 0);
    if (put) end += routing_.latency + extra;
    return End(s.kind, s.expert, s.part) = end;
  }

  double Ready(const Stage& s) {
    double ready = 0;
    const bool tokens = kKinds[s.kind].form() == Form::kTokenTile;
    for (const int p : producers_[s.kind]) {
      const Form form = kKinds[p].form();
      // Parts are of the same tokens only where row blocks are interleaved.
      const bool same = form == Form::kExpertTile && !tokens
                            ? kKinds[s.kind].form() != Form::kWeightTile
                            : p_.row_order == 2;
      const bool one = same && kKinds[s.kind].form() != Form::kWeightTile;
      for (int l = 0; l < (tokens ? experts_ : 1); ++l) {
        const int expert = tokens ? l : s.expert;
        for (int c = one ? s.part : 0; c < (one ? s.part + 1 : parts_); ++c) {
          ready = std::max(ready, End(p, expert, c));
        }
      }
    }
    return ready > 0 ? ready + sim::SeenAfter(f_) + f_.signal : 0;
  }

  // `extra`: s by which its end is late, though its cores are free again.
  Work WorkOf(const Stage& s, double* extra) {
    const KindInfo& kind = kKinds[s.kind];
    const int expert = ExpertAt(s.expert);
    const Form form = kind.form();
    double rows = part_rows_[expert * kParts + s.part];
    if (form == Form::kSlicePut) rows = routing_.sent[expert] / parts_;
    if (form == Form::kTokenTile) {
      rows = static_cast<double>(h_.num_tokens) / parts_;
    }
    if (form == Form::kWeightTile) rows = routing_.rows[expert];
    Last& memo = memo_[s.kind];
    if (memo.rows != rows) memo = {rows, Make(s.kind, rows)};
    Work work = memo.work;
    if (form == Form::kSlicePut) {
      work.shared *= routing_.dispatch_s[expert] / parts_;
    } else if (form == Form::kHomePut) {
      work.shared *= routing_.return_s[expert] / parts_;
      // Row blocks of the same tokens go to one rank all at once.
      if (p_.row_order == 0) *extra = (parts_ - 1) * work.shared;
    } else if (form == Form::kExpertTile && s.part == parts_ - 1) {
      work.seconds += empty_[s.kind * experts_ + expert];
    }
    return work;
  }

  Work Make(int kind, double rows) const {
    switch (kKinds[kind].form()) {
      case Form::kSlicePut:
        return Puts(kind, rows, p_.put_rows);
      case Form::kHomePut:
        return Puts(kind, rows, p_.by_row != 0 ? p_.vector_rows : p_.put_rows);
      case Form::kTokenTile:
        return Vector(kind, rows, p_.token_block);
      case Form::kWeightTile:
        return WeightGrads(kind, rows);
      default:
        return kKinds[kind].info().unit == kAic
                   ? Gemm(kind, rows)
                   : Vector(kind, rows, p_.vector_rows);
    }
  }

  // What stages ask for again and again.
  void Prepare() {
    double last = -1;
    for (int l = 0; l < experts_; ++l) {
      const double rows = routing_.rows[l];
      for (int c = 0; c < parts_; ++c) {
        part_rows_[l * kParts + c] =
            rows == last ? part_rows_[(l - 1) * kParts + c] : PartRows(l, c);
      }
      for (const int k : kinds_) {
        if (kKinds[k].form() != Form::kExpertTile) continue;
        double* const empty = &empty_[k * experts_ + l];
        *empty = rows == last ? empty[-1] : Empty(k, rows);
      }
      last = rows;
    }
    for (Last& memo : memo_) memo.rows = -1;
  }

  // Whole row blocks of a part of an expert.
  double PartRows(int expert, int part) const {
    const double rows = routing_.rows[expert];
    const double blocks = std::ceil(rows / p_.row_block);
    const double begin = std::floor(blocks * part / parts_) * p_.row_block;
    const double end = std::floor(blocks * (part + 1) / parts_) * p_.row_block;
    return std::max(0.0, std::min(end, rows) - begin);
  }

  // Tasks that the capacity has and the routing has no rows for.
  double Empty(int kind, double rows) const {
    const double height =
        kKinds[kind].info().unit == kAic ? p_.row_block : p_.vector_rows;
    const double cols = SizeOf(h_, kBuffers[kKinds[kind].written].cols);
    const double across =
        kKinds[kind].info().unit == kAic ? std::ceil(cols / p_.col_block) : 1;
    const double empty =
        std::ceil(p_.expert_capacity / height) - std::ceil(rows / height);
    return std::max(0.0, empty) * across * Fixed(kind, 1);
  }

  double Fixed(int kind, int32_t signals) const {
    return (kKinds[kind].info().unit == kAic ? f_.aic_task : f_.aiv_task) +
           sim::SignalSeconds(f_, kKinds[kind].info().unit, signals);
  }

  // Seconds that the cores of the busiest rank take for a kind, at least.
  double Least(int kind) const {
    const Form form = kKinds[kind].form();
    // Each rank sends its slots; who receives most returns most.
    const double slots = int64_t{h_.num_tokens} * h_.top_k;
    const double received =
        std::accumulate(routing_.rows.begin(), routing_.rows.end(), 0.0);
    if (form == Form::kSlicePut) return LeastOfPuts(kind, slots, p_.put_rows);
    if (form == Form::kHomePut) {
      return LeastOfPuts(kind, received,
                         p_.by_row != 0 ? p_.vector_rows : p_.put_rows);
    }
    if (form == Form::kTokenTile) {
      return h_.num_tokens * VectorRow(kind).seconds +
             std::ceil(h_.num_tokens / p_.token_block) * Fixed(kind, 0);
    }
    double seconds = 0;
    for (int l = 0; l < experts_; ++l) {
      seconds += form == Form::kWeightTile ? LeastOfWeightGrads(kind, l)
                                           : LeastOfExpert(kind, l);
    }
    return seconds;
  }

  // Every task of the capacity is fetched, with rows or without.
  double LeastOfExpert(int kind, int expert) const {
    const KindInfo& info = kKinds[kind];
    const double rows = routing_.rows[expert];
    const double cols = SizeOf(h_, kBuffers[info.written].cols);
    if (info.info().unit != kAic) {
      return rows * VectorRow(kind).seconds +
             std::ceil(p_.expert_capacity / p_.vector_rows) * Fixed(kind, 0);
    }
    // An AIC that stores rows home itself writes a part of them here.
    const bool home = kind == kDown && f_.aic_home > 0;
    const double width = home ? 0 : Width(info.written);
    const double tasks = std::ceil(p_.expert_capacity / p_.row_block) *
                         std::ceil(cols / p_.col_block);
    return LeastOfGrid(rows, p_.row_block, cols,
                       SizeOf(h_, kBuffers[info.left()].cols), width) +
           tasks * Fixed(kind, 0);
  }

  double LeastOfWeightGrads(int kind, int expert) const {
    const BufferInfo& out = kBuffers[kKinds[kind].written];
    const double rows = SizeOf(h_, out.rows), cols = SizeOf(h_, out.cols);
    const double links = LinksOf(h_), depth = routing_.rows[expert];
    const double width =
        links > 1 ? sim::kFloatBytes : Width(kKinds[kind].written);
    const double whole = std::floor(depth / p_.chain_rows);
    const auto link = [&](double summed) {
      return summed == 0
                 ? 0
                 : LeastOfGrid(rows, p_.weight_rows, cols, summed, width);
    };
    const double tasks = std::ceil(rows / p_.weight_rows) *
                         std::ceil(cols / p_.col_block) * links;
    return whole * link(p_.chain_rows) + link(depth - whole * p_.chain_rows) +
           tasks * Fixed(kind, 0);
  }

  double LeastOfGrid(double rows, double height, double cols, double depth,
                     double width) const {
    double seconds = 0;
    ForEachTile(rows, height, cols, [&](double n, double r, double c) {
      seconds += n * (f_.product + Alone(r, c, depth, width));
    });
    return seconds;
  }

  double LeastOfPuts(int kind, double rows, double height) const {
    const PutRow row = PutRowOf(kind);
    const double least =
        std::max(row.read, row.bytes / std::max(f_.aiv_write, f_.aiv_link));
    return rows * least + rows / height * (Fixed(kind, 0) + f_.put_head);
  }

  double Width(int buffer) const {
    return kBuffers[buffer].element == Element::kFloat ? sim::kFloatBytes
                                                       : e_.bytes;
  }

  // Bytes that a tile of a product reads.
  double ReadBytes(double rows, double cols, double depth) const {
    const sim::Passes passes = sim::PassesOf(f_, rows, cols);
    return rows * depth * e_.bytes * passes.left +
           cols * depth * e_.bytes * passes.right;
  }

  // Seconds of a tile of a product, were nothing shared.
  double Alone(double rows, double cols, double depth, double width) const {
    return sim::ProductSeconds(
        f_, depth, sim::CubeOperations(f_, rows, cols, depth, e_.cube_depth),
        e_.cube, ReadBytes(rows, cols, depth), cols * depth * e_.bytes,
        rows * cols * width);
  }

  double Tile(double rows, double cols, double depth, double width) const {
    const double moved = ReadBytes(rows, cols, depth) + rows * cols * width;
    return std::max(Alone(rows, cols, depth, width),
                    moved / std::min(f_.aic_read, f_.l2 / p_.num_aic));
  }

  // Calls `tile` with a number of tiles, their rows and their columns: those of
  // a grid whose last row and column may be cut.
  template <typename Function>
  void ForEachTile(double rows, double height, double cols,
                   const Function& tile) const {
    const double down = std::floor(rows / height);
    const double across = std::floor(cols / p_.col_block);
    const double last_rows = rows - down * height;
    const double last_cols = cols - across * p_.col_block;
    const auto call = [&](double n, double r, double c) {
      if (n != 0 && r != 0 && c != 0) tile(n, r, c);
    };
    call(down * across, height, p_.col_block);
    call(down, height, last_cols);
    call(across, last_rows, p_.col_block);
    call(1, last_rows, last_cols);
  }

  Work Grid(int kind, double rows, double height, double cols, double depth,
            double width) const {
    Work work;
    ForEachTile(rows, height, cols, [&](double n, double r, double c) {
      const double each =
          Fixed(kind, 1) + f_.product + Tile(r, c, depth, width);
      work.seconds += n * each;
      work.count += n;
      work.longest = std::max(work.longest, each);
    });
    return work;
  }

  Work Gemm(int kind, double rows) const {
    const KindInfo& info = kKinds[kind];
    return Grid(kind, rows, p_.row_block,
                SizeOf(h_, kBuffers[info.written].cols),
                SizeOf(h_, kBuffers[info.left()].cols), Width(info.written));
  }

  Work WeightGrads(int kind, double rows) const {
    const KindInfo& info = kKinds[kind];
    const BufferInfo& out = kBuffers[info.written];
    const double links = LinksOf(h_);
    const double depth = std::min(rows, p_.chain_rows);
    Work work =
        Grid(kind, SizeOf(h_, out.rows), p_.weight_rows, SizeOf(h_, out.cols),
             depth, links > 1 ? 2 * sim::kFloatBytes : Width(info.written));
    const double real = std::max(1.0, std::ceil(rows / p_.chain_rows));
    work.seconds =
        work.seconds * real + (links - real) * work.count * Fixed(kind, 1);
    work.count *= real;
    return work;
  }

  // A row of a vector tile.
  struct Row {
    double seconds;  // were nothing shared
    double bytes;    // that it reads and writes
  };

  Row VectorRow(int kind) const {
    const KindInfo& info = kKinds[kind];
    const double cols = SizeOf(h_, kBuffers[info.written].cols);
    double read = 0, elements = 0;
    for (int i = 0; i < info.num_reads(); ++i) {
      const ReadSpec& spec = info.reads[i];
      if (spec.cols == Cols::kBeside || !Applies(h_, spec.when)) continue;
      const double per = spec.rows == Rows::kSlots ? h_.top_k : 1;
      const double n = per * SizeOf(h_, kBuffers[spec.buffer].cols);
      elements += n;
      read += n * Width(spec.buffer);
    }
    const double ops = sim::VectorOperations(f_, h_, info.work, elements, cols);
    const double written = cols * Width(info.written);
    return {
        std::max({ops / f_.vector, read / f_.aiv_read, written / f_.aiv_write}),
        read + written};
  }

  Work Vector(int kind, double rows, double height) const {
    const bool tokens = kKinds[kind].form() == Form::kTokenTile;
    const Row row = VectorRow(kind);
    Work work;
    work.count = std::ceil(rows / height);
    work.seconds =
        rows * row.seconds + work.count * Fixed(kind, tokens ? 0 : 1);
    work.longest = std::min(rows, height) * row.seconds + Fixed(kind, 1);
    // What was returned is no longer in the cache.
    if (tokens) work.shared = rows * row.bytes / f_.hbm;
    return work;
  }

  // A row that is put.
  struct PutRow {
    double read;   // s to read, to weight and to issue it
    double bytes;  // that are sent
  };

  PutRow PutRowOf(int kind) const {
    const KindInfo& info = kKinds[kind];
    const double elements = SizeOf(h_, kBuffers[info.written].cols);
    const double ops = Applies(h_, info.weighted) ? f_.sum_ops * elements : 0;
    return {
        std::max({ops / f_.vector, elements * Width(info.left()) / f_.aiv_read,
                  f_.put_row}),
        elements * Width(info.written) + sim::BesideBytes(h_, info.written)};
  }

  // Its `shared` is bytes of a row: what a link takes for one is the routing's.
  Work Puts(int kind, double rows, double height) const {
    const KindInfo& info = kKinds[kind];
    const auto [read, bytes] = PutRowOf(kind);
    const double row =
        std::max(read, bytes * ((1 - routing_.remote) / f_.aiv_write +
                                routing_.remote / f_.aiv_link));
    // A put to another rank takes longer than the average one.
    const double worst = std::max(
        read, bytes / (routing_.remote > 0 ? f_.aiv_link : f_.aiv_write));
    const bool slices = info.form() == Form::kSlicePut || p_.by_row == 0;
    const double ranks = slices ? h_.num_ranks : 1;
    const double fixed =
        Fixed(kind, slices ? 1 : h_.num_ranks) + f_.put_head + routing_.latency;
    Work work;
    const double each = rows / ranks;
    // A slice goes in whole puts; a part of it may be less than one.
    work.count = ranks * (slices ? each / std::min(height, each * parts_)
                                 : std::ceil(each / height));
    work.seconds = rows * (Dealt() ? worst : row) + work.count * fixed;
    work.longest =
        std::min(slices ? each * parts_ : each, height) * worst + fixed;
    work.shared = bytes;
    return work;
  }

  // Whether puts to the own rank, which are short, all fall to some cores:
  // destinations and cores take turns alike.
  bool Dealt() const {
    const auto cores =
        static_cast<int64_t>(p_.put_aiv > 0 ? p_.put_aiv : p_.num_aiv);
    return routing_.remote > 0 && std::gcd(cores, int64_t{h_.num_ranks}) > 1;
  }

  struct Last {
    double rows = -1;
    Work work;
  };

  ImageHeader h_;
  const sim::Figures& f_;
  const Elements e_;
  const Routing& routing_;
  const int experts_;
  Point p_ = {};
  int parts_ = 1;
  std::vector<int> kinds_;
  std::vector<int> producers_[kNumTaskKinds];
  Last memo_[kNumTaskKinds];
  std::vector<double> part_rows_, empty_;
  std::map<std::array<double, 7>, std::vector<Stage>> orders_;
  std::vector<double> ends_;
  std::map<std::array<double, 11>, double> floors_;
};

}  // namespace

void Predict(const ImageHeader& header, const sim::Figures& figures,
             const Elements& elements, const Routing& routing,
             const Point* points, int64_t num_points, double* seconds) {
  Predictor predictor(header, figures, elements, routing);
  for (int64_t i = 0; i < num_points; ++i) seconds[i] = predictor.Of(points[i]);
}

void Floor(const ImageHeader& header, const sim::Figures& figures,
           const Elements& elements, const Routing& routing,
           const Point* points, int64_t num_points, double* seconds) {
  Predictor predictor(header, figures, elements, routing);
  for (int64_t i = 0; i < num_points; ++i) {
    seconds[i] = predictor.Floor(points[i]);
  }
}

}  // namespace hpmoe::schedule
