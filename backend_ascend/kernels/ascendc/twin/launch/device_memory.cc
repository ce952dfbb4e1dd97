#include "backend_ascend/kernels/ascendc/twin/launch/device_memory.h"

#include <algorithm>
#include <cstring>

#include "backend_ascend/kernels/host/tiles/poison.h"
#include "backend_ascend/kernels/host/tiles/storage.h"

namespace hpmoe {
namespace {

using ascend_twin::GlobalKind;
using ascend_twin::GlobalRange;

constexpr uint64_t kAlign = 512;
constexpr uint64_t kGap = 4096;  // behind each array: a wild access hits none

// A rank's part of a buffer: one slab, or those of its experts.
int64_t BytesOfRank(const ImageHeader& header, int b) {
  return ShapeOf(header, static_cast<BufferId>(b)).bytes() / header.num_ranks;
}

// Zeros are what nobody wrote there, and poison what nobody read either.
template <class T>
void CopyPadding(const char* from, int64_t elements, T poison, T nan,
                 char* to) {
  const T* const bits = reinterpret_cast<const T*>(from);
  T* const out = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < elements; ++i) {
    out[i] = bits[i] == poison ? 0 : bits[i] == 0 ? nan : bits[i];
  }
}

}  // namespace

class DeviceMemory::Placer {
 public:
  Placer(char* base, std::vector<GlobalRange>* ranges)
      : base_(base), ranges_(ranges) {}

  // An array of `count` elements; none has no address.
  template <class T>
  T* Add(const char* name, int64_t count, GlobalKind kind) {
    if (count == 0) return nullptr;
    end_ = (end_ + kAlign - 1) / kAlign * kAlign;
    const uint64_t at = end_;
    const uint64_t bytes = count * sizeof(T);
    end_ += bytes + kGap;
    if (base_ == nullptr) return nullptr;
    const auto address = reinterpret_cast<uint64_t>(base_ + at);
    ranges_->push_back({name, address, bytes, kind, rank_});
    return reinterpret_cast<T*>(address);
  }
  // Arrays are a rank's from here on.
  void SetRank(int32_t rank) { rank_ = rank; }
  // Where the next array begins.
  char* Next() {
    end_ = (end_ + kAlign - 1) / kAlign * kAlign;
    return base_ == nullptr ? nullptr : base_ + end_;
  }
  uint64_t bytes() const { return end_; }
  bool counts_only() const { return base_ == nullptr; }

 private:
  char* const base_;
  std::vector<GlobalRange>* const ranges_;
  uint64_t end_ = 0;
  int32_t rank_ = 0;
};

DeviceMemory::DeviceMemory(const ImageView& view, const Plan& plan,
                           const LaunchTensors& tensors, uint64_t deadline_us,
                           uint64_t slack)
    : view_(view),
      header_(*view.header),
      plan_(plan),
      tensors_(tensors),
      deadline_us_(deadline_us),
      slack_(slack) {
  Placer count(nullptr, nullptr);
  Place(&count);
  storage_.reset(new char[count.bytes() + kAlign]);
  const auto begin = reinterpret_cast<uintptr_t>(storage_.get());
  const uintptr_t aligned = (begin + kAlign - 1) / kAlign * kAlign;
  Placer placer(storage_.get() + (aligned - begin), &ranges_);
  Place(&placer);
  Fill();
}

void DeviceMemory::Place(Placer* placer) {
  LaunchArgs shared{};
  PlaceShared(placer, &shared);
  std::vector<uint64_t> heaps(header_.num_ranks);
  for (int32_t rank = 0; rank < header_.num_ranks; ++rank) {
    placer->SetRank(rank);
    LaunchArgs args = shared;
    args.rank = rank;
    args.deadline_us = deadline_us_;
    LaunchArgs* const at =
        placer->Add<LaunchArgs>("launch_args", 1, GlobalKind::kConstant);
    auto* const table = placer->Add<uint64_t>("heaps", header_.num_ranks,
                                              GlobalKind::kConstant);
    args.heaps = table;
    heaps[rank] = reinterpret_cast<uint64_t>(placer->Next());
    PlaceHeap(placer, &args);
    PlaceOwn(placer, &args);
    if (placer->counts_only()) continue;
    *at = args;
    args_.push_back(at);
  }
  for (const LaunchArgs* args : args_) {
    std::copy(heaps.begin(), heaps.end(), const_cast<uint64_t*>(args->heaps));
  }
}

