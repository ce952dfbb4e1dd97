#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "backend_ascend/taskflow/proofs/proofs_rules.h"

namespace hpmoe::proofs {
namespace {

// Rows of a read, in terms of the reader's tile.
enum class Rows : uint8_t {
  kTile,
  kTileCols,  // the tile's columns: a transposed weight
  kAll,       // of the buffer
  kSlots,     // all slots of the tile's tokens
  kSummed,    // those that a link of a weight gradient sums
  kHome,      // the tile's; of a slice any row of the expert: where it lies
              // there is known at launch only
};

// Columns of a read.  D and F are sizes; the others are in terms of the tile.
enum class Cols : uint8_t {
  kTile,
  kTileRows,   // the tile's rows: the left side of a weight gradient
  kGateAndUp,  // of the tile, and what lies between
  kD,          // [0, D)
  kF,          // [0, F)
  k2F,         // [0, 2F)
  kAfterD,     // column D
  kAfter2F,    // column 2F
};

enum class When : uint8_t { kAlways, kAtCombine, kBeforeDown, kNotFirstLink };

struct ReadSpec {
  TaskKind kind;
  BufferId buffer;
  Rows rows;
  Cols cols;
  When when = When::kAlways;
};

// All that each kind reads.  By kind.
constexpr ReadSpec kReads[] = {
    {kDispatch, kX, Rows::kAll, Cols::kD},
    {kGateUp, kExpertIn, Rows::kTile, Cols::kD},
    {kGateUp, kWGateUp, Rows::kAll, Cols::kTile},
    {kSwiglu, kGateUpBuffer, Rows::kTile, Cols::kGateAndUp},
    {kSwiglu, kExpertIn, Rows::kTile, Cols::kAfterD, When::kBeforeDown},
    {kDown, kActivation, Rows::kTile, Cols::kF},
    {kDown, kWDown, Rows::kAll, Cols::kTile},
    {kReturn, kExpertOut, Rows::kHome, Cols::kD},
    {kReturn, kExpertIn, Rows::kHome, Cols::kAfterD},
    {kCombine, kReturned, Rows::kSlots, Cols::kTile},
    {kDispatchGrad, kDy, Rows::kAll, Cols::kD},
    {kDownGrad, kDExpertOut, Rows::kTile, Cols::kD},
    {kDownGrad, kWDown, Rows::kTileCols, Cols::kD},
    {kDownWeightGrad, kActivation, Rows::kSummed, Cols::kTileRows},
    {kDownWeightGrad, kDExpertOut, Rows::kSummed, Cols::kTile},
    {kDownWeightGrad, kDWDown, Rows::kTile, Cols::kTile, When::kNotFirstLink},
    {kSwigluGrad, kDActivation, Rows::kTile, Cols::kF},
    {kSwigluGrad, kGateUpBuffer, Rows::kTile, Cols::k2F},
    {kSwigluGrad, kDExpertOut, Rows::kTile, Cols::kAfterD, When::kBeforeDown},
    {kGateUpGrad, kDGateUp, Rows::kTile, Cols::k2F},
    {kGateUpGrad, kWGateUp, Rows::kTileCols, Cols::k2F},
    {kGateUpWeightGrad, kExpertIn, Rows::kSummed, Cols::kTileRows},
    {kGateUpWeightGrad, kDGateUp, Rows::kSummed, Cols::kTile},
    {kGateUpWeightGrad, kDWGateUp, Rows::kTile, Cols::kTile,
     When::kNotFirstLink},
    {kReturnGrad, kDExpertIn, Rows::kHome, Cols::kD},
    {kReturnGrad, kDExpertOut, Rows::kHome, Cols::kAfterD},
    {kReturnGrad, kDGateUp, Rows::kHome, Cols::kAfter2F, When::kBeforeDown},
    {kCombineGrad, kDReturned, Rows::kSlots, Cols::kTile},
    {kTopkWeightGrad, kDy, Rows::kTile, Cols::kD, When::kAtCombine},
    {kTopkWeightGrad, kReturned, Rows::kSlots, Cols::kD, When::kAtCombine},
    {kTopkWeightGrad, kDReturned, Rows::kSlots, Cols::kAfterD,
     When::kBeforeDown},
};

// What tasks touch, as their kind and tile say.
class Touched {
 public:
  explicit Touched(const ImageHeader& header) : h_(header) {
    for (const ReadSpec& spec : kReads) {
      auto& reads = reads_[spec.kind];
      if (reads.begin() == reads.end()) reads.first = &spec;
      reads.last = &spec + 1;
    }
    for (uint16_t b = 0; b < kNumBuffers; ++b) {
      rows_[b] = static_cast<int32_t>(ExtentOf(h_, b, kRows).rows);
      cols_[b] = static_cast<int32_t>(ExtentOf(h_, b, kRows).cols);
    }
    links_ = static_cast<int32_t>(LinksOf(h_));
  }

