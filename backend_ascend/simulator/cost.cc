#include "backend_ascend/simulator/cost.h"

#include <algorithm>
#include <array>

#include "backend_ascend/simulator/prices.h"

namespace hpmoe::sim {
namespace {

// `weight_rows`: of a tile of a weight's gradient.
int64_t RowsOfPart(const ImageHeader& h, Form form, const ReadSpec& spec,
                   int64_t weight_rows) {
  switch (spec.rows) {
    case Rows::kTileCols:
      return h.col_block;
    case Rows::kSlots:
      return int64_t{h.token_block} * h.top_k;
    case Rows::kSummed:
      return h.chain_rows;
    case Rows::kHome:
      return h.row_block;
    case Rows::kAll:  // a put reads tokens here and there
      return form == Form::kSlicePut ? 1
                                     : SizeOf(h, kBuffers[spec.buffer].rows);
    case Rows::kTile:
      break;
  }
  return form == Form::kWeightTile  ? weight_rows
         : form == Form::kTokenTile ? h.token_block
                                    : h.row_block;
}

int64_t ColsOfPart(const ImageHeader& h, Form form, const ReadSpec& spec,
                   int64_t weight_rows) {
  const bool tiles = form == Form::kExpertTile || form == Form::kWeightTile;
  if (tiles && spec.cols == Cols::kTile) return h.col_block;
  if (tiles && spec.cols == Cols::kTileRows) return weight_rows;
  return SizeOf(h, kBuffers[spec.buffer].cols);
}

struct Parts {
  int64_t rows[kNumBuffers] = {};
  int64_t cols[kNumBuffers] = {};
};

// Rows of the highest task of each kind: a header does not say how high vector
// tiles, puts home and tiles of weight gradients are.
using Heights = std::array<int64_t, kNumTaskKinds>;

Heights HeightsOf(const ImageView& view) {
  Heights heights = {};
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    const TaskDesc& task = view.tasks[t];
    int64_t& rows = heights[task.kind];
    rows = std::max<int64_t>(rows, task.row_end - task.row_begin);
  }
  return heights;
}

// As fine as the finest reader of a buffer needs: a part that is higher than a
// task would be taken as read whole when the first task has read its rows.
Parts PartsOf(const ImageView& view) {
  const ImageHeader& h = *view.header;
  const Heights heights = HeightsOf(view);
  Parts parts;
  const auto refine = [](int64_t* size, int64_t to) {
    *size = *size == 0 ? to : std::min(*size, to);
  };
  for (int k = 0; k < kNumTaskKinds; ++k) {
    if (DirectionOf(k) != static_cast<Direction>(h.direction)) continue;
    if (!HasKind(k, VariantOf(h))) continue;
    for (int i = 0; i < kKinds[k].num_reads(); ++i) {
      const ReadSpec& spec = kKinds[k].reads[i];
      if (!Applies(h, spec.when) || spec.cols == Cols::kBeside) continue;
      const Form form = kKinds[k].form();
      const int64_t weight_rows = heights[k] > 0 ? heights[k] : h.col_block;
      refine(&parts.rows[spec.buffer], RowsOfPart(h, form, spec, weight_rows));
      const bool own = spec.rows == Rows::kTile || spec.rows == Rows::kHome;
      if (own && heights[k] > 0) {
        refine(&parts.rows[spec.buffer], heights[k]);
      }
      refine(&parts.cols[spec.buffer], ColsOfPart(h, form, spec, weight_rows));
    }
  }
  return parts;
}

Caches MakeCaches(const ImageView& view, double l2_bytes, bool shared) {
  const Parts parts = PartsOf(view);
  return {*view.header, l2_bytes, shared, parts.rows, parts.cols};
}

}  // namespace