// Constant during a launch, and the same for every rank.
void DeviceMemory::PlaceShared(Placer* placer, LaunchArgs* args) {
  const auto add = [&](const char* name, const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    T* const at = placer->Add<T>(name, values.size(), GlobalKind::kConstant);
    if (at != nullptr) std::copy(values.begin(), values.end(), at);
    return at;
  };
  args->image = placer->Add<uint8_t>("image", header_.total_bytes + slack_,
                                     GlobalKind::kConstant);
  args->counts = add("counts", plan_.counts);
  args->row_base = add("row_base", plan_.row_base);
  args->expert_rows = add("expert_rows", plan_.expert_rows);
  args->expert_base = add("expert_base", plan_.expert_base);
  args->slice_begin = add("slice_begin", plan_.slice_begin);
  args->slice_slots = add("slice_slots", plan_.slice_slots);
  if (header_.relay != 0) {
    args->once_counts = add("once_counts", plan_.once.counts);
    args->once_row_base = add("once_row_base", plan_.once.row_base);
    args->once_expert_rows = add("once_expert_rows", plan_.once.expert_rows);
    args->once_expert_base = add("once_expert_base", plan_.once.expert_base);
    args->once_slice_begin = add("once_slice_begin", plan_.once.slice_begin);
    args->once_slice_slots = add("once_slice_slots", plan_.once.slice_slots);
    args->copy_rows = add("copy_rows", plan_.copy_rows);
    args->copy_slots = add("copy_slots", plan_.copy_slots);
  }
  args->constants =
      placer->Add<Constants>("constants", 1, GlobalKind::kConstant);
}

// The same arrays in the same order on every rank: the same offsets.
void DeviceMemory::PlaceHeap(Placer* placer, LaunchArgs* args) {
  for (int b = 0; b < kNumBuffers; ++b) {
    if (!IsWritten(header_, b) || !IsPut(BufferForm(header_, b))) continue;
    args->buffers[b] = placer->Add<uint8_t>(
        BufferName(b), BytesOfRank(header_, b), GlobalKind::kEmpty);
  }
  const int64_t slots = int64_t{header_.num_tokens} * header_.top_k;
  args->header_slot = placer->Add<int32_t>("header_slot", header_.num_rows,
                                           GlobalKind::kFilled);
  args->header_weight =
      placer->Add<float>("header_weight", header_.num_rows, GlobalKind::kEmpty);
  const int64_t copies =
      header_.relay == 0 ? 0 : int64_t{header_.num_rows} * CopiesOf(header_);
  args->copy_row =
      placer->Add<int32_t>("copy_row", copies, GlobalKind::kFilled);
  args->copy_slot =
      placer->Add<int32_t>("copy_slot", copies, GlobalKind::kEmpty);
  args->copy_weight =
      placer->Add<float>("copy_weight", copies, GlobalKind::kEmpty);
  args->d_slot_weight = placer->Add<float>(
      "d_slot_weight", WeightsTravel(header_) ? slots : 0, GlobalKind::kEmpty);
  args->events = placer->Add<CounterLine>("events", header_.events.count,
                                          GlobalKind::kFlags);
  args->ready =
      placer->Add<CounterLine>("ready", kReadyLines, GlobalKind::kFlags);
}

void DeviceMemory::PlaceOwn(Placer* placer, LaunchArgs* args) {
  for (int b = 0; b < kNumBuffers; ++b) {
    const Use use = UseOf(header_, b);
    const Form form = BufferForm(header_, b);
    const bool written = IsWritten(header_, b);
    if (use == Use::kAbsent || (written && IsPut(form))) continue;
    const int64_t bytes = BytesOfRank(header_, b);
    args->buffers[b] = placer->Add<uint8_t>(
        BufferName(b), bytes,
        written ? GlobalKind::kEmpty : GlobalKind::kConstant);
    if (!written || form != Form::kWeightTile || LinksOf(header_) == 1) {
      continue;
    }
    const Array shape = ShapeOf(header_, static_cast<BufferId>(b));
    args->sums[b] = placer->Add<float>("sums", bytes / shape.element_bytes,
                                       GlobalKind::kEmpty);
  }
  const int64_t slots = int64_t{header_.num_tokens} * header_.top_k;
  args->topk_weights =
      placer->Add<float>("topk_weights", slots, GlobalKind::kConstant);
  args->d_row_weight = placer->Add<float>(
      "d_row_weight", WeightsTravel(header_) ? header_.num_rows : 0,
      GlobalKind::kEmpty);
  args->diagnosis = placer->Add<CoreDiagnosis>(
      "diagnosis", header_.num_aic + header_.num_aiv, GlobalKind::kFilled);
}

