#include "backend_ascend/host/launch/launch_prepare.h"

#include <algorithm>
#include <new>
#include <utility>

#include "backend_ascend/host/tiles/poison.h"
#include "backend_ascend/host/tiles/storage.h"

namespace hpmoe {
namespace {

constexpr int64_t kLine = 64;

Status Missing(const char* name) {
  return Refused(1, "%s: expected an array, got none", name);
}

// Which of the buffers that tasks write are made.
class Makes {
 public:
  Makes(const ImageView& view, const LaunchTensors& tensors)
      : image_(*view.header), tensors_(tensors) {
    for (int32_t t = 0; t < view.num_tasks; ++t) {
      const TaskDesc& task = view.tasks[t];
      if (task.kind != kDown) continue;
      whole_down_ =
          whole_down_ && task.col_begin == 0 && task.col_end == image_.d_model;
    }
  }

  bool operator()(int buffer) const {
    if (image_.span == kSublayer || IsQuantised(image_)) return true;
    return tensors_.buffers[buffer] != nullptr || IsNeeded(buffer);
  }

 private:
  // By tasks that cannot do without it.
  bool IsNeeded(int buffer) const {
    const Makes& makes = *this;
    switch (buffer) {
      case kActivation:
        return !whole_down_;
      case kExpertOut:
        return makes(kReturned) || makes(kY);
      case kXRelayed:
        return makes(kExpertIn);
      case kDyRelayed:
        return makes(kDExpertOut);
      case kDExpertOut:
        return image_.placement == kAtCombine;
      case kDGateUp:
        return true;
      case kDExpertIn:
        return makes(kDReturned) || makes(kDx);
      default:
        return false;
    }
  }

  const ImageHeader& image_;
  const LaunchTensors& tensors_;
  bool whole_down_ = true;  // every task of `down` has all columns
};

// Points the layer at what is given and at the arena.
class Placement {
 public:
  Placement(const LaunchTensors& tensors, const Makes& makes, Layer* layer)
      : tensors_(tensors),
        makes_(makes),
        image_(*layer->image),
        layer_(*layer) {}

  Status Place(Arena* arena) {
    for (int b = 0; b < kNumBuffers; ++b) {
      const Status status = PlaceBuffer(b);
      if (status.code != 0) return status;
    }
    PlaceWorkspace();
    char* const begin = arena->Reserve(bytes_);
    for (const auto& [offset, to] : places_) *to = begin + offset;
    return {};
  }

 private:
  template <class T>
  void Take(int64_t bytes, T** to) {
    places_.emplace_back(bytes_, reinterpret_cast<char**>(to));
    bytes_ += (bytes + kLine - 1) / kLine * kLine;
  }

  bool IsGiven(int buffer) const { return tensors_.buffers[buffer] != nullptr; }

  // Whether tasks do without an input: what it was made of is there.
  bool IsSpared(int b) const {
    if (UseOf(image_, b) == Use::kAbsent) return true;
    return (b == kExpertIn && IsGiven(kX)) ||
           (b == kReturned && IsGiven(kExpertOut));
  }

  Status PlaceBuffer(int b) {
    Array& array = layer_.buffers[b];
    array = ShapeOf(image_, static_cast<BufferId>(b));
    array.data = static_cast<char*>(tensors_.buffers[b]);
    const Use use = PassUse(image_, b);
    layer_.scales[b] = tensors_.scales[b];
    if (NumScales(image_, b) > 0 && layer_.scales[b] == nullptr) {
      if (use == Use::kInput) return Missing(ScalesName(b).c_str());
      Take(NumScales(image_, b) * 4, &layer_.scales[b]);
    }
    if (array.data != nullptr || use == Use::kAbsent) return {};
    if (use == Use::kInput) {
      return IsSpared(b) ? Status{} : Missing(kBuffers[b].name);
    }
    if (makes_(b)) Take(array.bytes(), &array.data);
    return {};
  }

  // What tasks hand on to each other outside of any tensor.
  void PlaceWorkspace() {
    const int64_t rows = int64_t{image_.num_ranks} * image_.num_rows;
    Take(rows * 4, &layer_.header_slot);
    Take(rows * 4, &layer_.header_weight);
    if (image_.relay != 0) {
      Take(rows * CopiesOf(image_) * int64_t{sizeof(RowCopy)}, &layer_.copies);
    }
    if (image_.direction == kForward) return;
    if (IsEarly(image_)) {
      Take(rows * 4, &layer_.d_row_weight);
      if (makes_(kDReturned)) {
        Take(image_.num_ranks * layer_.Slots() * 4, &layer_.d_slot_weight);
      }
    }
    for (int b = 0; LinksOf(image_) > 1 && b < kNumBuffers; ++b) {
      if (BufferForm(image_, b) != Form::kWeightTile || !makes_(b)) continue;
      const Array& grad = layer_.buffers[b];
      Take(grad.slabs * grad.rows * grad.cols * 4, &layer_.sums[b]);
    }
  }