Launch MakeLaunch(const ImageView& view, const Plan& plan) {
  const ImageHeader& h = *view.header;
  Launch launch = {&view, ViewOf(h, plan), {}, {}};
  launch.slots.assign(int64_t{h.num_ranks} * h.num_rows, -1);
  ForEachPlannedRow(launch.plan, [&](int64_t at, int32_t, int32_t slot) {
    launch.slots[at] = slot;
  });
  if (h.relay != 0) launch.copies.assign(launch.slots.size() * CopiesOf(h), -1);
  ForEachPlannedCopy(launch.plan, [&](int64_t at, int32_t, int32_t row,
                                      int32_t) { launch.copies[at] = row; });
  return launch;
}

CostModel::CostModel(const Launch& launch, const Figures& figures,
                     const FabricTables& fabric, const Pricing& pricing,
                     double l2_bytes)
    : launch_(launch),
      header_(*launch.view->header),
      figures_(figures),
      fabric_(fabric),
      pricing_(pricing),
      touched_(header_),
      caches_(MakeCaches(*launch.view, l2_bytes, figures.threads > 0)),
      rows_to_(header_.num_ranks, 0) {}

Box CostModel::Clip(const TaskDesc& task, const ReadSpec& spec,
                    const RegionDesc& region) const {
  Box box = {region.row_begin, region.row_end, region.col_begin,
             region.col_end};
  if (spec.rows == Rows::kSummed) {
    const RowRange rows = SummedRows(task, launch_.plan);
    box.row_begin = rows.begin;
    box.row_end = rows.end;
  } else if (spec.rows == Rows::kHome) {
    box.row_begin =
        FirstRow(task, launch_.plan) - launch_.plan.expert_base[task.expert];
    box.row_end = box.row_begin + RealRows(task, launch_.plan).count();
  } else if (spec.rows == Rows::kTile && spec.when != When::kNotFirstLink) {
    const RowRange rows = RealRows(task, launch_.plan);
    box.row_begin = rows.begin;
    box.row_end = rows.end;
  }
  return box;
}

// All that the task reads, through the caches; what its core reads again
// because its accumulators hold a part of its tile only, it finds there.
double CostModel::ReadBoxes(const TaskDesc& task, Cost* cost) {
  const KindInfo& kind = KindOf(task);
  double elements = 0;
  for (int i = 0; i < kind.num_reads(); ++i) {
    const ReadSpec& spec = kind.reads[i];
    if (spec.cols == Cols::kBeside || !Applies(header_, spec.when)) continue;
    const RegionDesc region = touched_.Read(task, spec);
    const Box box = Clip(task, spec, region);
    const bool sum = spec.when == When::kNotFirstLink;
    const double width =
        sum ? kFloatBytes : pricing_.element_bytes[spec.buffer];
    cost->missed +=
        caches_.Read(task.rank, spec.buffer, region.group, box, width);
    cost->read += static_cast<double>(box.elements()) * width;
    elements += static_cast<double>(box.elements());
  }
  return elements;
}

bool CostModel::StoresHome() const {
  return figures_.aic_home > 0 && header_.direction == kForward;
}

// Its rows go home from the accumulators: nothing of other ranks is written
// here, and no put reads it.
void CostModel::StoreHome(const TaskDesc& task, double cols, Cost* cost) {
  const double width = pricing_.element_bytes[kReturned];
  const int32_t base = launch_.plan.expert_base[task.expert];
  const RowRange rows = RealRows(task, launch_.plan);
  const int32_t* const slots = launch_.Slots(task.rank);
  int32_t source = 0;
  for (int32_t row = base + rows.begin; row < base + rows.end; ++row) {
    while (row >= SliceEnd(task, source, launch_.plan)) ++source;
    if (slots[row] >= 0) ++rows_to_[source];
  }
  cost->written = 0;
  for (int32_t rank = 0; rank < header_.num_ranks; ++rank) {
    const double bytes = rows_to_[rank] * cols * width;
    rows_to_[rank] = 0;
    if (bytes == 0) continue;
    sent_.push_back({rank, bytes});
    (rank == task.rank ? cost->written : cost->linked) += bytes;
  }
}

