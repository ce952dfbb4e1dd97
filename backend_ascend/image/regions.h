// What tasks touch and how large buffers are, as the tables of kinds.h say:
// one reading of them for loader, proofs, runtimes and lowering.  Freestanding.

#ifndef BACKEND_ASCEND_IMAGE_REGIONS_H_
#define BACKEND_ASCEND_IMAGE_REGIONS_H_

#include "backend_ascend/image/image.h"
#include "backend_ascend/image/kinds.h"
#include "backend_ascend/image/qualifiers.h"

namespace hpmoe {

HPMOE_FUNCTION const KindInfo& KindOf(const TaskDesc& task) {
  return kKinds[task.kind];
}

// Compares instead of indexing: a device's memory need not hold the table.
template <int kKind = 0>
HPMOE_FUNCTION Form FormOf(const TaskDesc& task) {
  if constexpr (kKind + 1 < kNumTaskKinds) {
    if (task.kind != kKind) return FormOf<kKind + 1>(task);
  }
  constexpr Form kForm = kKinds[kKind].form();
  return kForm;
}

HPMOE_FUNCTION int32_t LocalExperts(const ImageHeader& h) {
  return h.num_experts / h.num_ranks;
}

// Copies of a relayed row: a token's most experts on one rank.
HPMOE_FUNCTION int32_t CopiesOf(const ImageHeader& h) {
  return h.top_k < LocalExperts(h) ? h.top_k : LocalExperts(h);
}

HPMOE_FUNCTION int VariantOf(const ImageHeader& h) {
  if (h.span == kSublayer) return kIsSublayer;
  return h.relay != 0 ? kIsRelayed : kIsDirect;
}

// Of a pass in task order: the kind that stands first.
HPMOE_FUNCTION int FirstKind(const ImageHeader& h) {
  if (h.span != kSublayer) return 0;
  return h.direction == kForward ? kDown : kGateUpGrad;
}

HPMOE_FUNCTION Form BufferForm(const ImageHeader& h, int buffer) {
  return BufferForm(buffer, VariantOf(h));
}

// A buffer's use in the image's pass: relayed rows are absent without relay.
HPMOE_FUNCTION Use PassUse(const ImageHeader& h, int buffer) {
  if (h.span == kSublayer) return kSublayerUses.of[h.direction][buffer];
  const Use use = kBuffers[buffer].use[h.direction];
  const bool nobody = BufferForm(h, buffer) == Form::kNone;
  return use == Use::kWritten && nobody ? Use::kAbsent : use;
}

HPMOE_FUNCTION bool IsWritten(const ImageHeader& h, int buffer) {
  return PassUse(h, buffer) == Use::kWritten;
}

// Links of one weight gradient's chain.
HPMOE_FUNCTION int64_t LinksOf(const ImageHeader& h) {
  return (int64_t{h.expert_capacity} + h.chain_rows - 1) / h.chain_rows;
}

HPMOE_FUNCTION int64_t SizeOf(const ImageHeader& h, Axis axis) {
  switch (axis) {
    case Axis::kT:
      return h.num_tokens;
    case Axis::kTK:
      return int64_t{h.num_tokens} * h.top_k;
    case Axis::kC:
      return h.expert_capacity;
    case Axis::kD:
      return h.d_model;
    case Axis::kF:
      return h.d_ff;
    case Axis::k2F:
      return 2 * int64_t{h.d_ff};
    case Axis::kOne:
      return 1;
    default:
      return h.top_k;
  }
}

// Whether an expert's rank applies the routing weights: gradients of weights
// are then made there.
HPMOE_FUNCTION bool IsEarly(const ImageHeader& h) {
  return h.placement == kBeforeDown || h.placement == kInEpilogue;
}

// Whether gradients of weights go home with their rows.
HPMOE_FUNCTION bool WeightsTravel(const ImageHeader& h) {
  return h.direction == kBackward && IsEarly(h);
}

HPMOE_FUNCTION bool IsQuantised(const ImageHeader& h) {
  return h.quantised != kOfValues;
}

HPMOE_FUNCTION Element ElementOf(const ImageHeader& h, int buffer) {
  const Element element = kBuffers[buffer].element;
  const bool fixed = element == Element::kFloat || IsQuantised(h);
  return fixed ? element : Element::kStored;
}

HPMOE_FUNCTION int64_t ElementBytes(const ImageHeader& h, int buffer) {
  switch (ElementOf(h, buffer)) {
    case Element::kCode:
      return sizeof(int8_t);
    case Element::kSum:
      return sizeof(int32_t);
    case Element::kFloat:
      return sizeof(float);
    default:
      return BytesOf(DType{h.dtype});
  }
}

// Columns beside those of a buffer's tensor.
HPMOE_FUNCTION int32_t BesideOf(const ImageHeader& h, int buffer) {
  const Beside beside = kBuffers[buffer].beside;
  return beside == Beside::kHeader || beside == Beside::kHeaders ||
         (beside == Beside::kGrad && IsEarly(h)) ||
         (beside == Beside::kScale && IsQuantised(h));
}

// float32 scales of a buffer of codes: one for each row, of a weight one for
// each column of each expert of all ranks.  0: it has none.
HPMOE_FUNCTION int64_t NumScales(const ImageHeader& h, int buffer) {
  if (ElementOf(h, buffer) != Element::kCode) return 0;
  if (PassUse(h, buffer) == Use::kAbsent) return 0;
  const BufferInfo& info = kBuffers[buffer];
  return IsWeight(info.rows) ? h.num_experts * SizeOf(h, info.cols)
                             : int64_t{h.num_ranks} * h.num_rows;
}

// Whether a kind writes all columns, whatever those of the task: the scale of a
// row of codes is that of all of it.
HPMOE_FUNCTION bool WritesWholeRows(const ImageHeader& h,
                                    const KindInfo& kind) {
  return kind.info().whole_rows ||
         (kind.work == Work::kActivation && IsQuantised(h));
}

// Logical size of a buffer on one rank.
struct Extent {
  int64_t groups;
  int64_t rows;
  int64_t cols;
};

// A token goes to an expert once, so a slice has at most T rows.
HPMOE_FUNCTION int64_t SliceRows(const ImageHeader& h) {
  return h.num_tokens < h.expert_capacity ? h.num_tokens : h.expert_capacity;
}

// All zeros when the image's direction has no such buffer, or not in that view.
HPMOE_FUNCTION Extent ExtentOf(const ImageHeader& h, int buffer, int view) {
  const BufferInfo& info = kBuffers[buffer];
  const Use use = PassUse(h, buffer);
  if (use == Use::kAbsent) return {0, 0, 0};
  const int64_t cols = SizeOf(h, info.cols) + BesideOf(h, buffer);
  const Form form = BufferForm(h, buffer);
  if (view == kSender) {
    if (use == Use::kInput || !IsPut(form)) return {0, 0, 0};
    if (form == Form::kRelayTile) {
      return {LocalExperts(h), h.expert_capacity, cols};
    }
    const bool blocks =
        form == Form::kHomePut && h.event_grain == kRowBlockGrain;
    return {h.num_experts, blocks ? h.expert_capacity : SliceRows(h), cols};
  }
  int64_t groups = 1;
  if (info.rows == Axis::kC || IsWeight(info.rows)) groups = LocalExperts(h);
  if (form == Form::kWeightTile) groups *= LinksOf(h);
  return {groups, SizeOf(h, info.rows), cols};
}

HPMOE_FUNCTION bool Applies(const ImageHeader& h, When when) {
  switch (when) {
    case When::kUnweighted:
      return false;
    case When::kAtCombine:
      return h.placement == kAtCombine;
    case When::kBeforeDown:
      return h.placement == kBeforeDown;
    case When::kInEpilogue:
      return h.placement == kInEpilogue;
    case When::kEarly:
      return IsEarly(h);
    case When::kNotFirstLink:
      return LinksOf(h) > 1;
    case When::kInLayer:
      return h.span != kSublayer;
    case When::kQuantised:
      return IsQuantised(h);
    case When::kBeforeDownOrQuantised:
      return h.placement == kBeforeDown || IsQuantised(h);
    default:
      return true;
  }
}

// How an image uses a buffer: an input that its policy never reads is absent.
HPMOE_FUNCTION Use UseOf(const ImageHeader& h, int buffer) {
  const Use use = PassUse(h, buffer);
  if (use != Use::kInput) return use;
  for (int k = 0; k < kNumTaskKinds; ++k) {
    if (DirectionOf(k) != static_cast<Direction>(h.direction)) continue;
    if (!HasKind(k, VariantOf(h))) continue;
    for (const ReadSpec& read : kKinds[k].reads) {
      if (read.buffer == buffer && Applies(h, read.when)) return use;
    }
  }
  return Use::kAbsent;
}

struct Interval {
  int32_t begin, end;
};

// The regions that a task of an image touches, as its kind and tile say.
class Touched {
 public:
  HPMOE_FUNCTION explicit Touched(const ImageHeader& header)
      : h_(header),
        local_(LocalExperts(header)),
        links_(static_cast<int32_t>(LinksOf(header))) {
    for (int b = 0; b < kNumBuffers; ++b) extents_[b] = ExtentOf(h_, b, kRows);
  }

