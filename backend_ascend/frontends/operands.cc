#include "backend_ascend/frontends/operands.h"

#include <utility>

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
      kBuffers[b].name, shape.bytes(), scanned ? dtype : kNumDTypes,
      [b](void* data, LaunchTensors* tensors) { tensors->buffers[b] = data; }};
}

void AddBuffers(const ImageHeader& image, Use use,
                std::vector<Operand>* operands) {
  for (int b = 0; b < kNumBuffers; ++b) {
    if (UseOf(image, b) != use || IsRelayed(b)) continue;
    operands->push_back(BufferOperand(image, b));
  }
}

int64_t BytesBySlot(const ImageHeader& image) {
  return int64_t{image.num_ranks} * image.num_tokens * image.top_k * 4;
}

std::vector<Operand> RoutingOf(const ImageHeader& image) {
  const int64_t by_slot = BytesBySlot(image);
  return {
      {"topk_ids", by_slot, kNumDTypes,
       [](void* data, LaunchTensors* tensors) {
         tensors->topk_ids = static_cast<const int32_t*>(data);
       }},
      {"topk_weights", by_slot, kFloat32,
       [](void* data, LaunchTensors* tensors) {
         tensors->topk_weights = static_cast<const float*>(data);
       }},
  };
}

std::vector<Operand> PlanOf(const ImageHeader& image) {
  const int64_t by_expert = int64_t{image.num_ranks} * image.num_experts * 4;
  const auto ints = [](int32_t* LaunchTensors::* member) {
    return [member](void* data, LaunchTensors* tensors) {
      tensors->*member = static_cast<int32_t*>(data);
    };
  };
  return {
      {"counts", by_expert, kNumDTypes, ints(&LaunchTensors::counts)},
      {"row_base", by_expert, kNumDTypes, ints(&LaunchTensors::row_base)},
      {"row_of_slot", BytesBySlot(image), kNumDTypes,
       ints(&LaunchTensors::row_of_slot)},
  };
}

}  // namespace

std::vector<Operand> InputsOf(const ImageHeader& image) {
  std::vector<Operand> operands = RoutingOf(image);
  AddBuffers(image, Use::kInput, &operands);
  return operands;
}

std::vector<Operand> OutputsOf(const ImageHeader& image) {
  std::vector<Operand> operands = PlanOf(image);
  AddBuffers(image, Use::kWritten, &operands);
  return operands;
}

std::vector<KnownOperand> KnownOperands(const ImageHeader& image) {
  std::vector<KnownOperand> known;
  for (Operand& operand : RoutingOf(image)) {
    known.push_back({std::move(operand), false});
  }
  for (Operand& operand : PlanOf(image)) {
    known.push_back({std::move(operand), true});
  }
  for (int b = 0; b < kNumBuffers; ++b) {
    if (IsRelayed(b)) continue;
    const Use use = kBuffers[b].use[image.direction];
    known.push_back({BufferOperand(image, b), use == Use::kWritten});
  }
  return known;
}

}  // namespace hpmoe