void CostModel::Cube(const TaskDesc& task, Cost* cost) {
  const KindInfo& kind = KindOf(task);
  const RegionDesc written = touched_.Write(task);
  const RowRange tile = RealRows(task, launch_.plan);
  const Box box = {tile.begin, tile.end, written.col_begin, written.col_end};
  const auto rows = static_cast<double>(box.rows());
  const auto cols = static_cast<double>(box.cols());
  const bool grad = kind.work == Work::kWeightGrad;
  const Box left =
      Clip(task, kind.reads[0], touched_.Read(task, kind.reads[0]));
  const auto depth = static_cast<double>(grad ? left.rows() : left.cols());
  cost->flops = 2 * rows * cols * depth;
  ReadBoxes(task, cost);
  const Passes passes = PassesOf(figures_, rows, cols);
  cost->read +=
      rows * depth * pricing_.element_bytes[kind.left()] * (passes.left - 1) +
      cols * depth * pricing_.element_bytes[kind.right()] * (passes.right - 1);
  const bool sum = grad && LinksOf(header_) > 1;
  const double width =
      sum ? kFloatBytes : pricing_.element_bytes[written.buffer];
  cost->written = rows * cols * width;
  if (StoresHome() && task.kind == kDown) {
    StoreHome(task, cols, cost);
  } else {
    caches_.Write(task.rank, written.buffer, written.group, box, width);
  }
  cost->own = ProductSeconds(
      figures_, depth,
      CubeOperations(figures_, rows, cols, depth, pricing_.cube_depth),
      pricing_.cube, cost->read,
      cols * depth * pricing_.element_bytes[kind.right()], cost->written);
  if (cost->linked > 0) cost->own += cost->linked / figures_.aic_home;
  cost->fixed += figures_.product;
}

void CostModel::Vector(const TaskDesc& task, Cost* cost) {
  const RegionDesc written = touched_.Write(task);
  const RowRange tile = RealRows(task, launch_.plan);
  const Box box = {tile.begin, tile.end, written.col_begin, written.col_end};
  const auto elements = static_cast<double>(box.elements());
  const double read = ReadBoxes(task, cost);
  const double ops =
      VectorOperations(figures_, header_, KindOf(task).work, read, elements);
  const double width = pricing_.element_bytes[written.buffer];
  cost->flops = ops;
  cost->written = elements * width;
  caches_.Write(task.rank, written.buffer, written.group, box, width);
  cost->own = std::max({ops / figures_.vector, cost->read / figures_.aiv_read,
                        cost->written / figures_.aiv_write});
}

void CostModel::SendRows(const TaskDesc& task, Cost* cost) {
  const KindInfo& kind = KindOf(task);
  const int32_t count = RealRows(task, launch_.plan).count();
  const int64_t cols = SizeOf(header_, kBuffers[kind.written].cols);
  const double width = pricing_.element_bytes[kind.left()];
  for (int32_t i = 0; i < count; ++i) {
    const int64_t token = SentSlot(task, launch_.plan, i) / header_.top_k;
    cost->missed += caches_.Read(task.rank, kind.left(), 0,
                                 {token, token + 1, 0, cols}, width);
  }
  cost->read = static_cast<double>(count) * static_cast<double>(cols) * width;
  const int64_t first = FirstRow(task, launch_.plan) -
                        SlicesOf(task, launch_.plan).expert_base[task.expert];
  caches_.Write(task.peer, kind.written, task.expert % LocalExperts(header_),
                {first, first + count, 0, cols},
                pricing_.element_bytes[kind.written]);
  rows_to_[task.peer] += count;
}