  HPMOE_FUNCTION RegionDesc Write(const TaskDesc& t) const {
    const KindInfo& kind = KindOf(t);
    const Form form = kind.form();
    RegionDesc w = {kind.written, kRows,       t.rank,    Group(t), t.row_begin,
                    t.row_end,    t.col_begin, t.col_end, 0};
    if (WritesWholeRows(h_, kind)) {
      w.col_begin = 0;
      w.col_end = static_cast<int32_t>(extents_[w.buffer].cols);
    }
    if (!IsPut(form)) return w;
    const bool home = form == Form::kHomePut;
    w.view = kSender;
    if (form == Form::kRelayTile) return w;
    w.rank = home && t.peer == kRowBlockRange ? kAnyRank : t.peer;
    w.group = home ? t.expert : t.expert % local_ * h_.num_ranks + t.rank;
    return w;
  }

  // The read that a spec says; empty where it does not apply.
  HPMOE_FUNCTION RegionDesc Read(const TaskDesc& t,
                                 const ReadSpec& spec) const {
    RegionDesc r = {spec.buffer, kRows, t.rank, 0, 0, 0, 0, 0, 0};
    if (!Applies(h_, spec.when)) return r;
    const Form form = FormOf(t);
    const bool linked = spec.when == When::kNotFirstLink;
    const bool global = form == Form::kSlicePut || form == Form::kTokenTile;
    r.group = global ? 0 : linked ? Group(t) : t.expert % local_;
    const Interval rows = RowsOf(t, spec), cols = ColsOf(t, spec);
    r.row_begin = rows.begin;
    r.row_end = rows.end;
    r.col_begin = cols.begin;
    r.col_end = cols.end;
    if (linked && t.peer == 0) r.row_end = r.row_begin;
    if (linked && t.peer > 0) --r.group;
    return r;
  }

