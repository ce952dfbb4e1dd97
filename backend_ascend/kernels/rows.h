// Which rows a task has in a launch, where they lie and what it signals for
// them: address arithmetic over plain pointers, so that host and device compile
// the same lines.  Freestanding, as worker.h is.

#ifndef BACKEND_ASCEND_KERNELS_ROWS_H_
#define BACKEND_ASCEND_KERNELS_ROWS_H_

#include "backend_ascend/kernels/image.h"
#include "backend_ascend/kernels/qualifiers.h"
#include "backend_ascend/kernels/regions.h"
#include "backend_ascend/kernels/worker.h"

namespace hpmoe {

// The plan of a launch, and the image that it is of.
struct PlanView {
  const ImageHeader* image;
  const HPMOE_GM int32_t* counts;       // [R, E] rows of rank r for expert e
  const HPMOE_GM int32_t* row_base;     // [R, E] first of them on e's owner
  const HPMOE_GM int32_t* expert_rows;  // [E] rows of all ranks
  const HPMOE_GM int32_t* expert_base;  // [E] first of them on the owner
  const HPMOE_GM int64_t* slice_begin;  // [R * E + 1] into slice_slots
  const HPMOE_GM int32_t* slice_slots;  // token * K + slot, by (rank, expert)
};

// [begin, end); empty where they are equal.
struct RowRange {
  int32_t begin, end;
  HPMOE_FUNCTION int32_t count() const { return end - begin; }
};

HPMOE_FUNCTION int64_t SliceOf(const TaskDesc& task, int32_t source,
                               const PlanView& plan) {
  return int64_t{source} * plan.image->num_experts + task.expert;
}

// The source rank of the slice that a task's rows lie in, or kRowBlockRange
// where they are an expert's, of all ranks.
HPMOE_FUNCTION int32_t SourceOf(const TaskDesc& task) {
  const Form form = FormOf(task);
  if (form == Form::kSlicePut) return task.rank;
  return form == Form::kHomePut ? task.peer : kRowBlockRange;
}

// Whether the rows of a task's tile do not depend on routing.
HPMOE_FUNCTION bool HasFixedRows(const TaskDesc& task) {
  const Form form = FormOf(task);
  return form == Form::kTokenTile || form == Form::kWeightTile;
}

HPMOE_FUNCTION int32_t RealEnd(const TaskDesc& task, const PlanView& plan) {
  if (HasFixedRows(task)) return task.row_end;
  const int32_t source = SourceOf(task);
  if (source == kRowBlockRange) return plan.expert_rows[task.expert];
  return plan.counts[SliceOf(task, source, plan)];
}

// Rows of the task that exist in this launch: slice rows, rows of the expert,
// rows of the weight, or tokens.
HPMOE_FUNCTION RowRange RealRows(const TaskDesc& task, const PlanView& plan) {
  const int32_t real = RealEnd(task, plan);
  const int32_t end = real < task.row_end ? real : task.row_end;
  return {task.row_begin, end > task.row_begin ? end : task.row_begin};
}

// Row of the written buffer (of its owner) of the task's first real row.
HPMOE_FUNCTION int32_t FirstRow(const TaskDesc& task, const PlanView& plan) {
  if (HasFixedRows(task)) return task.row_begin;
  const int32_t source = SourceOf(task) > 0 ? SourceOf(task) : 0;
  return plan.row_base[SliceOf(task, source, plan)] + task.row_begin;
}

// Rows of the expert over which a weight gradient's task sums.
HPMOE_FUNCTION RowRange SummedRows(const TaskDesc& task, const PlanView& plan) {
  const int64_t rows = plan.expert_rows[task.expert];
  const int64_t begin = int64_t{task.peer} * plan.image->chain_rows;
  const int64_t end = begin + plan.image->chain_rows;
  return {static_cast<int32_t>(begin < rows ? begin : rows),
          static_cast<int32_t>(end < rows ? end : rows)};
}

// token * K + slot of a put's real row `i`, counted from its first.
HPMOE_FUNCTION int32_t SentSlot(const TaskDesc& task, const PlanView& plan,
                                int32_t i) {
  const int64_t slice = SliceOf(task, task.rank, plan);
  return plan.slice_slots[plan.slice_begin[slice] + task.row_begin + i];
}

// Row on the owner behind the last that a source sends to the task's expert.
HPMOE_FUNCTION int32_t SliceEnd(const TaskDesc& task, int32_t source,
                                const PlanView& plan) {
  const int64_t slice = SliceOf(task, source, plan);
  return plan.row_base[slice] + plan.counts[slice];
}

// Calls visit(row on the owner, source rank, token * K + slot) for every row
// that a put home sends, rows ascending.  `slots[row]`, of N rows, are of the
// rank's row headers; a row without one (its dispatch was lost) goes nowhere.
template <class Slots, class Visit>
HPMOE_FUNCTION void ForEachReturned(const TaskDesc& task, const PlanView& plan,
                                    Slots&& slots, Visit visit) {
  const RowRange rows = RealRows(task, plan);
  const int32_t first = FirstRow(task, plan);
  const bool whole_expert = task.peer == kRowBlockRange;
  int32_t source = whole_expert ? 0 : task.peer;
  for (int32_t row = first; row < first + rows.count(); ++row) {
    while (whole_expert && row >= SliceEnd(task, source, plan)) ++source;
    const int32_t slot = slots[row];
    if (slot >= 0) visit(row, source, slot);
  }
}

// The task that sends an expert's last row; source rank 0's first where the
// expert has none.
HPMOE_FUNCTION bool SendsLastRow(const TaskDesc& task, const PlanView& plan) {
  if (plan.expert_rows[task.expert] == 0) {
    return task.rank == 0 && task.row_begin == 0;
  }
  const HPMOE_GM int32_t* counts = plan.counts + task.expert;
  int64_t source = plan.image->num_ranks - 1;
  while (counts[source * plan.image->num_experts] == 0) --source;
  const int32_t last = counts[source * plan.image->num_experts] - 1;
  return task.rank == source && task.row_begin <= last && last < task.row_end;
}

// Counts the rows that go home to the rank of a signal.
template <class Platform>
struct CountHome {
  RowSignal<Platform>& rows;
  int32_t rank;

