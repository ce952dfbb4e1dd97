// What a pipe knows to be complete: vector clocks over all pipes of all cores.

#ifndef BACKEND_ASCEND_TWIN_MEMORY_CLOCKS_H_
#define BACKEND_ASCEND_TWIN_MEMORY_CLOCKS_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/twin/engine/instruction.h"

namespace ascend_twin {

// The agents of a core are its pipes and two of the scalar unit: what it does
// in program order (loads of global memory, waits), complete at once, and lines
// that it writes back, complete at DataSyncBarrier.
constexpr int kInOrderAgent = kNumPipes;
constexpr int kWriteBackAgent = kNumPipes + 1;
constexpr int kNumAgents = kNumPipes + 2;

// Of each agent, how many of its instructions are known to be complete.  An
// agent's instructions complete in any order, but whoever learns of one learns
// it by a flag or a barrier, which all earlier ones precede.
class Clock {
 public:
  void Resize(size_t agents) { done_.resize(agents, 0); }
  uint32_t operator[](size_t agent) const {
    return agent < done_.size() ? done_[agent] : 0;
  }
  void Raise(size_t agent, uint32_t number) {
    if (done_.size() <= agent) done_.resize(agent + 1, 0);
    if (done_[agent] < number) done_[agent] = number;
  }
  void Join(const Clock& other) {
    if (done_.size() < other.done_.size()) done_.resize(other.done_.size(), 0);
    for (size_t i = 0; i < other.done_.size(); ++i) {
      done_[i] = done_[i] < other.done_[i] ? other.done_[i] : done_[i];
    }
  }
  bool operator==(const Clock& other) const { return done_ == other.done_; }

 private:
  std::vector<uint32_t> done_;
};

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_MEMORY_CLOCKS_H_
