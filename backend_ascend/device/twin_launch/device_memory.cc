#include "backend_ascend/device/twin_launch/device_memory.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "backend_ascend/host/tiles/poison.h"
#include "backend_ascend/host/tiles/storage.h"

namespace hpmoe {
namespace {

using ascend_twin::GlobalKind;
using ascend_twin::GlobalRange;

constexpr uint64_t kAlign = 512;
constexpr uint64_t kGap = 4096;  // behind each array: a wild access hits none

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

// Of elements of so many bytes.
void CopyPadding(const char* from, int64_t elements, int64_t element_bytes,
                 char* to) {
  if (element_bytes == 1) {
    CopyPadding<uint8_t>(from, elements, kPoison8, kPoison8, to);
  } else if (element_bytes == 2) {
    CopyPadding<uint16_t>(from, elements, kPoison16, kQuietNan >> 16, to);
  } else {
    CopyPadding<uint32_t>(from, elements, kPoison, kQuietNan, to);
  }
}

}  // namespace

class DeviceMemory::Placer {
 public:
  Placer(char* base, std::vector<GlobalRange>* ranges)
      : base_(base), ranges_(ranges) {}

  // An array of `count` elements; none has no address.
  template <class T>
  void Add(T** field, const char* name, int64_t count, Content content) {
    *field = nullptr;
    if (count == 0) return;
    end_ = (end_ + kAlign - 1) / kAlign * kAlign;
    const uint64_t at = end_;
    const uint64_t bytes = count * sizeof(T);
    end_ += bytes + kGap;
    if (base_ == nullptr) return;
    const auto address = reinterpret_cast<uint64_t>(base_ + at);
    ranges_->push_back({name, address, bytes, KindOf(content), rank_});
    *field = reinterpret_cast<T*>(address);
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
  PlaceTables(header_, header_.total_bytes + slack_, SizesOf(plan_), placer,
              &shared);
  std::vector<uint64_t> heaps(header_.num_ranks);
  for (int32_t rank = 0; rank < header_.num_ranks; ++rank) {
    placer->SetRank(rank);
    LaunchArgs args = shared;
    args.rank = rank;
    args.deadline_us = deadline_us_;
    LaunchArgs* at = nullptr;
    placer->Add(&at, "launch_args", 1, Content::kConstant);
    placer->Add(&args.heaps, "heaps", header_.num_ranks, Content::kConstant);
    heaps[rank] = reinterpret_cast<uint64_t>(placer->Next());
    PlaceHeap(header_, placer, &args);
    PlaceReady(placer, &args);
    PlaceOwn(header_, placer, &args);
    if (placer->counts_only()) continue;
    *at = args;
    args_.push_back(at);
  }
  for (const LaunchArgs* args : args_) {
    std::copy(heaps.begin(), heaps.end(), const_cast<uint64_t*>(args->heaps));
  }
}

void DeviceMemory::Fill() {
  CopyTables(header_, plan_, *args_[0],
             [](void* to, const void* from, size_t bytes) {
               if (bytes > 0) std::memcpy(to, from, bytes);
             });
  FillConstants(const_cast<Constants*>(args_[0]->constants));
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
      const int64_t scales = ScalesOfRank(header_, b);
      if (scales > 0) {
        std::copy_n(tensors_.scales[b] + rank * scales, scales,
                    args_[rank]->scales[b]);
      }
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

bool DeviceMemory::CopyIn(uint64_t begin, uint64_t bytes) const {
  // Of an array `at` of a rank, that of all ranks `from`.
  const auto copied = [&](const void* at, const void* from, int32_t rank,
                          uint64_t size) -> std::optional<bool> {
    const auto first = reinterpret_cast<uint64_t>(at);
    if (begin < first || begin + bytes > first + size) return std::nullopt;
    auto* const to = reinterpret_cast<char*>(begin);
    const char* const source =
        static_cast<const char*>(from) + rank * size + (begin - first);
    const bool differ = std::memcmp(to, source, bytes) != 0;
    std::memcpy(to, source, bytes);
    return differ;
  };
  for (int b = 0; b < kNumBuffers; ++b) {
    if (!IsWritten(header_, b)) continue;
    for (int32_t rank = 0; rank < header_.num_ranks; ++rank) {
      const LaunchArgs& args = *args_[rank];
      if (const auto differ = copied(args.buffers[b], tensors_.buffers[b], rank,
                                     BytesOfRank(header_, b))) {
        return *differ;
      }
      if (const auto differ = copied(args.scales[b], tensors_.scales[b], rank,
                                     ScalesOfRank(header_, b) * 4)) {
        return *differ;
      }
    }
  }
  return false;
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
    CopyPadding(from + valid, (bytes - valid) / shape.element_bytes,
                shape.element_bytes, to + valid);
    if (ScalesOfRank(header_, b) > 0) CopyScales(b, rank);
  }
}

// Beside rows of codes, which are packed.
void DeviceMemory::CopyScales(int b, int32_t rank) const {
  const int64_t count = ScalesOfRank(header_, b);
  const int64_t valid = SlicesOf(plan_, b).rank_rows[rank];
  const float* const from = args_[rank]->scales[b];
  float* const to = tensors_.scales[b] + rank * count;
  std::copy_n(from, valid, to);
  CopyPadding(reinterpret_cast<const char*>(from + valid), count - valid,
              sizeof(float), reinterpret_cast<char*>(to + valid));
}

}  // namespace hpmoe
