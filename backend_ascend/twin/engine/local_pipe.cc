#include "backend_ascend/twin/engine/local_pipe.h"

#include <string>

#include "backend_ascend/twin/engine/machine.h"

namespace ascend_twin {
namespace {

constexpr uint32_t kBlock = 32;

PipeEvent Back(PipeEvent event) { return {event.to, event.from}; }

}  // namespace

LocalPipe::LocalPipe() { Initialise(true); }

uint32_t LocalPipe::Take(Memory memory, uint32_t bytes, Site site) {
  const uint64_t size =
      ThisMachine()->core().chips[static_cast<int>(memory)].size;
  uint32_t& used = used_[static_cast<int>(memory)];
  const uint32_t begin = used;
  const uint64_t rounded = (uint64_t{bytes} + kBlock - 1) / kBlock * kBlock;
  if (begin + rounded > size) {
    Refuse("InitBuffer", site,
           std::string("bytes: expected at most ") +
               std::to_string(size - begin) + ", which is what is left of " +
               NameOf(memory) + ThisMachine()->KeptText(memory) + ", got " +
               std::to_string(rounded));
  }
  used += static_cast<uint32_t>(rounded);
  return begin;
}

LocalBuffer* LocalPipe::TakeBuffers(Memory memory, int count, uint32_t bytes,
                                    PipeEvent filled, Site site) {
  if (count < 1 || count > kMostBuffers ||
      num_buffers_ + count > kMostQueueBuffers) {
    Refuse("InitBuffer", site,
           "num: expected 1 to 8 buffers, 64 in all, got " +
               std::to_string(count));
  }
  LocalBuffer* const first = buffers_ + num_buffers_;
  for (int i = 0; i < count; ++i) {
    first[i] = {};
    first[i].begin = Take(memory, bytes, site);
    first[i].filled = filled;
    first[i].filled_id = AllocId(filled, site);
    first[i].free_id = AllocId(Back(filled), site);
  }
  num_buffers_ += count;
  return first;
}

int32_t LocalPipe::FetchId(PipeEvent event, Site site) {
  for (int32_t id = 0; id < kNumFlagIds; ++id) {
    if ((Ids(event) >> id & 1) == 0) return id;
  }
  Refuse("AllocEventID", site,
         "expected a free id of " + EventName(event) + ", got 8 reserved");
}

int32_t LocalPipe::AllocId(PipeEvent event, Site site) {
  const int32_t id = FetchId(event, site);
  Ids(event) |= static_cast<uint8_t>(1 << id);
  return id;
}

void LocalPipe::ReleaseId(PipeEvent event, int32_t id, Site site) {
  if (id < 0 || id >= kNumFlagIds || (Ids(event) >> id & 1) == 0) {
    Refuse("ReleaseEventID", site,
           "id: expected a reserved one of " + EventName(event) + ", got " +
               std::to_string(id));
  }
  Ids(event) &= static_cast<uint8_t>(~(1 << id));
}

void LocalPipe::Destroy(Site site) {
  Reset(site);
  BarrierAll(site);
}

void LocalPipe::Reset(Site site) {
  if (ThisMachine()->aborted()) return;
  for (int i = 0; i < num_buffers_; ++i) {
    LocalBuffer& buffer = buffers_[i];
    if (buffer.freed) WaitFlag(Back(buffer.filled), buffer.free_id, site);
    ReleaseId(buffer.filled, buffer.filled_id, site);
    ReleaseId(Back(buffer.filled), buffer.free_id, site);
  }
  num_buffers_ = 0;
  for (uint32_t& used : used_) used = 0;
}

void LocalQueue::Init(LocalPipe* pipe, Memory memory, int count, uint32_t bytes,
                      PipeEvent filled, Site site) {
  pipe_ = pipe;
  buffers_ = pipe->TakeBuffers(memory, count, bytes, filled, site);
  count_ = count;
  bytes_ = bytes;
}

int32_t LocalQueue::Count(LocalBuffer::State state) const {
  int32_t count = 0;
  for (int i = 0; i < count_; ++i) count += buffers_[i].state == state;
  return count;
}

LocalBuffer& LocalQueue::Of(const char* call, uint64_t begin, Site site) {
  for (int i = 0; i < count_; ++i) {
    if (buffers_[i].begin == begin) return buffers_[i];
  }
  Refuse(call, site, "tensor: expected one that this queue has allocated");
}

uint32_t LocalQueue::Alloc(Site site) {
  for (int i = 0; i < count_; ++i) {
    LocalBuffer& buffer = buffers_[(next_ + i) % count_];
    if (buffer.state != LocalBuffer::kFree) continue;
    next_ = (next_ + i + 1) % count_;
    buffer.state = LocalBuffer::kTaken;
    if (buffer.freed) WaitFlag(Back(buffer.filled), buffer.free_id, site);
    buffer.freed = false;
    return buffer.begin;
  }
  Refuse("AllocTensor", site,
         "expected a free buffer, got " + std::to_string(count_) +
             " that FreeTensor has not given back");
}

void LocalQueue::EnQue(uint64_t begin, Site site) {
  LocalBuffer& buffer = Of("EnQue", begin, site);
  if (buffer.state != LocalBuffer::kTaken) {
    Refuse("EnQue", site, "tensor: expected one of AllocTensor");
  }
  buffer.state = LocalBuffer::kFilled;
  SetFlag(buffer.filled, buffer.filled_id, site);
  order_[num_filled_++] = static_cast<int>(&buffer - buffers_);
}

uint32_t LocalQueue::DeQue(Site site) {
  if (num_filled_ == 0) {
    Refuse("DeQue", site, "expected a tensor in the queue, got none");
  }
  LocalBuffer& buffer = buffers_[order_[0]];
  --num_filled_;
  for (int i = 0; i < num_filled_; ++i) order_[i] = order_[i + 1];
  buffer.state = LocalBuffer::kOut;
  WaitFlag(buffer.filled, buffer.filled_id, site);
  return buffer.begin;
}

void LocalQueue::Free(uint64_t begin, Site site) {
  LocalBuffer& buffer = Of("FreeTensor", begin, site);
  if (buffer.state == LocalBuffer::kFree) {
    Refuse("FreeTensor", site, "tensor: expected one that is not free");
  }
  buffer.state = LocalBuffer::kFree;
  buffer.freed = true;
  SetFlag(Back(buffer.filled), buffer.free_id, site);
}

}  // namespace ascend_twin