 private:
  // Group of the row view in which the task writes or would.
  HPMOE_FUNCTION int32_t Group(const TaskDesc& t) const {
    const Form form = FormOf(t);
    if (form == Form::kTokenTile) return 0;
    const int32_t expert = t.expert % local_;
    return form == Form::kWeightTile ? expert * links_ + t.peer : expert;
  }

  HPMOE_FUNCTION Interval RowsOf(const TaskDesc& t,
                                 const ReadSpec& spec) const {
    const Interval all = {0, static_cast<int32_t>(extents_[spec.buffer].rows)};
    switch (spec.rows) {
      case Rows::kTileCols:
        return {t.col_begin, t.col_end};
      case Rows::kAll:
        return all;
      case Rows::kSlots:
        return {t.row_begin * h_.top_k, t.row_end * h_.top_k};
      case Rows::kSummed: {
        const int64_t begin = int64_t{t.peer} * h_.chain_rows;
        const int64_t end = begin + h_.chain_rows;
        return {static_cast<int32_t>(begin),
                end < all.end ? static_cast<int32_t>(end) : all.end};
      }
      case Rows::kHome:
        if (FormOf(t) == Form::kHomePut && t.peer != kRowBlockRange) return all;
        [[fallthrough]];
      default:
        return {t.row_begin, t.row_end};
    }
  }

  HPMOE_FUNCTION Interval ColsOf(const TaskDesc& t,
                                 const ReadSpec& spec) const {
    const auto end = static_cast<int32_t>(extents_[spec.buffer].cols);
    const int32_t width = end - BesideOf(h_, spec.buffer);
    switch (spec.cols) {
      case Cols::kTileRows:
        return {t.row_begin, t.row_end};
      case Cols::kGateAndUp:
        return {t.col_begin, width / 2 + t.col_end};
      case Cols::kAll:
        return {0, width};
      case Cols::kBeside:
        return {width, end};
      default:
        return {t.col_begin, t.col_end};
    }
  }

  const ImageHeader& h_;
  const int32_t local_, links_;
  Extent extents_[kNumBuffers];
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_IMAGE_REGIONS_H_