void DeviceMemory::Fill() {
  auto* const constants = const_cast<Constants*>(args_[0]->constants);
  *constants = {};
  constants->one[0] = 1;
  for (int32_t i = 0; i < kIdentityRows; ++i) {
    constants->identity[i * kIdentityRows + i] = 1.0f;
  }
  const int64_t slots = int64_t{header_.num_tokens} * header_.top_k;
  for (int32_t rank = 0; rank < header_.num_ranks; ++rank) {
    const LaunchArgs& args = *args_[rank];
    std::copy_n(tensors_.topk_weights + rank * slots, slots,
                const_cast<float*>(args.topk_weights));
    std::fill_n(args.header_slot, header_.num_rows, -1);
    if (header_.relay != 0) {
      std::fill_n(args.copy_row, int64_t{header_.num_rows} * CopiesOf(header_),
                  -1);
    }
    std::memset(args.ready, 0, kReadyLines * sizeof(CounterLine));
  }
  for (const GlobalRange& range : ranges_) {
    if (range.kind != GlobalKind::kEmpty) continue;
    // Whole words: arrays lie apart.
    PoisonElements(reinterpret_cast<char*>(range.begin), (range.bytes + 3) / 4,
                   4);
  }
  for (int b = 0; b < kNumBuffers; ++b) {
    if (UseOf(header_, b) != Use::kAbsent) FillBuffer(b);
  }
}

void DeviceMemory::FillBuffer(int b) {
  const Array shape = ShapeOf(header_, static_cast<BufferId>(b));
  const int64_t bytes = BytesOfRank(header_, b);
  for (int32_t rank = 0; rank < header_.num_ranks; ++rank) {
    char* const to = reinterpret_cast<char*>(args_[rank]->buffers[b]);
    if (IsWritten(header_, b)) {
      PoisonElements(to, bytes / shape.element_bytes, shape.element_bytes);
    } else {
      std::memcpy(to,
                  static_cast<const char*>(tensors_.buffers[b]) + rank * bytes,
                  bytes);
    }
  }
}

void DeviceMemory::Begin(const std::vector<uint64_t>& image) {
  const auto* const header = reinterpret_cast<const ImageHeader*>(image.data());
  std::memcpy(const_cast<uint8_t*>(args_[0]->image), header,
              header->total_bytes);
  ++generation_;
  for (LaunchArgs* args : args_) {
    args->generation = generation_;
    std::memset(args->events, 0, header_.events.count * sizeof(CounterLine));
    std::memset(args->diagnosis, 0,
                (header_.num_aic + header_.num_aiv) * sizeof(CoreDiagnosis));
  }
}

void DeviceMemory::CopyOut() const {
  for (int b = 0; b < kNumBuffers; ++b) {
    if (IsWritten(header_, b)) CopyBuffer(b);
  }
}

void DeviceMemory::CopyBuffer(int b) const {
  const Array shape = ShapeOf(header_, static_cast<BufferId>(b));
  const int64_t bytes = BytesOfRank(header_, b);
  for (int32_t rank = 0; rank < header_.num_ranks; ++rank) {
    const char* const from =
        reinterpret_cast<const char*>(args_[rank]->buffers[b]);
    char* const to = static_cast<char*>(tensors_.buffers[b]) + rank * bytes;
    const int64_t valid = IsPacked(BufferForm(header_, b))
                              ? SlicesOf(plan_, b).rank_rows[rank] *
                                    shape.cols * shape.element_bytes
                              : bytes;
    std::memcpy(to, from, valid);
    const int64_t rest = (bytes - valid) / shape.element_bytes;
    if (shape.element_bytes == 2) {
      CopyPadding<uint16_t>(from + valid, rest, kPoison16, kQuietNan >> 16,
                            to + valid);
    } else {
      CopyPadding<uint32_t>(from + valid, rest, kPoison, kQuietNan, to + valid);
    }
  }
}

}  // namespace hpmoe