  HPMOE_FUNCTION void operator()(int32_t, int32_t source, int32_t slot) const {
    if (source == rank) rows.Row(slot);
  }
};

// Only puts count rows.  `events` are those of the signal, `slots` as above.
template <class Platform, class Slots>
HPMOE_FUNCTION void SignalRows(Platform& platform, const TaskDesc& task,
                               const SignalDesc& signal,
                               const HPMOE_GM EventDesc* events,
                               const PlanView& plan, Slots&& slots) {
  RowSignal<Platform> rows(platform, signal, events->part_rows);
  if (FormOf(task) == Form::kHomePut) {
    ForEachReturned(task, plan, slots, CountHome<Platform>{rows, signal.rank});
    return rows.Flush();
  }
  if (FormOf(task) != Form::kSlicePut) return;
  const int32_t first = FirstRow(task, plan) - plan.expert_base[task.expert];
  const int32_t count = RealRows(task, plan).count();
  for (int32_t row = first; row < first + count; ++row) rows.Row(row);
  rows.Flush();
  if (SendsLastRow(task, plan)) {
    AddPadding(platform, signal, events, plan.expert_rows[task.expert]);
  }
}

// What a task signals when it has run; `signals` and `events` are the image's.
template <class Platform, class Slots>
HPMOE_FUNCTION void SignalTask(Platform& platform, const TaskDesc& task,
                               const HPMOE_GM SignalDesc* signals,
                               const HPMOE_GM EventDesc* events,
                               const PlanView& plan, Slots&& slots) {
  for (uint32_t s = 0; s < task.signal_count; ++s) {
    const HPMOE_GM SignalDesc& from = signals[task.signal_begin + s];
    const SignalDesc signal = {from.event, from.span, from.amount, from.rank};
    if (signal.amount == kPerRow) {
      SignalRows(platform, task, signal, events + signal.event, plan, slots);
    } else {
      platform.Add(signal, signal.event, signal.amount);
    }
  }
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_ROWS_H_
