#include "backend_ascend/device/npus/rank_memory.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "backend_ascend/host/launch/runtime_tasks.h"

namespace hpmoe {
namespace {

constexpr uint64_t kAlign = 512;   // of what cores of other dies write
constexpr int kPoisonByte = 0xFF;  // NaN of every dtype, -1 of every integer

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

End Refuse(const std::string& name, const std::string& expected,
           const std::string& got) {
  return {HPMOE_NPUS_INPUT, name + ": expected " + expected + ", got " + got};
}

// As RankMemory::Placer: what a heap holds does not depend on the routing.
struct HeapCounter {
  template <class T>
  void Add(T**, const char*, int64_t count, Content) {
    bytes += RoundUp(count * sizeof(T));
  }
  uint64_t bytes;
};

// Zeroes the elements of `bytes` that nobody wrote.
void DropPoison(char* begin, uint64_t bytes, int64_t element) {
  const std::vector<char> poison(element, static_cast<char>(kPoisonByte));
  for (char* at = begin; at < begin + bytes; at += element) {
    if (std::memcmp(at, poison.data(), element) == 0) {
      std::memset(at, 0, element);
    }
  }
}

}  // namespace

// Gives out memory from `base`; from 0 it only counts.
class RankMemory::Placer {
 public:
  Placer(uint64_t base, const Tensors& given, std::vector<Placed>* placed)
      : base_(base), given_(given), placed_(placed) {}

  template <class T>
  void Add(T** field, const char* name, int64_t count, Content content) {
    *field = nullptr;
    if (count == 0) return;
    const auto given = given_.find(name);
    if (given != given_.end() && given->second.on_device != 0) {
      *field = static_cast<T*>(given->second.data);
      return;
    }
    const uint64_t bytes = count * sizeof(T);
    if (base_ != 0) {
      *field = reinterpret_cast<T*>(base_ + end_);
      placed_->push_back(
          {const_cast<std::remove_const_t<T>*>(*field), bytes, content});
    }
    end_ += RoundUp(bytes);
  }
  uint64_t bytes() const { return end_; }

