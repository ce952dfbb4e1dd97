#include "backend_ascend/kernels/host/launch/launch_prepare.h"

#include <algorithm>

#include "backend_ascend/kernels/host/tiles/poison.h"
#include "backend_ascend/kernels/host/tiles/storage.h"

namespace hpmoe {
namespace {

// Points the layer at the buffers of the image's direction.
void PlaceBuffers(const LaunchTensors& tensors, const Plan& plan, bool poison,
                  Prepared* prepared, Layer* layer) {
  const ImageHeader& image = *layer->image;
  for (int b = 0; b < kNumBuffers; ++b) {
    if (PassUse(image, b) == Use::kAbsent) continue;
    Array& array = layer->buffers[b];
    array = ShapeOf(image, static_cast<BufferId>(b));
    array.data = static_cast<char*>(tensors.buffers[b]);
    if (IsRelayed(b) && array.data == nullptr) {
      prepared->relayed.resize(array.bytes());
      array.data = prepared->relayed.data();
    }
    if (poison && IsWritten(image, b)) {
      Poison(SlicesOf(plan, b), BufferForm(image, b), array);
    }
  }
}

// What tasks hand on to each other outside of any tensor.
void PlaceWorkspace(bool poison, Prepared* prepared, Layer* layer) {
  const ImageHeader& image = *layer->image;
  const float start = poison ? BitsFloat(kPoison) : 0.0f;
  const auto place = [=](int64_t count, std::vector<float>* values) {
    values->assign(count, start);
    return values->data();
  };
  const int64_t rows = int64_t{image.num_ranks} * image.num_rows;
  prepared->header_slot.assign(rows, -1);
  layer->header_slot = prepared->header_slot.data();
  layer->header_weight = place(rows, &prepared->header_weight);
  if (image.relay != 0) {
    prepared->copies.assign(rows * CopiesOf(image), kNoCopy);
    layer->copies = prepared->copies.data();
  }
  if (image.direction != kBackward) return;
  if (image.placement == kBeforeDown) {
    layer->d_row_weight = place(rows, &prepared->d_row_weight);
    layer->d_slot_weight =
        place(image.num_ranks * layer->Slots(), &prepared->d_slot_weight);
  }
  for (int b = 0; LinksOf(image) > 1 && b < kNumBuffers; ++b) {
    if (BufferForm(image, b) != Form::kWeightTile) continue;
    const Array& grad = layer->buffers[b];
    layer->sums[b] =
        place(grad.slabs * grad.rows * grad.cols, &prepared->sums[b]);
  }
}

// Rows past the last valid one that are looked after: few, for most rows of a
// large capacity cost nothing as long as nobody touches them.
constexpr int64_t kPaddingRows = 8;

// Calls visit(first element, elements, bytes of one) for each rank's padding.
template <class Visit>
void ForEachPadding(const Plan& plan, const Layer& layer, Visit visit) {
  for (int b = 0; b < kNumBuffers; ++b) {
    const Array& array = layer.buffers[b];
    const bool written = IsWritten(*layer.image, b);
    if (!written || !IsPacked(BufferForm(*layer.image, b))) continue;
    for (int64_t slab = array.first; slab < array.first + array.slabs; ++slab) {
      const int64_t row = SlicesOf(plan, b).rank_rows[slab];
      const int64_t rows = std::min(kPaddingRows, array.rows - row);
      if (rows <= 0) continue;
      visit(array.At(slab, row, 0), rows * array.cols, array.element_bytes);
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

}  // namespace

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

void PoisonPadding(const Plan& plan, const Layer& layer) {
  ForEachPadding(plan, layer, PoisonElements);
}

void ClearPadding(const Plan& plan, const Layer& layer) {
  ForEachPadding(
      plan, layer, [](char* begin, int64_t elements, int64_t element_bytes) {
        if (element_bytes == 2) {
          Clear<uint16_t>(begin, elements, kPoison16, kQuietNan >> 16);
        } else {
          Clear<uint32_t>(begin, elements, kPoison, kQuietNan);
        }
      });
}

void Poison(const Slices& slices, Form form, const Array& array) {
  for (int64_t i = 0; i < array.slabs; ++i) {
    const int64_t slab = array.first + i;
    const int64_t rows = IsPacked(form) ? slices.rank_rows[slab] : array.rows;
    PoisonElements(array.At(slab, 0, 0), rows * array.cols,
                   array.element_bytes);
  }
}

Status Prepare(const ImageView& view, const LaunchTensors& tensors, Isa isa,
               Prepared* prepared, Layer* layer, bool poison) {
  const Status status = Route(*view.header, tensors, &prepared->routed);
  if (status.code != 0) return status;
  const Plan& plan = *prepared->routed.plan;
  *layer = {};
  layer->image = view.header;
  layer->ranks_held = view.header->num_ranks;
  layer->plan = ViewOf(*view.header, plan);
  layer->topk_weights = tensors.topk_weights;
  layer->isa = isa;
  PlaceBuffers(tensors, plan, poison, prepared, layer);
  PlaceWorkspace(poison, prepared, layer);
  return status;
}

}  // namespace hpmoe