void CostModel::SendHome(const TaskDesc& task, Cost* cost) {
  const KindInfo& kind = KindOf(task);
  const int64_t cols = SizeOf(header_, kBuffers[kind.written].cols);
  const double width = pricing_.element_bytes[kind.written];
  if (!StoresHome()) ReadBoxes(task, cost);
  ForEachReturned(task, launch_.plan, launch_.Slots(task.rank),
                  [&](int32_t, int32_t home, int32_t slot) {
                    if (!StoresHome()) ++rows_to_[home];
                    caches_.Write(home, kind.written, 0,
                                  {slot, int64_t{slot} + 1, 0, cols}, width);
                  });
}

// In the memory of its rank.
void CostModel::Relay(const TaskDesc& task, Cost* cost) {
  const KindInfo& kind = KindOf(task);
  const int64_t cols = SizeOf(header_, kBuffers[kind.written].cols);
  const double width = pricing_.element_bytes[kind.written];
  const int32_t* const base = launch_.plan.expert_base;
  const int32_t local = LocalExperts(header_), first = task.rank * local;
  ReadBoxes(task, cost);
  ForEachCopy(task, launch_.plan, launch_.Copies(task.rank),
              [&](int64_t, int32_t row) {
                ++rows_to_[task.rank];
                const int32_t* const end = base + first + local;
                const auto expert = static_cast<int32_t>(
                    std::upper_bound(base + first, end, row) - base - 1);
                const int64_t in = row - base[expert];
                caches_.Write(task.rank, kind.written, expert - first,
                              {in, in + 1, 0, cols}, width);
              });
}

void CostModel::Send(const TaskDesc& task, Cost* cost) {
  const KindInfo& kind = KindOf(task);
  if (kind.form() == Form::kSlicePut) {
    SendRows(task, cost);
  } else if (kind.form() == Form::kRelayTile) {
    Relay(task, cost);
  } else {
    SendHome(task, cost);
  }
  const auto cols =
      static_cast<double>(SizeOf(header_, kBuffers[kind.written].cols));
  const double row = cols * pricing_.element_bytes[kind.written] +
                     BesideBytes(header_, kind.written);
  double latency = 0, held_up = 0, moves = 0;
  for (int32_t rank = 0; rank < header_.num_ranks; ++rank) {
    const int32_t rows = rows_to_[rank];
    if (rows == 0) continue;
    rows_to_[rank] = 0;
    const double bytes = rows * row;
    moves += rows * figures_.put_row;
    sent_.push_back({rank, bytes});
    (rank == task.rank ? cost->written : cost->linked) += bytes;
    const double away =
        fabric_.latency[int64_t{task.rank} * header_.num_ranks + rank];
    latency = std::max(latency, away);
    if (rank != task.rank) held_up += bytes * HeldUp(figures_, away);
  }
  cost->fixed += figures_.put_head + latency;
  const bool weighted = Applies(header_, kind.weighted);
  const double elements = cost->read / pricing_.element_bytes[kind.left()];
  const double ops = elements * ((weighted ? figures_.sum_ops : 0) +
                                 SentOperations(header_, kind.work));
  cost->own =
      std::max({ops / figures_.vector, cost->read / figures_.aiv_read, moves,
                cost->written / figures_.aiv_write +
                    cost->linked / figures_.aiv_link + held_up});
}

Cost CostModel::Of(const TaskDesc& task) {
  sent_.clear();
  Cost cost;
  if (pricing_.skipped[task.kind]) return cost;
  const WorkInfo& info = KindOf(task).info();
  cost.fixed = (info.unit == kAic ? figures_.aic_task : figures_.aiv_task) +
               SignalSeconds(figures_, info.unit, task.signal_count);
  if (RealRows(task, launch_.plan).count() == 0) return cost;
  if (IsPut(info.form)) {
    Send(task, &cost);
  } else if (info.unit == kAic) {
    Cube(task, &cost);
  } else {
    Vector(task, &cost);
  }
  return cost;
}

}  // namespace hpmoe::sim