 private:
  const uint64_t base_;
  const Tensors& given_;
  std::vector<Placed>* const placed_;
  uint64_t end_ = 0;
};

HeapHead HeapHeadOf(int32_t num_ranks) {
  HeapHead head{};
  head.ready = RoundUp(num_ranks * sizeof(CounterLine));
  head.bytes = RoundUp(head.ready + kReadyLines * sizeof(CounterLine));
  return head;
}

End RankMemory::Tell(const ImageHeader& header, const hpmoe_npus_call& call) {
  tensors_.clear();
  for (int32_t i = 0; i < call.num_tensors; ++i) {
    const hpmoe_npus_tensor& tensor = call.tensors[i];
    if (tensor.on_device != 0 &&
        reinterpret_cast<uint64_t>(tensor.data) % kLineBytes != 0) {
      return Refuse(tensor.name, "memory of 64-byte alignment", "other");
    }
    tensors_[tensor.name] = tensor;
  }
  const auto check = [&](const std::string& name, int64_t bytes, bool needed) {
    const hpmoe_npus_tensor* const tensor = Find(name);
    if (tensor == nullptr) {
      return needed ? Refuse(name, "a tensor", "none") : End();
    }
    if (tensor->data != nullptr && tensor->bytes == uint64_t(bytes)) {
      return End();
    }
    return Refuse(name, std::to_string(bytes) + " bytes",
                  std::to_string(tensor->bytes));
  };
  const int64_t slots = int64_t{header.num_tokens} * header.top_k;
  HPMOE_TRY(check("topk_weights", slots * 4, true));
  for (int b = 0; b < kNumBuffers; ++b) {
    const Use use = UseOf(header, b);
    if (use == Use::kAbsent) continue;
    HPMOE_TRY(check(BufferName(b), BytesOfRank(header, b), use == Use::kInput));
  }
  return {};
}

const hpmoe_npus_tensor* RankMemory::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

uint64_t HeapBytesOf(const ImageHeader& header) {
  HeapCounter counter{HeapHeadOf(header.num_ranks).bytes};
  LaunchArgs args{};
  PlaceHeap(header, &counter, &args);
  return counter.bytes;
}

End RankMemory::Place(const ImageHeader& header, const Plan& plan,
                      uint64_t heap, uint64_t heap_bytes) {
  const uint64_t needed = HeapBytesOf(header);
  if (needed > heap_bytes) {
    return Refuse("heap_bytes", "at least " + std::to_string(needed),
                  std::to_string(heap_bytes));
  }
  placed_.clear();
  const auto own = [&](Placer* placer) {
    placer->Add(&args_at_, "launch_args", 1, Content::kConstant);
    placer->Add(&args_.heaps, "heaps", header.num_ranks, Content::kConstant);
    PlaceTables(header, header.total_bytes, SizesOf(plan), placer, &args_);
    PlaceOwn(header, placer, &args_);
  };
  Placer count(0, tensors_, &placed_);
  own(&count);
  HPMOE_TRY(own_.Grow(count.bytes()));
  Placer placer(reinterpret_cast<uint64_t>(own_.data()), tensors_, &placed_);
  own(&placer);
  const HeapHead head = HeapHeadOf(header.num_ranks);
  args_.ready = reinterpret_cast<CounterLine*>(heap + head.ready);
  // What puts write lies in the heap, wherever its result is wanted.
  Placer shared(heap + head.bytes, {}, &placed_);
  PlaceHeap(header, &shared, &args_);
  return {};
}

End RankMemory::CopyInputs(const ImageHeader& header) const {
  const auto copy = [&](const char* name, const void* to) {
    const hpmoe_npus_tensor& from = *Find(name);
    if (from.on_device != 0) return End();
    return CopyIn(const_cast<void*>(to), from.data, from.bytes);
  };
  HPMOE_TRY(copy("topk_weights", args_.topk_weights));
  for (int b = 0; b < kNumBuffers; ++b) {
    if (UseOf(header, b) != Use::kInput) continue;
    HPMOE_TRY(copy(BufferName(b), args_.buffers[b]));
  }
  return {};
}

End RankMemory::FillIn(const ImageView& view, const Plan& plan,
                       const std::vector<uint64_t>& heaps) const {
  const ImageHeader& header = *view.header;
  for (const Placed& array : placed_) {
    if (array.content == Content::kConstant) continue;
    const bool empty = array.content == Content::kEmpty && poison_;
    const bool ones = array.content == Content::kMinusOne || empty;
    HPMOE_TRY(Fill(array.at, ones ? kPoisonByte : 0, array.bytes));
  }
  End failed;
  CopyTables(header, plan, args_,
             [&](void* to, const void* from, uint64_t bytes) {
               if (failed.ok()) failed = CopyIn(to, from, bytes);
             });
  HPMOE_TRY(failed);
  const auto constants = std::make_unique<Constants>();
  FillConstants(constants.get());
  HPMOE_TRY(CopyIn(const_cast<Constants*>(args_.constants), constants.get(),
                   sizeof(Constants)));
  HPMOE_TRY(CopyIn(const_cast<uint8_t*>(args_.image), view.header,
                   header.total_bytes));
  HPMOE_TRY(CopyIn(const_cast<uint64_t*>(args_.heaps), heaps.data(),
                   heaps.size() * sizeof(uint64_t)));
  HPMOE_TRY(CopyInputs(header));
  return CopyIn(args_at_, &args_, sizeof(args_));
}

End RankMemory::Begin(const ImageView& view, const Plan& plan,
                      const std::vector<uint64_t>& heaps, uint64_t heap_bytes,
                      int32_t rank, const hpmoe_npus_call& call,
                      int32_t generation) {
  args_ = {};
  poison_ = call.poison != 0;
  HPMOE_TRY(Tell(*view.header, call));
  HPMOE_TRY(Place(*view.header, plan, heaps[rank], heap_bytes));
  args_.rank = rank;
  args_.generation = generation;
  args_.deadline_us = static_cast<uint64_t>(call.deadline_s * 1e6);
  return FillIn(view, plan, heaps);
}

End RankMemory::Ends(const ImageHeader& header,
                     std::vector<CoreDiagnosis>* ends) const {
  ends->resize(header.num_aic + header.num_aiv);
  return CopyOut(ends->data(), args_.diagnosis,
                 ends->size() * sizeof(CoreDiagnosis));
}

End RankMemory::CopyResult(const ImageHeader& header, const Plan& plan, int b,
                           const hpmoe_npus_tensor& to) const {
  const void* const from = args_.buffers[b];
  if (to.on_device != 0) {
    return to.data == from ? End() : CopyOn(to.data, from, to.bytes);
  }
  HPMOE_TRY(CopyOut(to.data, from, to.bytes));
  if (!poison_ || !IsPacked(BufferForm(header, b))) return {};
  const Array shape = ShapeOf(header, static_cast<BufferId>(b));
  const int64_t valid = SlicesOf(plan, b).rank_rows[args_.rank] * shape.cols *
                        shape.element_bytes;
  DropPoison(static_cast<char*>(to.data) + valid, to.bytes - valid,
             shape.element_bytes);
  return {};
}

End RankMemory::CopyResults(const ImageView& view, const Plan& plan) const {
  for (int b = 0; b < kNumBuffers; ++b) {
    const hpmoe_npus_tensor* const to = Find(BufferName(b));
    if (to == nullptr || !IsWritten(*view.header, b)) continue;
    HPMOE_TRY(CopyResult(*view.header, plan, b, *to));
  }
  return {};
}

}  // namespace hpmoe
