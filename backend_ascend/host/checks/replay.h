// Tasks whose outputs are copied out, or overwritten with given ones: modes.py.

#ifndef BACKEND_ASCEND_HOST_CHECKS_REPLAY_H_
#define BACKEND_ASCEND_HOST_CHECKS_REPLAY_H_

#include <cstdint>

#include "backend_ascend/host/checks/modes.h"
#include "backend_ascend/host/checks/runtime_accesses.h"
#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/image/image.h"

namespace hpmoe {

class Replay {
 public:
  // The layer must outlive this.
  Replay(const Layer& layer, const Modes& modes)
      : layer_(layer), modes_(modes), sent_(layer) {}

  // Calls work() where the task does its work, and does what follows it or
  // comes in its place.
  template <class Work>
  void Do(const TaskDesc& task, uint64_t index, Work work) const {
    const uint8_t actions = modes_.actions[index];
    if (Runs(task, actions)) work();
    After(task, actions);
  }

 private:
  // A link of a chain but the last one writes nothing that could be healed, so
  // it does its work.
  bool Runs(const TaskDesc& task, uint8_t actions) const;
  void After(const TaskDesc& task, uint8_t actions) const;
  // What travels beside a row, where it is the plan's; false: it is not.
  bool WriteHeader(uint16_t buffer, int32_t rank, int32_t row) const;
  void Capture(const Access& access) const;
  void Heal(const Access& access) const;

  const Layer& layer_;
  const Modes& modes_;
  const SentRows sent_;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_CHECKS_REPLAY_H_
