// Ranks of one machine whose memory is mapped into this process: puts are
// copies and signals atomic adds, without a call of anything.

#ifndef BACKEND_ASCEND_HOST_RANKS_MAPPED_TRANSPORT_H_
#define BACKEND_ASCEND_HOST_RANKS_MAPPED_TRANSPORT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend_ascend/host/ranks/transport.h"

namespace hpmoe {

// Another rank's memory, where this process sees it.
struct MappedRank {
  char* heap;
  int32_t* counters;
};

class MappedTransport final : public Transport {
 public:
  // `ranks`: of all ranks.  `slow` is told now and then that this rank goes on,
  // and works while it does not.
  MappedTransport(std::vector<MappedRank> ranks, Transport* slow)
      : ranks_(std::move(ranks)), slow_(slow) {}

  void Put(int32_t rank, int64_t offset, const void* data,
           int64_t bytes) override {
    std::memcpy(ranks_[rank].heap + offset, data, bytes);
  }
  // The release of the Add that follows is enough.
  void Flush(int32_t) override {}
  // Acquired where the rank counts.
  void Add(int32_t rank, int32_t event, int32_t amount) override {
    reinterpret_cast<std::atomic<int32_t>*>(ranks_[rank].counters + event)
        ->fetch_add(amount, std::memory_order_release);
  }
  void Sync() override {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_sync_) return;
    next_sync_ = now + kBetweenSyncs;
    slow_->Sync();
  }
  void Progress() override { slow_->Progress(); }

 private:
  static constexpr std::chrono::milliseconds kBetweenSyncs{20};

  const std::vector<MappedRank> ranks_;
  Transport* const slow_;
  std::chrono::steady_clock::time_point next_sync_{};
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_RANKS_MAPPED_TRANSPORT_H_
