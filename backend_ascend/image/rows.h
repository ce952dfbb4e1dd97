// Which rows a task has in a launch, where they lie and what it signals for
// them: address arithmetic over plain pointers, so that host and device compile
// the same lines.  Freestanding, as worker.h is.

#ifndef BACKEND_ASCEND_IMAGE_ROWS_H_
#define BACKEND_ASCEND_IMAGE_ROWS_H_

#include "backend_ascend/image/image.h"
#include "backend_ascend/image/qualifiers.h"
#include "backend_ascend/image/regions.h"
#include "backend_ascend/image/worker.h"

namespace hpmoe {

// Slices of (source rank, expert), and where they lie.
struct SliceTables {
  const HPMOE_GM int32_t* counts;       // [R, E] rows of rank r for expert e
  const HPMOE_GM int32_t* row_base;     // [R, E] first of them on e's owner
  const HPMOE_GM int32_t* expert_rows;  // [E] rows of all ranks
  const HPMOE_GM int32_t* expert_base;  // [E] first of them on the owner
  const HPMOE_GM int64_t* slice_begin;  // [R * E + 1] into slice_slots
  const HPMOE_GM int32_t* slice_slots;  // token * K + slot, by (rank, expert)
};

// The plan of a launch, and the image that it is of.
struct PlanView : SliceTables {
  const ImageHeader* image;
  // With relay: the slices of relayed rows, and what each of their rows copies
  // to, CopiesOf each in the order of once.slice_slots.
  SliceTables once;
  const HPMOE_GM int32_t* copy_rows;   // packed rows on the owner, or -1
  const HPMOE_GM int32_t* copy_slots;  // token * K + slot
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

// The slices that a task's rows are of.
HPMOE_FUNCTION const SliceTables& SlicesOf(const TaskDesc& task,
                                           const PlanView& plan) {
  const Form form = FormOf(task);
  const bool relayed = form == Form::kSlicePut || form == Form::kRelayTile;
  return plan.image->relay != 0 && relayed ? plan.once : plan;
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
  const SliceTables& slices = SlicesOf(task, plan);
  if (source == kRowBlockRange) return slices.expert_rows[task.expert];
  return slices.counts[SliceOf(task, source, plan)];
}

// Rows of the task that exist in this launch: slice rows, rows of the expert,
// relayed rows, rows of the weight, or tokens.
HPMOE_FUNCTION RowRange RealRows(const TaskDesc& task, const PlanView& plan) {
  const int32_t real = RealEnd(task, plan);
  const int32_t end = real < task.row_end ? real : task.row_end;
  return {task.row_begin, end > task.row_begin ? end : task.row_begin};
}

// Row of the written buffer (of its owner) of the task's first real row; of a
// relay, of the buffer that it reads.
HPMOE_FUNCTION int32_t FirstRow(const TaskDesc& task, const PlanView& plan) {
  if (HasFixedRows(task)) return task.row_begin;
  const int32_t source = SourceOf(task) > 0 ? SourceOf(task) : 0;
  return SlicesOf(task, plan).row_base[SliceOf(task, source, plan)] +
         task.row_begin;
}

// Rows of the expert over which a weight gradient's task sums.
HPMOE_FUNCTION RowRange SummedRows(const TaskDesc& task, const PlanView& plan) {
  const int64_t rows = plan.expert_rows[task.expert];
  const int64_t begin = int64_t{task.peer} * plan.image->chain_rows;
  const int64_t end = begin + plan.image->chain_rows;
  return {static_cast<int32_t>(begin < rows ? begin : rows),
          static_cast<int32_t>(end < rows ? end : rows)};
}

// Place in slice_slots of a put's real row `i`, counted from its first.
HPMOE_FUNCTION int64_t SentAt(const TaskDesc& task, const PlanView& plan,
                              int32_t i) {
  const int64_t slice = SliceOf(task, task.rank, plan);
  return SlicesOf(task, plan).slice_begin[slice] + task.row_begin + i;
}

// token * K + slot of a put's real row `i`, counted from its first.
HPMOE_FUNCTION int32_t SentSlot(const TaskDesc& task, const PlanView& plan,
                                int32_t i) {
  return SlicesOf(task, plan).slice_slots[SentAt(task, plan, i)];
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

// Calls visit(place in `copies`, row of the copy) for every copy that a relay
// makes, relayed rows ascending.  `copies[row * CopiesOf + i]`, of N rows, is
// where the rank's relayed rows go: a row of the rank, or -1 (or its put was
// lost).
template <class Copies, class Visit>
HPMOE_FUNCTION void ForEachCopy(const TaskDesc& task, const PlanView& plan,
                                Copies&& copies, Visit visit) {
  const int32_t count = RealRows(task, plan).count();
  const int32_t first = FirstRow(task, plan), per = CopiesOf(*plan.image);
  for (int32_t row = first; row < first + count; ++row) {
    for (int32_t i = 0; i < per; ++i) {
      const int64_t at = int64_t{row} * per + i;
      const int32_t to = copies[at];
      if (to >= 0) visit(at, to);
    }
  }
}

// Calls visit(at, source, slot) for each row that is put, as if all ranks were
// held: `at` into [R, N], `slot` of the source rank.
template <class Visit>
HPMOE_FUNCTION void ForEachPlannedRow(const PlanView& plan, Visit visit) {
  const ImageHeader& image = *plan.image;
  const int64_t experts = image.num_experts;
  for (int64_t s = 0; s < image.num_ranks * experts; ++s) {
    const int64_t owner = s % experts / LocalExperts(image);
    const int64_t row = owner * image.num_rows + plan.row_base[s];
    const int64_t from = plan.slice_begin[s];
    for (int64_t i = 0; i < plan.counts[s]; ++i) {
      visit(row + i, static_cast<int32_t>(s / experts),
            plan.slice_slots[from + i]);
    }
  }
}

// Calls visit(place in [R, N, CopiesOf], source rank, row of the copy, slot)
// for every copy of every relayed row, from a plan of all ranks.
template <class Visit>
HPMOE_FUNCTION void ForEachPlannedCopy(const PlanView& plan, Visit visit) {
  const ImageHeader& image = *plan.image;
  const int64_t per = CopiesOf(image), experts = image.num_experts;
  for (int64_t s = 0; image.relay != 0 && s < image.num_ranks * experts; ++s) {
    const int64_t owner = s % experts / LocalExperts(image);
    const int64_t row = owner * image.num_rows + plan.once.row_base[s];
    const int64_t from = plan.once.slice_begin[s] * per;
    for (int64_t i = 0; i < plan.once.counts[s] * per; ++i) {
      if (plan.copy_rows[from + i] < 0) continue;
      visit(row * per + i, static_cast<int32_t>(s / experts),
            plan.copy_rows[from + i], plan.copy_slots[from + i]);
    }
  }
}

// The task that sends an expert's last row; source rank 0's first where the
// expert has none.
HPMOE_FUNCTION bool SendsLastRow(const TaskDesc& task, const PlanView& plan) {
  const SliceTables& slices = SlicesOf(task, plan);
  if (slices.expert_rows[task.expert] == 0) {
    return task.rank == 0 && task.row_begin == 0;
  }
  const HPMOE_GM int32_t* counts = slices.counts + task.expert;
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

// Counts the copies that go to the expert of a signal.
template <class Platform>
struct CountCopies {
  RowSignal<Platform>& rows;
  int32_t begin, end;  // rows of the expert
  bool* last;          // whether its last one is among them

  HPMOE_FUNCTION void operator()(int64_t, int32_t row) const {
    if (row < begin || row >= end) return;
    rows.Row(row - begin);
    *last = *last || row == end - 1;
  }
};

// A relay into one expert of its rank: who copies the last row adds the
// padding; the expert's own first relay where there is none.
template <class Platform, class Copies>
HPMOE_FUNCTION void SignalCopies(Platform& platform, const TaskDesc& task,
                                 const SignalDesc& signal,
                                 const HPMOE_GM EventDesc* events,
                                 const PlanView& plan, Copies&& copies) {
  RowSignal<Platform> rows(platform, signal, events->part_rows);
  const int32_t expert = task.rank * LocalExperts(*plan.image) + events->group;
  const int32_t begin = plan.expert_base[expert];
  const int32_t count = plan.expert_rows[expert];
  bool last = count == 0 && task.expert == expert && task.row_begin == 0;
  ForEachCopy(task, plan, copies,
              CountCopies<Platform>{rows, begin, begin + count, &last});
  rows.Flush();
  if (last) AddPadding(platform, signal, events, count);
}

// Only puts count rows.  `events` are those of the signal, `slots` as above; of
// a relay, where its copies go.
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
  if (FormOf(task) == Form::kRelayTile) {
    return SignalCopies(platform, task, signal, events, plan, slots);
  }
  if (FormOf(task) != Form::kSlicePut) return;
  const SliceTables& slices = SlicesOf(task, plan);
  const int32_t first = FirstRow(task, plan) - slices.expert_base[task.expert];
  const int32_t count = RealRows(task, plan).count();
  for (int32_t row = first; row < first + count; ++row) rows.Row(row);
  rows.Flush();
  if (SendsLastRow(task, plan)) {
    AddPadding(platform, signal, events, slices.expert_rows[task.expert]);
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

#endif  // BACKEND_ASCEND_IMAGE_ROWS_H_
