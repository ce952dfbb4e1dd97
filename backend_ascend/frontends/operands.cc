#include "backend_ascend/frontends/operands.h"

#include <type_traits>

namespace hpmoe {
namespace {

// What a forward pass saved may have overflowed, and it is its user's.
bool IsSaved(const BufferInfo& info, Use use) {
  return use != Use::kWritten && info.use[kForward] == Use::kWritten;
}

Operand BufferOperand(const ImageHeader& image, int b) {
  const Array shape = ShapeOf(image, static_cast<BufferId>(b));
  const bool scanned = !IsSaved(kBuffers[b], kBuffers[b].use[image.direction]);
  const bool is_float = kBuffers[b].element == Element::kFloat;
  const DType dtype = is_float ? kFloat32 : DType{image.dtype};
  return {
      kBuffers[b].name,
      shape.bytes(),
      scanned ? dtype : kNumDTypes,
      [b](void* data, LaunchTensors* tensors) { tensors->buffers[b] = data; },
      kBuffers[b].use[image.direction] == Use::kWritten,
      UseOf(image, b) != Use::kAbsent};
}

}  // namespace

std::vector<Operand> KnownOperands(const ImageHeader& image) {
  const int64_t by_slot =
      int64_t{image.num_ranks} * image.num_tokens * image.top_k * 4;
  const int64_t by_expert = int64_t{image.num_ranks} * image.num_experts * 4;
  std::vector<Operand> known;
  const auto add = [&known](const char* name, int64_t bytes, DType finite,
                            auto member, bool made) {
    const auto place = [member](void* data, LaunchTensors* tensors) {
      tensors->*member =
          static_cast<std::decay_t<decltype(tensors->*member)>>(data);
    };
    known.push_back({name, bytes, finite, place, made, /*used=*/true});
  };
  using Tensors = LaunchTensors;
  add("topk_ids", by_slot, kNumDTypes, &Tensors::topk_ids, false);
  add("topk_weights", by_slot, kFloat32, &Tensors::topk_weights, false);
  add("counts", by_expert, kNumDTypes, &Tensors::counts, true);
  add("row_base", by_expert, kNumDTypes, &Tensors::row_base, true);
  add("row_of_slot", by_slot, kNumDTypes, &Tensors::row_of_slot, true);
  for (int b = 0; b < kNumBuffers; ++b) {
    if (!IsRelayed(b)) known.push_back(BufferOperand(image, b));
  }
  return known;
}

}  // namespace hpmoe