  RegionDesc Write(const TaskDesc& t) const {
    const uint16_t buffer = kKinds[t.kind].written;
    const Form form = kBuffers[buffer].form;
    RegionDesc w = {buffer,    kRows,       t.rank,    Group(t), t.row_begin,
                    t.row_end, t.col_begin, t.col_end, 0};
    if (IsPut(form)) {
      const bool any = form == Form::kHomePut && t.peer == kRowBlockRange;
      w.view = kSender;
      w.rank = any ? kAnyRank : t.peer;
      w.group = form == Form::kHomePut
                    ? t.expert
                    : t.expert % Local() * h_.num_ranks + t.rank;
      w.col_begin = 0;
      w.col_end = cols_[buffer];
    }
    return w;
  }

  Span<ReadSpec> Reads(const TaskDesc& t) const { return reads_[t.kind]; }

  // The read that a spec says; empty where it does not apply.
  RegionDesc Read(const TaskDesc& t, const ReadSpec& spec) const {
    const bool linked = spec.when == When::kNotFirstLink;
    RegionDesc r = {spec.buffer, kRows, t.rank, 0, 0, 0, 0, 0, 0};
    if (!Applies(t, spec.when)) return r;
    const Form form = FormOf(t);
    const bool global = form == Form::kSlicePut || form == Form::kTokenTile;
    r.group = global ? 0 : linked ? Group(t) - 1 : t.expert % Local();
    std::tie(r.row_begin, r.row_end) = RowsOf(t, spec);
    std::tie(r.col_begin, r.col_end) = ColsOf(t, spec.cols);
    return r;
  }

 private:
  using Interval = std::pair<int32_t, int32_t>;

  int32_t Local() const { return h_.num_experts / h_.num_ranks; }

  // Group of the row view in which the task writes or would.
  int32_t Group(const TaskDesc& t) const {
    const Form form = FormOf(t);
    if (form == Form::kTokenTile) return 0;
    const int32_t expert = t.expert % Local();
    return form == Form::kWeightTile ? expert * links_ + t.peer : expert;
  }

  bool Applies(const TaskDesc& t, When when) const {
    switch (when) {
      case When::kAtCombine:
        return h_.placement == kAtCombine;
      case When::kBeforeDown:
        return h_.placement == kBeforeDown;
      case When::kNotFirstLink:
        return t.peer > 0;
      default:
        return true;
    }
  }

  Interval RowsOf(const TaskDesc& t, const ReadSpec& spec) const {
    const bool slice = FormOf(t) == Form::kHomePut && t.peer != kRowBlockRange;
    switch (spec.rows) {
      case Rows::kTileCols:
        return {t.col_begin, t.col_end};
      case Rows::kAll:
        return {0, rows_[spec.buffer]};
      case Rows::kSlots:
        return {t.row_begin * h_.top_k, t.row_end * h_.top_k};
      case Rows::kSummed: {
        const int64_t begin = int64_t{t.peer} * h_.chain_rows;
        const int64_t end =
            std::min<int64_t>(begin + h_.chain_rows, h_.expert_capacity);
        return {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
      }
      case Rows::kHome:
        if (slice) return {0, rows_[spec.buffer]};
        [[fallthrough]];
      default:
        return {t.row_begin, t.row_end};
    }
  }

  Interval ColsOf(const TaskDesc& t, Cols cols) const {
    const int32_t d = h_.d_model, f = h_.d_ff;
    switch (cols) {
      case Cols::kTileRows:
        return {t.row_begin, t.row_end};
      case Cols::kGateAndUp:
        return {t.col_begin, f + t.col_end};
      case Cols::kD:
        return {0, d};
      case Cols::kF:
        return {0, f};
      case Cols::k2F:
        return {0, 2 * f};
      case Cols::kAfterD:
        return {d, d + 1};
      case Cols::kAfter2F:
        return {2 * f, 2 * f + 1};
      default:
        return {t.col_begin, t.col_end};
    }
  }

  const ImageHeader& h_;
  Span<ReadSpec> reads_[kNumTaskKinds] = {};
  int32_t rows_[kNumBuffers];
  int32_t cols_[kNumBuffers];
  int32_t links_;
};

}  // namespace

// unit: a core can run what its queue holds.
void ProveUnits(Context* c) {
  for (int32_t q = 0; q < c->v.num_queues; ++q) {
    const uint16_t unit = c->v.queues[q].unit;
    for (const uint32_t task : c->QueueTasks(q)) {
      const TaskDesc& t = c->v.tasks[task];
      ++c->result.checked[kUnitRule];
      const uint16_t wanted = kKinds[t.kind].unit;
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

// regions: tasks declare what their kind and tile touch.
void ProveRegions(Context* c) {
  const Touched touched(*c->v.header);
  for (int64_t i = 0; i < c->v.num_tasks; ++i) {
    const TaskDesc& t = c->v.tasks[i];
    ++c->result.checked[kRegionsRule];
    const RegionDesc write = touched.Write(t);
    if (t.write_count != 1 ||
        std::memcmp(c->Writes(t).begin(), &write, sizeof(write)) != 0) {
      c->Refuse(kRegionsRule, i, -1, -1, &write,
                "regions: %s writes %s, which its %d write regions do not say",
                TaskText(*c, i).s, RegionText(write).s, t.write_count);
    }
    const auto reads = c->Reads(t);
    for (const ReadSpec& spec : touched.Reads(t)) {
      const RegionDesc need = touched.Read(t, spec);
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

}  // namespace hpmoe::proofs