  const LaunchTensors& tensors_;
  const Makes& makes_;
  const ImageHeader& image_;
  Layer& layer_;
  int64_t bytes_ = 0;
  std::vector<std::pair<int64_t, char**>> places_;
};

// Slots and weights of every row, as puts bring them.
void FillHeaders(const Layer& layer) {
  ForEachPlannedRow(layer.plan, [&](int64_t at, int32_t source, int32_t slot) {
    layer.header_slot[at] = slot;
    layer.header_weight[at] = layer.topk_weights[layer.SlotAt(source, slot)];
  });
}

// And what relayed rows are copied to.
void FillCopies(const Layer& layer) {
  ForEachPlannedCopy(
      layer.plan, [&](int64_t at, int32_t source, int32_t row, int32_t slot) {
        layer.copies[at] = {row, slot,
                            layer.topk_weights[layer.SlotAt(source, slot)]};
      });
}

// A put that is lost leaves rows that belong nowhere; in a sub-layer rows go
// home before any has come.
void StartHeaders(const Layer& layer) {
  const ImageHeader& image = *layer.image;
  const bool forward = image.direction == kForward;
  const int64_t rows = int64_t{image.num_ranks} * image.num_rows;
  if (image.span == kLayer && layer.Has(forward ? kExpertIn : kDExpertOut)) {
    std::fill_n(layer.header_slot, rows, -1);
  } else {
    FillHeaders(layer);
  }
  if (image.relay == 0) return;
  std::fill_n(layer.copies, rows * CopiesOf(image), kNoCopy);
  if (!layer.Has(forward ? kXRelayed : kDyRelayed)) FillCopies(layer);
}

// Calls visit(first element, elements, bytes of one) for rows of a slab, and of
// the scales beside them, if there are any.
template <class Visit>
void VisitRows(const Array& array, float* scales, int64_t slab, int64_t row,
               int64_t rows, Visit visit) {
  visit(array.At(slab, row, 0), rows * array.cols, array.element_bytes);
  if (scales == nullptr) return;
  float* const of_slab = scales + (slab - array.first) * array.rows;
  visit(reinterpret_cast<char*>(of_slab + row), rows, sizeof(float));
}

// The same for what tasks of a form will write.
template <class Visit>
void ForEachSlab(const Slices& slices, Form form, const Array& array,
                 float* scales, Visit visit) {
  for (int64_t i = 0; i < array.slabs; ++i) {
    const int64_t slab = array.first + i;
    const int64_t rows = IsPacked(form) ? slices.rank_rows[slab] : array.rows;
    VisitRows(array, scales, slab, 0, rows, visit);
  }
}

void ClearElements(char* begin, int64_t elements, int64_t element_bytes) {
  std::fill_n(begin, elements * element_bytes, 0);
}

// What tasks write starts as NaN, or as zeros.
void Fill(const Plan& plan, bool poison, const Layer& layer) {
  const ImageHeader& image = *layer.image;
  const float start = poison ? BitsFloat(kPoison) : 0.0f;
  const auto fill = [=](float* at, int64_t count) {
    if (at != nullptr) std::fill_n(at, count, start);
  };
  const int64_t rows = int64_t{image.num_ranks} * image.num_rows;
  fill(layer.header_weight, rows);
  fill(layer.d_row_weight, rows);
  fill(layer.d_slot_weight, image.num_ranks * layer.Slots());
  for (int b = 0; b < kNumBuffers; ++b) {
    const Array& array = layer.buffers[b];
    fill(layer.sums[b], array.slabs * array.rows * array.cols);
    if (!IsWritten(image, b) || !layer.Has(b)) continue;
    const Slices& slices = SlicesOf(plan, b);
    ForEachSlab(slices, BufferForm(image, b), array, layer.scales[b],
                poison ? PoisonElements : ClearElements);
  }
}

// Rows past the last valid one that are looked after: few, for most rows of a
// large capacity cost nothing as long as nobody touches them.
constexpr int64_t kPaddingRows = 8;

// Calls visit(first element, elements, bytes of one) for each rank's padding:
// rows, and scales beside them.
template <class Visit>
void ForEachPadding(const Plan& plan, const Layer& layer, Visit visit) {
  for (int b = 0; b < kNumBuffers; ++b) {
    const Array& array = layer.buffers[b];
    const bool written = IsWritten(*layer.image, b);
    if (!written || !IsPacked(BufferForm(*layer.image, b))) continue;
    if (!layer.Has(b)) continue;
    for (int64_t slab = array.first; slab < array.first + array.slabs; ++slab) {
      const int64_t row = SlicesOf(plan, b).rank_rows[slab];
      const int64_t rows = std::min(kPaddingRows, array.rows - row);
      if (rows <= 0) continue;
      VisitRows(array, layer.scales[b], slab, row, rows, visit);
    }
  }
}

template <class T>
void Clear(char* begin, int64_t elements, T poison, T nan) {
  T* const bits = reinterpret_cast<T*>(begin);
  for (int64_t i = 0; i < elements; ++i) {
    bits[i] = bits[i] == poison ? 0 : bits[i] == 0 ? nan : bits[i];
  }
}

template <class T>
void CopyOut(const std::vector<T>& from, T* to) {
  if (to != nullptr) std::copy(from.begin(), from.end(), to);
}

// Plans the tensors' routing, or takes the plan given, checks it and writes its
// tables where they are asked for.  `routed` must stay where it is.
Status Route(const ImageHeader& image, const LaunchTensors& tensors,
             Routed* routed) {
  const int64_t slots = int64_t{image.num_tokens} * image.top_k;
  routed->ids.assign(tensors.topk_ids,
                     tensors.topk_ids + image.num_ranks * slots);
  routed->plan = tensors.plan;
  Status status{};
  if (tensors.plan == nullptr) {
    status = MakePlan(image, routed->ids.data(), &routed->made);
    if (status.code != 0) return status;
    routed->plan = &routed->made;
  }
  const Plan& plan = *routed->plan;
  status = CheckPlan(image, 0, image.num_ranks, routed->ids.data(), plan);
  if (status.code != 0) return status;
  CopyOut(plan.counts, tensors.counts);
  CopyOut(plan.row_base, tensors.row_base);
  CopyOut(plan.row_of_slot, tensors.row_of_slot);
  return status;
}

}  // namespace

char* Arena::Reserve(int64_t bytes) {
  bytes = (bytes + kLine - 1) / kLine * kLine;
  if (bytes > bytes_) {
    bytes_ = 0;
    data_.reset();
    data_.reset(static_cast<char*>(std::aligned_alloc(kLine, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
    bytes_ = bytes;
  }
  return data_.get();
}

void PoisonPadding(const Plan& plan, const Layer& layer) {
  ForEachPadding(plan, layer, PoisonElements);
}

void ClearPadding(const Plan& plan, const Layer& layer) {
  ForEachPadding(
      plan, layer, [](char* begin, int64_t elements, int64_t element_bytes) {
        if (element_bytes == 1) {
          Clear<uint8_t>(begin, elements, kPoison8, kPoison8);
        } else if (element_bytes == 2) {
          Clear<uint16_t>(begin, elements, kPoison16, kQuietNan >> 16);
        } else {
          Clear<uint32_t>(begin, elements, kPoison, kQuietNan);
        }
      });
}

void Poison(const Slices& slices, Form form, const Array& array,
            float* scales) {
  ForEachSlab(slices, form, array, scales, PoisonElements);
}

Status Prepare(const ImageView& view, const LaunchTensors& tensors,
               const LaunchOptions& options, Held* held, Layer* layer) {
  const ImageHeader& image = *view.header;
  if (tensors.topk_ids == nullptr) return Missing("topk_ids");
  if (tensors.topk_weights == nullptr) return Missing("topk_weights");
  Status status = Route(image, tensors, &held->routed);
  if (status.code != 0) return status;
  const Plan& plan = *held->routed.plan;
  *layer = {};
  layer->image = &image;
  layer->ranks_held = image.num_ranks;
  layer->plan = ViewOf(image, plan);
  layer->topk_weights = tensors.topk_weights;
  layer->topk_ids = held->routed.ids.data();
  layer->row_of_slot = plan.row_of_slot.data();
  layer->isa = options.isa;
  const Makes makes(view, tensors);
  status = Placement(tensors, makes, layer).Place(&held->arena);
  if (status.code != 0) return status;
  const Modes::Start start = options.modes.start;
  if (start != Modes::Start::kUndefined) {
    Fill(plan, start == Modes::Start::kPoison, *layer);
  }
  StartHeaders(*layer);
  return status;
}

}  // namespace hpmoe
